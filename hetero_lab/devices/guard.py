"""The guard: the first question to a device about a model is asked in a process of its own.

OpenVINO crashes on some models, in ``query_model`` or in a compile, and takes the process along.
Whether it did is kept in memory and in the cache directory, by all that it depends on, so that a
question is asked this way once. ``HETERO_LAB_GUARD=0`` in the environment turns this off, and
``hetero_lab.load(…, guard=False)`` for one model.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import openvino as ov

from hetero_lab.devices.core import (
    BoundModel,
    bases_of,
    emulated_devices,
    plugin_call,
    runtime_version,
    storable,
)
from hetero_lab.devices.guarded import ANSWER, MODEL
from hetero_lab.errors import CompileError, CrashError, DeviceError, HeteroLabError
from hetero_lab.fetch import cache_dir
from hetero_lab.interrupts import interruptible
from hetero_lab.model.read import is_guarded, save, weight_bytes
from hetero_lab.processes import FORK_SERVER, GUARD, crash_of, launch
from hetero_lab.tables import load_json, make_directory, scratch_directory, write_text

_CHILD, _START_S = "hetero_lab.devices.guarded", 120.0
# With room for so many copies, a model is written into memory, in a third of the time.
_IN_MEMORY, _COPIES = Path("/dev/shm"), 4
_PRECISION = "INFERENCE_PRECISION_HINT"
_IGNORED = ("CACHE_DIR", "CACHE_MODE", "PERF_COUNT")  # of a compile: they change no kernel
_CRASHES = ("SIGSEGV", "SIGFPE", "SIGABRT", "SIGILL", "SIGBUS", "SIGTRAP", "SIGSYS")
_lock = threading.RLock()
_verdicts: dict[str, Verdict] = {}
_crashed: set[str] = set()  # fingerprints of models that crashed somewhere


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a question ended, if in a crash; ``about`` is a digest of what a compile was given."""

    crash: Annotated[str, msgspec.Meta(pattern=r"^(SIG[A-Z]+|0x[0-9A-F]{8})?$")] = ""
    about: str = ""


def first_query(
    bound: BoundModel, device: str, properties: Mapping[str, Any]
) -> dict[str, str] | None:
    """Return the device of each node that one claims; ``None`` if it is to be asked here.

    CrashError, if it crashes; DeviceError, if the process is killed.
    """
    task = {"step": "query", "device": device, "properties": storable(properties)}
    task["doing"] = f"asking {device} which ops of this model it supports"
    verdict, answer = _verdict(bound, task, str(task["properties"]))
    if verdict.crash:
        error = CrashError(_crash_message(verdict.crash, task, repr(device)))
        error.device = device
        raise error
    return answer


def suspect(fingerprint: str) -> None:
    """Remember a crash of a model, perhaps seen elsewhere, for instance in a worker on a GPU."""
    _crashed.add(fingerprint)


def check_compile(
    bound: BoundModel,
    model: ov.Model,
    target: str,
    properties: Mapping[str, Any],
    devices: Sequence[str],
    affinities: Mapping[str, str] | None = None,
) -> None:
    """Raise CompileError if the first compile of a model for some devices crashes.

    For other devices than CPU, where that takes long, it is tried only after a crash was seen.
    After a crash, each placement is tried by itself.
    """
    has_crashed, real = bound.fingerprint in _crashed, bases_of(devices, bound.core)
    if not has_crashed and any(real.get(device, device) != "CPU" for device in devices):
        return
    config = {key: value for key, value in properties.items() if key not in _IGNORED}
    task = {"step": "compile", "device": target, "properties": config, "affinities": affinities}
    task["doing"] = f"compiling this model for {target}"
    by_device = {d: config.get("DEVICE_PROPERTIES", {}).get(d, config) for d in devices}
    usual = {device: _property(bound.core, device, _PRECISION) for device in devices}
    precisions = {d: by_device[d].get(_PRECISION) or usual[d] for d in devices}
    kind = str(sorted(storable(precisions).items()))
    about = _digest(json.dumps([config, affinities], sort_keys=True, default=str))
    verdict, _ = (Verdict(), None) if has_crashed else _verdict(bound, task, kind, about, model)
    if has_crashed or (verdict.crash and verdict.about != about):
        verdict, _ = _verdict(bound, task, kind + about, about, model)
    if verdict.crash:
        raise CompileError(_crash_message(verdict.crash, task, "placement"))


def _verdict(
    bound: BoundModel,
    task: dict[str, Any],
    kind: str,
    about: str = "",
    model: ov.Model | None = None,
) -> tuple[Verdict, dict[str, str] | None]:
    """Return what is known, else ask, and return the answer of a query, too."""
    if os.environ.get(GUARD) == "0" or not bound.fingerprint or not is_guarded(bound.model):
        return Verdict(), None
    names = re.findall(r"[A-Za-z][\w.]*", task["device"])
    hardware = [(device, _property(bound.core, device, "FULL_DEVICE_NAME")) for device in names]
    on = [runtime_version(), bound.fingerprint, task["step"], task["device"], hardware, kind]
    path, answer = cache_dir() / "guard" / f"{_digest(repr(on))}.json", None
    with _lock:
        verdict = _verdicts.get(path.name)
        if verdict is None:
            try:
                verdict = msgspec.convert(load_json(path, "not known"), Verdict)
            except (HeteroLabError, msgspec.ValidationError, UnicodeError):
                verdict, answer = _ask(bound, task, about, model or bound.model)
                with contextlib.suppress(HeteroLabError, OSError):  # else it is asked again later
                    make_directory(path.parent, private=True)
                    write_text(path, msgspec.json.encode(verdict).decode())
        _verdicts[path.name] = verdict
        if verdict.crash:
            suspect(bound.fingerprint)
    return verdict, answer


def _ask(
    bound: BoundModel, task: dict[str, Any], about: str, model: ov.Model
) -> tuple[Verdict, dict[str, str] | None]:
    """Ask in a process, twice if it ends in between; an error, if it was killed."""
    room = shutil.disk_usage(_IN_MEMORY).free if _IN_MEMORY.is_dir() else 0
    fits = _COPIES * weight_bytes(model) < room
    with scratch_directory(_IN_MEMORY if fits else None) as directory:
        try:
            FORK_SERVER.is_ready(_CHILD, 0.0)  # it starts while the model is written
            save(model, directory / MODEL)
        except RuntimeError:  # an op of an extension that cannot be written
            return Verdict(), None
        plugins = [plugin_call(spec) for spec in emulated_devices(bound.core).values()]
        question = {**task, "directory": str(directory), "plugins": plugins}
        ends: list[str] = []
        while len(ends) < 2:
            facts, code, output = _run(json.dumps(question, default=str), directory)
            if re.search("bad_alloc|MemoryError", facts.get("error", output)):
                ends.append("ran out of memory")
            elif code == 0 or facts.get("step") == "read":  # the latter knows not all ops
                same = sorted(facts.get("nodes", ())) == sorted(op.name for op in bound.graph)
                return Verdict(), facts["answer"] if same else None
            else:
                ends.append(crash_of(code or 0) or f"exit code {code}")
    if ends[0] == ends[1] and (ends[0] in _CRASHES or ends[0].startswith("0x")):
        return Verdict(ends[0], about), None
    raise (CompileError if task["step"] == "compile" else DeviceError)(
        f"The process that was {task['doing']} ended twice ({', then '.join(ends)}), perhaps for "
        "lack of memory. That says nothing about the model. Free memory and try again, or ask "
        f"without such a process: {GUARD}=0, hetero_lab.load(…, guard=False)."
    )


def _run(question: str, directory: Path) -> tuple[dict[str, Any], int | None, str]:
    """Return what a process told, its exit code if known, and what it wrote to standard error."""
    with tempfile.TemporaryFile() as errors:
        process = launch(_CHILD, errors, _START_S)
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.close()
            with contextlib.suppress(OSError), process.stdin:
                process.stdin.write(question)
            code = interruptible(process.wait)
        except subprocess.TimeoutExpired:  # the server that could tell was killed
            code = None
        except BaseException:
            process.kill()
            raise
        errors.seek(0)
        output = errors.read().decode("utf-8", "replace")
    facts: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        facts = json.loads((directory / ANSWER).read_text("utf-8"))
    return facts, code, output


def _crash_message(crash: str, task: Mapping[str, Any], placement: str) -> str:
    release = runtime_version().partition("-")[0]
    return (
        f"OpenVINO {release} crashes ({crash}) while {task['doing']}. "
        "It was tried in a process of its own, so nothing else has ended. "
        f"hetero_lab.investigate(model, {placement}) finds the ops, the setting and, with "
        "between=, the release."
    )


def _property(core: ov.Core, device: str, key: str) -> str:
    with contextlib.suppress(Exception):
        return str(storable({key: core.get_property(device, key)})[key])
    return ""


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
