"""Files that somebody tampered with: nothing runs, nothing is written, nothing hangs or floods.

    python -m tests.proof.tampered [PATTERN OF A NAME]

Each case is a copy of an honest directory with one change, and a command that reads it. A command
must end with the code 2 within a minute and below 1 GiB, print plain text alone, and leave
everything outside as it was. The directories are signed anew after the change, as one who tampers
would do.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hetero_lab.results.store import stored_line
from tests.plain_openvino import edit_placement

ROOT = Path(__file__).parents[2]
MOST_BYTES, MOST_S = 1 << 30, 60.0
VERIFY = ("verify", "deploy", "--junit", "verify.xml")
RUN = ("run.py",)
APPLY = ("apply", str(ROOT / "datasets" / "digits_inception.xml"))
HOSTILE = "x\n::error::owned\x1b[31m\x07\u202e##[error]owned\r"

# A command as a child that tells its peak of memory; "run.py" is the deployment's program.
_CHILD = """
import resource, subprocess, sys
code = 0
try:
    if sys.argv[1] == "run.py":
        code = subprocess.run([sys.executable, "deploy/run.py"]).returncode
    elif sys.argv[1] == "read":
        import hetero_lab as hl
        from hetero_lab.errors import HeteroLabError
        try:
            print(getattr(hl, sys.argv[2])(*sys.argv[3:]))
        except HeteroLabError as error:
            print(error, file=sys.stderr)
            code = 2
    else:
        from hetero_lab.cli.main import main
        code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code or 0
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
peak = max(peak, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
open("peak", "w").write(str(peak * 1024))
sys.exit(code)
"""


@dataclass(frozen=True)
class Case:
    """A change of an honest directory, and the command that reads it."""

    name: str
    change: Callable[[Path], object]
    command: tuple[str, ...] = VERIFY
    codes: tuple[int, ...] = (2,)


def library(at: Path) -> Path:
    """Build a library that leaves a mark when it is loaded."""
    source = at / "mark.c"
    source.write_text(
        "#include <stdio.h>\n__attribute__((constructor)) static void go(void)"
        f'{{ FILE *f = fopen("{at}/ran", "w"); if (f) fclose(f); }}\n'
    )
    built = at / "mark.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", built, source], check=True)
    return built


def sign(directory: Path, change: Callable[[dict[str, Any]], object] = lambda _: None) -> None:
    """Change a contract, and write it as if it had always been so."""
    file = directory / "contract.json"
    data = json.loads(file.read_text())
    data.pop("digest")
    change(data)
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    file.write_text(json.dumps({**data, "digest": digest}))


def both(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Change the note in the model and the contract alike."""

    def changed(at: Path) -> None:
        edit_placement(at / "deploy", change)
        sign(at / "deploy", change)

    return changed


def in_note(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Change the note in the model."""
    return lambda at: edit_placement(at / "deploy", change)


def in_contract(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Change the contract."""
    return lambda at: sign(at / "deploy", change)


def other(path: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Put something else at a path."""

    def changed(at: Path) -> None:
        (at / path).unlink(missing_ok=True)
        make(at / path)

    return changed


def link(target: str) -> Callable[[Path], None]:
    """Return what makes a link; ``victim`` lies outside of every directory that is read."""
    return lambda path: path.symlink_to(target.replace("victim", str(path.parents[1] / "victim")))


def fifo(path: Path) -> None:
    """Make a pipe that nobody writes into."""
    os.mkfifo(path)


def sparse(n_bytes: int) -> Callable[[Path], None]:
    """Return what makes a file of zeros that takes no room."""

    def make(path: Path) -> None:
        with open(path, "wb") as file:
            file.truncate(n_bytes)

    return make


def text(content: str) -> Callable[[Path], object]:
    """Return what writes a text."""
    return lambda path: path.write_text(content)


def bomb(name: str = "in0.0", n_bytes: int = 3 << 30) -> Callable[[Path], None]:
    """Return what writes an .npz of 3 MB that unpacks to 3 GiB."""

    def make(path: Path) -> None:
        header = {"descr": "|u1", "fortran_order": False, "shape": (n_bytes,)}
        with (
            zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
            archive.open(f"{name}.npy", "w", force_zip64=True) as member,
        ):
            np.lib.format.write_array_header_1_0(member, header)
            for _ in range(n_bytes >> 24):
                member.write(bytes(1 << 24))

    return make


def claims(shape: tuple[int, ...], descr: str = "<f4") -> Callable[[Path], None]:
    """Return what writes an .npz whose array claims to be far larger than it is."""

    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive, archive.open("in0.0.npy", "w") as member:
            header = {"descr": descr, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(member, header)

    return make


def pickled(path: Path) -> None:
    """Write an .npz with an object that runs a command when it is unpickled."""

    class Runs:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {path.parents[1]}/ran",)

    with open(path, "wb") as file:
        np.savez(file, **{"in0.0": np.array([Runs()], object)})  # pyright: ignore


def plugin(*given: str) -> Callable[[dict[str, Any]], object]:
    """Return the change that names another plugin."""
    return lambda data: data["emulated"].update({"TAMACC": list(given)})


def setting(device: str, **properties: Any) -> Callable[[dict[str, Any]], object]:
    """Return the change that sets properties of a device."""
    return lambda data: data["properties"]["DEVICE_PROPERTIES"][device].update(properties)


def on_top(**properties: Any) -> Callable[[dict[str, Any]], object]:
    """Return the change that sets properties of the whole."""
    return lambda data: data["properties"].update(properties)


def reference(**properties: Any) -> Callable[[dict[str, Any]], object]:
    """Return the change that promises a latency, relative to a device with these properties."""
    promise = {
        "reference_device": "CPU", "reference_properties": properties, "ratio": 1.0,
        "ratio_ci95_low": 0.5, "ratio_ci95_high": 2.0,
    }  # fmt: skip
    return lambda data: data.update(latency=promise)


def line(**changes: Any) -> Callable[[Path], None]:
    """Return what changes the first record that has such a field, with a right checksum."""

    def make(at: Path) -> None:
        file = at / "store" / "records.jsonl"
        records = [json.loads(each)["record"] for each in file.read_text().splitlines()]
        for record in records:
            record.update({k: v for k, v in changes.items() if k in record})
        file.write_text("".join(map(stored_line, records)))

    return make


def header(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Return what changes the header of a sweep."""

    def make(at: Path) -> None:
        file = at / "store" / "sweep.json"
        data = json.loads(file.read_text())
        change(data)
        file.write_text(json.dumps(data))

    return make


SWEEP = (
    "sweep", str(ROOT / "datasets" / "digits_inception.xml"), "-d", "CPU", "--store", "store",
    "--budget", "5",
)  # fmt: skip
READ_SWEEP, READ_PROFILE = ("read", "read_sweep", "store"), ("read", "read_profile", "profile")
DEEP = "[" * 200_000


def cases() -> Iterator[Case]:
    """Yield all cases."""
    # A1: what is loaded
    every = (VERIFY, RUN, (*APPLY, "deploy"))
    for command in every:
        yield Case(f"library, {command[0]}", lambda at: in_note(
            plugin(str(library(at)), "TAMACC_CPU"))(at), command)  # fmt: skip
    yield Case("library in both", lambda at: both(plugin(str(library(at)), "TAMACC_CPU"))(at))
    yield Case("library in the contract", lambda at: in_contract(
        plugin(str(library(at)), "TAMACC_CPU"))(at))  # fmt: skip
    yield Case("library as an affinity", lambda at: in_note(
        plugin(str(library(at)), "TAMACC_CPU"))(at), (*APPLY, "deploy/model.xml"))  # fmt: skip
    good = "openvino_intel_cpu_plugin"
    for name, given in {
        "relative": ("../mark.so", "TAMACC_CPU"),
        "suffix": (f"{good}.so", "TAMACC_CPU"),
        "another plugin": ("openvino_auto_plugin", "TAMACC_CPU"),
        "newline": (f"{good}\n", "TAMACC_CPU"),
        "internal CPU": (good, "CPU"),
        "another base": (good, "TAMACC_GPU"),
        "hostile": (HOSTILE, HOSTILE),
        "one": (good,),
    }.items():
        yield Case(f"plugin: {name}", both(plugin(*given)))
    yield Case("a device CPU", both(lambda d: d["emulated"].update(CPU=[good, "CPU_CPU"])))
    yield Case("a hostile device", both(lambda d: d["emulated"].update(
        {HOSTILE: [good, f"{HOSTILE}_CPU"]})))  # fmt: skip
    # A2: what is written
    for command in every:
        yield Case(
            f"CACHE_DIR, {command[0]}", in_note(setting("CPU", CACHE_DIR="written")), command
        )
    for key, value in {
        "CACHE_DIR": "written", "cache_dir": "written", "WEIGHTS_PATH": "/dev/zero",
        "CONFIG_FILE": "/etc/passwd", "NPUW_DUMP_SUBS_DIR": "written", "LOG_LEVEL": "LOG_TRACE",
        "NPU_COMPILATION_MODE_PARAMS": "dump=1", "DEVICE_ID": "../x", "NUM_STREAMS": HOSTILE,
        "PERFORMANCE_HINT": {"CACHE_DIR": "written"}, "MADE_UP": 1,
    }.items():  # fmt: skip
        yield Case(f"property {key}", both(setting("CPU", **{key: value})))
    yield Case("CACHE_DIR on top", both(on_top(CACHE_DIR="written")))
    yield Case("properties as text", both(on_top(DEVICE_PROPERTIES="{CPU:{CACHE_DIR:written}}")))
    yield Case("CACHE_DIR of the reference", in_contract(reference(CACHE_DIR="written")))
    yield Case("CACHE_DIR inside, of the reference", in_contract(
        reference(DEVICE_PROPERTIES={"CPU": {"CACHE_DIR": "written"}})))  # fmt: skip
    # A3: what is printed
    for name in ("latency", "precision", "target"):
        yield Case(f"text {name}", in_contract(lambda d, n=name: d.update({n: HOSTILE})))
    yield Case("text devices", in_contract(lambda d: d.update(devices={HOSTILE: HOSTILE})))
    yield Case("text execution_devices", in_contract(
        lambda d: d.update(execution_devices=[HOSTILE])))  # fmt: skip
    yield Case("text host", in_contract(lambda d: d["environment"].update(host=HOSTILE)))
    yield Case("text label", in_contract(lambda d: d.update(label=HOSTILE)), codes=(0,))
    yield Case("text of an op", in_contract(lambda d: d["affinity"].update({HOSTILE: "CPU"})),
        codes=(1,))  # fmt: skip
    yield Case("text of an op, run", in_note(lambda d: d["affinity"].update({HOSTILE: "CPU"})), RUN)
    yield Case("text of a device", both(lambda d: d["affinity"].update(
        dict.fromkeys(d["affinity"], HOSTILE))), codes=(1, 2))  # fmt: skip
    yield Case("text of a file", in_contract(lambda d: d["files"].update({HOSTILE: ""})))
    yield Case("no digest", in_contract(lambda d: d["files"].update({"none": ""})))
    yield Case("text executor", header(lambda d: d["entries"][0].update(executor=HOSTILE)),
        READ_SWEEP)  # fmt: skip
    yield Case("text label of a sweep", header(lambda d: d["entries"][0].update(label=HOSTILE)),
        READ_SWEEP, (0,))  # fmt: skip
    yield Case("text emulated", header(lambda d: d["environments"][0].update(
        emulated=[[HOSTILE, HOSTILE]])), READ_SWEEP)  # fmt: skip
    # A4: files that are none
    files = ("contract.json", "model.xml", "model.bin", "requests.npz", "run.py")
    for name in files:
        yield Case(f"pipe {name}", other(f"deploy/{name}", fifo))
        yield Case(f"link {name}", other(f"deploy/{name}", link("/dev/zero")))
    for name in ("model.xml", "model.bin", "inputs.npz"):
        yield Case(f"pipe {name}, run", other(f"deploy/{name}", fifo), RUN)
        yield Case(f"link {name}, run", other(f"deploy/{name}", link("/dev/zero")), RUN)
    yield Case("a link to another file", other("deploy/requests.npz", link("victim")))
    for name in ("/dev/zero", "../victim", "..", "", "a/../b"):
        yield Case(f"file {name!r}", in_contract(lambda d, n=name: d["files"].update({n: "x"})))
    for name, make in {
        "bomb": bomb(), "bomb of outputs": bomb("out0.0"), "pickle": pickled,
        "claim": claims((1 << 40,)), "claim of many": claims((1 << 20, 1 << 20, 1 << 30)),
        "wide": claims((1,), "|S2000000000"), "no zip": text("PK\x03\x04"),
        "zeros": sparse(4 << 30),
    }.items():  # fmt: skip
        yield Case(f"requests: {name}", other("deploy/requests.npz", make), codes=(1, 2))
        yield Case(f"inputs: {name}", other("deploy/inputs.npz", make), RUN)
    for name, make in {
        "zeros": sparse(4 << 30), "deep": text(DEEP), "many": text("[" + "[]," * 20_000_000 + "0]"),
        "wide text": text('{"kind": "contract", "x": "' + "\U0001f600" * (1 << 25) + '"}'),
        "empty": text(""),
    }.items():  # fmt: skip
        yield Case(f"contract: {name}", other("deploy/contract.json", make))
        yield Case(f"sweep: {name}", other("store/sweep.json", make), READ_SWEEP)
        yield Case(f"profile: {name}", other("profile/profile.json", make), READ_PROFILE)
        if name != "empty":
            codes = (0, 2)  # lines that are damaged are left out
            yield Case(f"records: {name}", other("store/records.jsonl", make), READ_SWEEP, codes)
    yield Case("model.xml of blanks", lambda at: _append(at / "deploy/model.xml", " " * (1 << 24)),
        codes=(1,))  # fmt: skip
    yield Case("model.xml of zeros", other("deploy/model.xml", sparse(4 << 30)))
    yield Case("deep note", in_note(lambda d: d.update(label=json.loads("[" * 900 + "]" * 900))))
    for name in ("sweep.json", "records.jsonl", ".lock"):
        yield Case(f"store writes through {name}", other(f"store/{name}", link("victim")), SWEEP)
        yield Case(f"pipe {name}", other(f"store/{name}", fifo), SWEEP)
    yield Case("a link in a store", lambda at: (at / "store/blobs").symlink_to(at), SWEEP)
    yield Case("sweep.json is zero", other("store/sweep.json", link("/dev/zero")), READ_SWEEP)
    yield Case("pipe records", other("store/records.jsonl", fifo), READ_SWEEP)
    yield Case("profile.json is zero", other("profile/profile.json", link("/dev/zero")),
        READ_PROFILE)  # fmt: skip
    # A5: files that are too many
    for name in ("numpy.py", "json.py", "sitecustomize.py", "openvino.so", ".hidden", "x.npz"):
        mark = "open('ran', 'w').close()\n"
        yield Case(f"extra {name}", other(f"deploy/{name}", text(mark)))
        if name.endswith(".py"):
            yield Case(f"extra {name}, run", other(f"deploy/{name}", text(mark)), RUN, (0,))
    yield Case("extra package", lambda at: _package(at / "deploy" / "numpy"))
    yield Case("extra package, run", lambda at: _package(at / "deploy" / "numpy"), RUN, (0,))


def _append(file: Path, more: str) -> None:
    file.write_text(file.read_text() + more)


def _package(at: Path) -> None:
    at.mkdir()
    (at / "__init__.py").write_text("open('ran', 'w').close()\n")


def honest(at: Path) -> None:
    """Make a deployment, a store and an exported profile in a directory."""
    import hetero_lab as hl

    hl.emulate("TAMACC", unsupported={"Softmax"})
    model = hl.load("digits_inception")
    f32 = {"INFERENCE_PRECISION_HINT": "f32"}
    affinity = hl.Affinity.automatic(model, "HETERO:TAMACC,CPU")
    placement = hl.Placement(affinity, "honest", {"TAMACC": f32, "CPU": f32})
    hl.freeze(model, placement, at / "deploy", tolerance=None)
    hl.sweep(model, ["CPU"], turns=2, isolate=False, store=at / "store", progress=False)
    hl.profile(model, "CPU", iterations=10, progress=False).export(at / "profile")
    (at / "victim").write_text("victim")


def fault_of(case: Case, made: Path) -> str:
    """Return what is wrong with how a case is read; empty if nothing is."""
    with tempfile.TemporaryDirectory() as scratch:
        at = Path(scratch)
        shutil.copytree(made, at, dirs_exist_ok=True, symlinks=True)
        case.change(at)
        before = {path for path in at.rglob("*") if path.name != "__pycache__"}
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HETERO_LAB_CACHE": f"{scratch}/cache",
        }
        try:
            done = subprocess.run(
                [sys.executable, "-c", _CHILD, *case.command],
                cwd=at, env=environment, capture_output=True, timeout=MOST_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"no end after {MOST_S:.0f} s"
        said = (done.stdout + done.stderr).decode(errors="replace")
        if "Traceback" in said:
            return f"a traceback: {said[-600:]}"
        if done.returncode not in case.codes:
            return f"code {done.returncode}: {said[-600:]}"
        if not done.stderr + done.stdout:
            return "it says nothing"
        for each in said.split("\n"):
            if not each.isprintable() or re.match(r"\s*::", each) or "##[" in each:
                return f"no plain text: {each!r}"
        if (at / "ran").exists():
            return "it ran"
        allowed = ("verify.xml", "peak", "cache", "store", "__pycache__")
        new = {p.relative_to(at) for p in at.rglob("*")} - {p.relative_to(at) for p in before}
        if written := sorted(str(path) for path in new if path.parts[0] not in allowed):
            return f"it wrote {written}"
        if (at / "victim").read_text() != "victim":
            return "it wrote to the victim"
        peak = int((at / "peak").read_text())
        return f"{peak >> 20} MiB" if peak > MOST_BYTES else ""


def main() -> int:
    """Read all cases; print what is wrong, and return how many are."""
    wanted = [case for case in cases() if re.search("".join(sys.argv[1:2]), case.name)]
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        honest(Path(scratch))
        for case in wanted:
            fault = fault_of(case, Path(scratch))
            wrong += bool(fault)
            print(
                f"{'WRONG' if fault else 'ok':<6} {case.name!r} {case.command[0]} {fault}",
                flush=True,
            )
    print(f"{len(wanted)} tampered, {wrong} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
