"""The guard: the first question to a device about a model is asked in a process of its own.

OpenVINO crashes on some models, in ``query_model`` or in a compile, and takes the process along.
What is known of a model is kept in memory and in the cache directory, by all that an answer depends
on, so that it is asked once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import openvino as ov
import psutil

from hetero_lab.backend.bound import BoundModel
from hetero_lab.backend.core import runtime_version, scratch_core
from hetero_lab.backend.emulation import bases_of, emulated_devices, plain, plugin_call
from hetero_lab.backend.guarded import ANSWER, MODEL
from hetero_lab.errors import (
    CompileError,
    CrashError,
    DeviceError,
    HeteroLabError,
    OutputPathError,
    StoredFileError,
    warn,
)
from hetero_lab.fetch import cache_dir
from hetero_lab.model.opgraph import CONSTANT
from hetero_lab.model.read import save
from hetero_lab.processes import launch
from hetero_lab.tables import load_json, make_directory, scratch_directory, write_text

SWITCH = "HETERO_LAB_GUARD"
_CHILD = "hetero_lab.backend.guarded"
_START_S = 120.0
_IN_MEMORY, _TIMES_ROOM = Path("/dev/shm"), 4
_MOST_KEPT = 4096  # verdicts on disk, most of them of a few hundred bytes
_PRECISION = "INFERENCE_PRECISION_HINT"
_IGNORED = ("CACHE_DIR", "CACHE_MODE", "PERF_COUNT")  # of a compile: they change no kernel
_CRASHES = ("SIGSEGV", "SIGFPE", "SIGABRT", "SIGILL", "SIGBUS", "SIGTRAP", "SIGSYS")
_FIRST_OF_WINDOWS = 0xC0000000  # exit codes from here on are exceptions of the system
_NO_MEMORY = re.compile(r"bad_alloc|MemoryError")

_is_on = os.environ.get(SWITCH) != "0"
_lock = threading.RLock()
_verdicts: dict[str, Verdict] = {}
_crashed: set[str] = set()  # fingerprints of models that crashed somewhere


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a process found: a crash, or the home of each node; neither if it is to be asked here.

    ``about`` is a digest of the affinities and properties of a compile that crashed. ``homes`` are
    numbers of ``devices``, -1 for a node that none supports.
    """

    crash: Annotated[str, msgspec.Meta(pattern=r"^(SIG[A-Z]+|exit code 0x[0-9A-F]{8})?$")] = ""
    about: str = ""
    devices: tuple[Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z][\w.]*$")], ...] = ()
    homes: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Question:
    """A question about a model: ``step`` is ``"query"`` or ``"compile"``.

    ``model`` is what is compiled, by default the bound model; its nodes have ``affinities``.
    """

    bound: BoundModel
    step: str
    device: str
    properties: Mapping[str, Any]
    model: ov.Model | None = None
    affinities: Mapping[str, str] | None = None

    def sent(self, directory: Path) -> str:
        """Return it as the input of a process."""
        specs = emulated_devices(self.bound.core)
        return json.dumps(
            {
                "directory": str(directory),
                "step": self.step,
                "device": self.device,
                "properties": self.properties,
                "affinities": self.affinities,
                "plugins": [plugin_call(spec) for spec in specs.values()],
                "settings": _settings(self.bound.core, self.device),
            },
            default=str,
        )

    @property
    def doing(self) -> str:
        """What the process did."""
        if self.step == "compile":
            return f"compiling this model for {self.device}"
        return f"asking {self.device} which ops of this model it supports"


def guard(on: bool = True) -> None:
    """Ask devices about a model first in a process of its own, or no longer.

    OpenVINO crashes on some models, and the process that asked ends. So the first ``query_model``
    of a model on a device, and its first compile for CPU and devices that are emulated on it, run
    in another process. What it finds is kept for later calls and sessions. ``HETERO_LAB_GUARD=0``
    in the environment turns this off from the start.

    Parameters
    ----------
    on
        Whether a crash is to cost an error instead of this process.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> hl.guard(False)  # saves up to a second, or the time of the first compile, once a model
    >>> hl.guard()
    """
    global _is_on
    _is_on = on


def first_query(
    bound: BoundModel, device: str, properties: Mapping[str, Any]
) -> dict[str, str] | None:
    """Return the device of each node that one claims; ``None`` if it is to be asked here.

    DeviceError, if it crashes or the process is killed.
    """
    if not _is_on or not bound.fingerprint:
        return None
    base = bases_of([device], bound.core).get(device, device)
    if properties or _settings(bound.core, device) != _settings(bound.core, base):
        base = device  # else an emulated device answers as its base does
    question = Question(bound, "query", base, plain(properties))
    verdict = _verdict(question, repr(sorted(question.properties.items())))
    if verdict.crash:
        raise _crash_error(question, verdict)
    if verdict.homes is None:
        return None
    found = zip(bound.graph, verdict.homes, strict=True)
    named = [device] if base != device else verdict.devices
    return {op.name: named[home] for op, home in found if home >= 0}


def check_compile(
    bound: BoundModel,
    model: ov.Model,
    target: str,
    properties: Mapping[str, Any],
    devices: Sequence[str],
    affinities: Mapping[str, str] | None = None,
) -> None:
    """Raise CompileError if the first compile of a model for some devices crashes.

    Where that takes long (all devices but CPU), it is tried only after a crash was seen. After a
    crash, each placement is tried by itself.
    """
    core, suspect = bound.core, bound.fingerprint in _crashed
    real = bases_of(devices, core)
    cheap = all(real.get(device, device) == "CPU" for device in devices)
    if not (_is_on and bound.fingerprint and (cheap or suspect)):
        return
    given = {key: value for key, value in _plain(properties).items() if key not in _IGNORED}
    question = Question(bound, "compile", target, given, model, affinities)
    inner = given.get("DEVICE_PROPERTIES", {})
    asked = {d: {**given, **inner.get(d, {})}.get(_PRECISION) for d in sorted(devices)}
    by_default = {d: _property(core, d, _PRECISION) for d in asked}
    kind = repr({d: str(asked[d] or by_default[d]) for d in asked})
    about = _digest(json.dumps([given, affinities], sort_keys=True, default=str))
    verdict = Verdict() if suspect else _verdict(question, kind, about)
    if suspect or (verdict.crash and verdict.about != about):
        verdict = _verdict(question, f"{kind} {about}", about)
    if verdict.crash:
        raise _crash_error(question, verdict)


def note_crash(fingerprint: str) -> None:
    """Let each compile of a model be tried in a process of its own: it crashed in a worker."""
    _crashed.add(fingerprint)


def _verdict(question: Question, kind: str, about: str = "") -> Verdict:
    """Return what is known, else ask."""
    bound = question.bound
    named = re.findall(r"[A-Za-z][\w.]*", question.device)
    real = {d: bases_of([d], bound.core).get(d, d) for d in named}
    hardware = [(d, r, str(_property(bound.core, r, "FULL_DEVICE_NAME"))) for d, r in real.items()]
    settings = _settings(bound.core, question.device)
    on = [runtime_version(), bound.fingerprint, question.step, question.device, hardware, settings]
    key = _digest(repr([*on, kind]))
    with _lock:
        found = _verdicts.get(key) or _stored(key, len(bound.graph.ops))
        if found is None:
            found, keep = _asked(question, about)
            if keep:
                with contextlib.suppress(OutputPathError, OSError):
                    place = make_directory(cache_dir() / "guard", private=True)
                    write_text(place / f"{key}.json", msgspec.json.encode(found).decode())
                    _prune(place)
        _verdicts[key] = found
        if found.crash:
            _crashed.add(bound.fingerprint)
    return found


def _stored(key: str, n_nodes: int) -> Verdict | None:
    """Read a verdict; ``None`` if there is none, or what is there is none."""
    path = cache_dir() / "guard" / f"{key}.json"
    if not path.is_file():
        return None
    try:
        found = msgspec.convert(load_json(path, "no verdict"), Verdict)
    except (StoredFileError, msgspec.ValidationError):
        return None
    homes, n = found.homes, len(found.devices)
    fits = not homes or (len(homes) == n_nodes and all(-1 <= home < n for home in homes))
    return found if fits else None


def _prune(directory: Path) -> None:
    """Remove the older half of too many verdicts."""
    files = list(directory.glob("*.json"))
    if len(files) > _MOST_KEPT:
        for path in sorted(files, key=lambda path: path.stat().st_mtime)[: _MOST_KEPT // 2]:
            path.unlink(missing_ok=True)


def _asked(question: Question, about: str) -> tuple[Verdict, bool]:
    """Ask in a process, twice if it ends in between; return also whether to keep the verdict."""
    model = question.model or question.bound.model
    with scratch_directory(_place(model)) as directory:
        try:
            save(model, directory / MODEL)
        except OSError:
            raise
        except Exception:  # an op of an extension that cannot be written
            return Verdict(), True
        ends = [""]
        for _ in range(2):
            facts, code, errors = _run(question, directory)
            answer = facts.get("answer")
            if facts.get("no_memory") or _NO_MEMORY.search(errors):
                ends.append("ran out of memory")
            elif code == 0 and (answer is not None or "error" in facts):
                return _from_answer(question.bound, answer, facts.get("nodes")), True
            elif facts.get("step") == "read":
                return Verdict(), True  # it is in memory here already
            elif crash := _crash(code):
                ends.append(crash)
                if ends[-2] == crash:
                    return Verdict(crash=crash, about=about), True
            elif code is not None and code >= 0:
                said = (errors.strip().splitlines() or [f"exit code {code}"])[-1][:400]
                warn(f"{question.doing.capitalize()} failed in a process of its own ({said}).")
                return Verdict(), False
            else:
                ends.append(f"was killed ({_name(code)}), perhaps for lack of memory")
    told = next((end for end in reversed(ends) if " " in end), f"ended by {ends[-1]} once")
    raise (CompileError if question.step == "compile" else DeviceError)(
        f"The process that was {question.doing} {told}. That says nothing about the model. Free "
        f"some memory and try again, or let it run in this process: hetero_lab.guard(False), "
        f"{SWITCH}=0."
    )


def _place(model: ov.Model) -> Path | None:
    """Return the directory in memory, where a model is written several times faster, if it fits."""
    needed = sum(n.get_data().nbytes for n in model.get_ops() if n.get_type_name() == CONSTANT)
    room = [psutil.virtual_memory().available]
    with contextlib.suppress(OSError):
        room.append(shutil.disk_usage(_IN_MEMORY).free)
    return _IN_MEMORY if len(room) > 1 and _TIMES_ROOM * needed < min(room) else None


def _run(question: Question, directory: Path) -> tuple[dict[str, Any], int | None, str]:
    """Return what a process told, its exit code if known, and what it wrote to standard error."""
    with tempfile.TemporaryFile() as errors:
        process = launch(_CHILD, errors, _START_S)
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.close()
            with contextlib.suppress(OSError), process.stdin:
                process.stdin.write(question.sent(directory))
            code = process.wait()
        except subprocess.TimeoutExpired:  # the server that could tell was killed
            code = None
        except BaseException:
            process.kill()
            raise
        errors.seek(0)
        said = errors.read().decode("utf-8", "replace")
    try:
        return json.loads((directory / ANSWER).read_text("utf-8")), code, said
    except (OSError, ValueError):
        return {}, code, said


def _from_answer(bound: BoundModel, answer: dict[str, str] | None, nodes: Any) -> Verdict:
    names = [op.name for op in bound.graph]
    if not answer or nodes is None or sorted(nodes) != sorted(names):
        return Verdict()
    devices = sorted(set(answer.values()))
    number = {device: index for index, device in enumerate(devices)}
    homes = tuple(number[answer[name]] if name in answer else -1 for name in names)
    return Verdict(devices=tuple(devices), homes=homes)


def _crash(code: int | None) -> str:
    """Name a crash by the exit code of a process; empty for another end."""
    if code is not None and code >= _FIRST_OF_WINDOWS:
        return f"exit code 0x{code:08X}"
    name = _name(code)
    return name if name in _CRASHES else ""


def _name(code: int | None) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name if code is not None else "unknown"
    return f"exit code {code}"


def _crash_error(question: Question, verdict: Verdict) -> HeteroLabError:
    release, is_query = runtime_version().partition("-")[0], question.step == "query"
    named = repr(question.device) if is_query else "placement"
    told = (
        f"OpenVINO {release} crashes ({verdict.crash}) while {question.doing}. It was tried in a "
        f"process of its own, so nothing else has ended. hetero_lab.investigate(model, {named}) "
        "finds the ops, the setting and, with between=, the release."
    )
    return CrashError(told, question.device) if is_query else CompileError(told)


def _settings(core: ov.Core, device: str) -> dict[str, dict[str, Any]]:
    """Return the properties of devices that were set on a Core."""
    found = {}
    for name in re.findall(r"[A-Za-z][\w.]*", device):
        real = bases_of([name], core).get(name, name)
        access = _property(scratch_core(), real, "SUPPORTED_PROPERTIES") or {}
        keys = [k for k, mode in access.items() if mode == "RW" and k != "DEVICE_ID"]
        now = {key: _property(core, name, key) for key in keys}
        set_here = {k: v for k, v in now.items() if v != _property(scratch_core(), real, k)}
        if set_here:
            found[name] = plain(set_here)
    return found


def _property(core: ov.Core, device: str, key: str) -> Any:
    with contextlib.suppress(Exception):
        return core.get_property(device, key)
    return None


def _plain(properties: Mapping[str, Any]) -> dict[str, Any]:
    inner = {k: _plain(v) for k, v in properties.items() if isinstance(v, Mapping)}
    return {**plain(properties), **inner}


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
