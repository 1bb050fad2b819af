"""A deployed directory is held to its contract; each part that breaks is named."""

from __future__ import annotations

import functools
import html
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import PureWindowsPath
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st
from plain_openvino import edit_placement
from random_models import random_affinity, random_model
from small_models import logarithm

import hetero_lab as hl
from hetero_lab.cli.main import main
from hetero_lab.deploy import freeze as freezing, run_frozen, verify as verifying
from hetero_lab.deploy.contract import (
    DRIFT,
    FILE_NAME,
    AccuracyPromise,
    LatencyPromise,
    read_contract,
    write_contract,
)
from hetero_lab.deploy.deployed_run import ObservedRun, observe
from hetero_lab.deploy.freeze import ONE_CORE, freeze_placed, latency_promise, reference_for
from hetero_lab.deploy.verification import (
    OK,
    UNDECIDED,
    UNKNOWN,
    ContractPart,
    Verification,
    latency_status,
    verification_of,
)
from hetero_lab.devices.core import bind
from hetero_lab.errors import (
    ArgumentError,
    HeteroLabWarning,
    MeasurementError,
    StoredFileError,
)
from hetero_lab.fetch import cache_dir
from hetero_lab.intervals import Noise, ratio_of_runs
from hetero_lab.model.read import prepare
from hetero_lab.placement.placement import resolve, with_label
from hetero_lab.runtime.stored_placement import read_stored
from hetero_lab.tables import read_csv
from tests.proof.tampered import sign
from tests.scripts import F32

ANY = 1e6  # a latency that a busy machine cannot break


@pytest.fixture(scope="module", autouse=True)
def at_once():
    """Nothing waits for a quiet machine: other tests run beside these."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (freezing, verifying):
            patch.setattr(module, "wait_until_quiet", lambda _limit_s: None)
        patch.setattr(verifying, "PAUSE_S", 0.0)
        yield


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    hl.emulate("VERACC", unsupported={"Softmax"})
    model = hl.load("digits_inception")
    affinity = hl.Affinity.automatic(model, "HETERO:VERACC,CPU")
    placement = hl.Placement(affinity, "deployed", {"VERACC": F32, "CPU": F32})
    return hl.freeze(model, placement, tmp_path_factory.mktemp("deployed"), tolerance=None)


@pytest.fixture(scope="module")
def promising(tmp_path_factory):
    with warnings.catch_warnings():  # the machine may be busy, and nothing promised
        warnings.simplefilter("ignore", HeteroLabWarning)
        made = hl.freeze("digits_inception", "CPU", tmp_path_factory.mktemp("promising"))
    contract = read_contract(made)
    if not isinstance(contract.latency, LatencyPromise):
        write_contract(made, msgspec.structs.replace(contract, latency=PROMISE))
    return made


@pytest.fixture(scope="module")
def seen(deployed):
    return observe(deployed, turns=3)


@pytest.fixture
def copy(deployed, tmp_path):
    return shutil.copytree(deployed, tmp_path / "copy")


def judge(directory, seen, **changes):
    contract = msgspec.structs.replace(read_contract(directory), **changes)
    return verification_of(directory, contract, read_stored(directory), [seen], (OK, ""))


def test_what_is_untouched_is_kept(promising):
    proven = hl.verify(promising, turns=3, tolerance=ANY)
    assert proven.ok
    # Other tests may run beside it, which leaves the latency undecided.
    assert {part.status for part in proven.parts if part.name != "latency"} == {"ok"}
    assert proven.parts[-1].status in ("ok", "undecided")
    assert proven.changes == ()
    assert "keeps its contract" in str(proven)


def observed(directory):
    """Judge what one process sees: cheaper than to verify until the latency is settled."""
    return judge(directory, observe(directory, turns=3))


def test_properties_saved_into_the_file(deployed, copy):
    placement, file = hl.read_placement(copy), copy / "model.xml"
    model = hl.load(deployed / "model.xml")
    faster = placement.with_properties({"CPU": {"PERFORMANCE_HINT": "THROUGHPUT"}})
    hl.save(model, faster, file)
    assert observed(copy).broken == ("properties",)
    hl.save(model, placement, file)
    assert observed(copy).broken == ()


def test_another_affinity_in_the_file(copy):
    edit_placement(copy, lambda plan: plan["affinity"].update({"head_digit/softmax": "VERACC"}))
    proven = observed(copy)
    # One subgraph instead of two, too.
    assert proven.broken == ("affinity", "partition")
    assert "head_digit/softmax: CPU → VERACC" in str(proven)


def test_a_changed_weight(copy):
    path = copy / "model.bin"
    constants = re.findall(r'offset="(\d+)".*?size="(\d+)"', (copy / "model.xml").read_text())
    offset, size = max(((int(o), int(s)) for o, s in constants), key=lambda found: found[1])
    data = bytearray(path.read_bytes())
    weights = np.frombuffer(data, np.float32, count=size // 4, offset=offset)
    weights *= 1.5
    path.write_bytes(data)
    assert observed(copy).broken == ("model", "outputs")


def test_a_missing_device(copy):
    edit_placement(copy, lambda plan: plan["emulated"].clear())
    proven = hl.verify(copy)
    assert proven.broken == ("properties", "devices", "compile")
    assert "'VERACC' missing" in str(proven)
    statuses = proven.summary.set_index("part")["status"]
    assert statuses["outputs"] == "not checked"
    assert statuses["latency"] == "not promised"


def test_what_a_process_sees_is_compared_part_by_part(deployed, copy, seen):
    other = seen.header.replace('device="CPU"', 'device="VERACC"')
    assert other != seen.header
    proven = judge(deployed, seen, header=other)
    assert proven.broken == ("partition",)
    assert "promised were 2 ('VERACC', 'VERACC')" in str(proven)
    program = (copy / "run.py").read_text()
    (copy / "run.py").write_text("#")
    assert judge(copy, seen).broken == ("model",)
    (copy / "run.py").write_text(program)
    edit_placement(copy, lambda plan: plan["properties"]["DEVICE_PROPERTIES"]["CPU"].clear())
    proven = judge(copy, seen)
    assert proven.broken == ("properties",)
    assert "CPU.INFERENCE_PRECISION_HINT: f32 → not set" in str(proven)
    dead = ObservedRun(step="compile", error="died of SIGSEGV")
    assert judge(deployed, dead).broken == ("compile",)
    elsewhere = msgspec.structs.replace(seen, openvino_version="2031.1", host="elsewhere")
    assert [change.partition(" → ")[2] for change in judge(deployed, elsewhere).changes] == [
        "2031.1",
        "elsewhere",
    ]


PROMISE = LatencyPromise(
    reference_device="CPU", reference_properties={}, ratio=0.5, ratio_ci95_low=0.49,
    ratio_ci95_high=0.51, ratios=(0.49, 0.5, 0.5, 0.51), spread=0.017,
)  # fmt: skip


def timed(worse, n=1, foreign_cpus=0.0):
    """Return runs that are ``worse`` times as slow as PROMISE, a little more or less each."""
    return [
        ObservedRun(
            n_cpus=4,
            turns_us=[[50.0 * worse * (1.0 + 0.01 * (run % 3 - 1) * (n > 1))] * 10] * 3,
            reference_us=[[100.0] * 10] * 3,
            foreign_cpus=foreign_cpus,
        )
        for run in range(n)
    ]


def latency(runs, then: LatencyPromise | str | None = PROMISE, tolerance=None, hardware=""):
    return latency_status(then, runs, tolerance, hardware)


OTHER = {"hardware": "CPUs: 2 → 4"}
BUSY = timed(1.0, 1, foreign_cpus=1.1), timed(2.0, 1, foreign_cpus=1.1)


@pytest.mark.parametrize(
    ("runs", "options", "status", "detail"),
    [
        # Within the tolerance it is kept at once.
        (timed(0.5), {}, "ok", "0.50 times the promise"),
        (timed(1.0), {}, "ok", "1.00 times the promise"),
        (timed(1.01), {}, "ok", "1.01 times the promise"),
        # An alarm is confirmed before it is believed.
        *((timed(1.25, n), {}, "alarm", "") for n in (1, 2, 3)),
        (timed(1.25, 4), {}, "broken", ""),
        # A process that was slow once is no alarm; one as fast as promised is enough to doubt it.
        ([*timed(1.25), *timed(1.0, 2)], {}, "ok", ""),
        ([*timed(1.25, 4), *timed(1.0)], {}, "alarm", ""),
        # What cannot be told ends undecided.
        (timed(1.1, 7), {}, "undecided", "1.10 times is allowed"),
        (timed(1.1, 7), {"tolerance": 0.2}, "ok", ""),
        (timed(1.25, 7), {"tolerance": 0.05}, "broken", ""),
        # A busy machine proves nothing.
        ([*timed(1.0, 6), *BUSY[0]], {}, "undecided", "kept 1.1 of 4 CPUs busy"),
        ([*timed(2.0, 6), *BUSY[1]], {}, "undecided", "kept 1.1 of 4 CPUs busy"),
        # Other hardware can keep a promise, but not break it.
        (timed(1.0), OTHER, "ok", ""),
        (timed(2.0, 4), OTHER, "undecided", "other hardware: CPUs: 2 → 4"),
    ],
)
def test_how_a_latency_is_judged(runs, options, status, detail):
    found = latency(runs, **options)
    assert found[0] == status
    assert detail in found[1]


@pytest.mark.parametrize("drift", [0.0, DRIFT, 0.05])
def test_processes_of_one_time_share_its_drift(drift):
    """Known truth: the interval covers it, what is unchanged is not broken, 25 % is found."""
    rng, covered, found = np.random.default_rng(1), 0, Counter()
    for number in range(200):
        then, now = rng.normal(np.log(0.5), drift, 2)
        before, after = (np.exp(rng.normal(level, 0.01, 4)).tolist() for level in (then, now))
        change = ratio_of_runs(after, before, 0.01, max(drift, DRIFT))
        covered += change.low <= 1.0 <= change.high
        promise = msgspec.structs.replace(
            PROMISE, ratio=float(np.median(before)), ratio_ci95_low=0.1, ratio_ci95_high=1.0,
            ratios=tuple(before), spread=0.01, drift=max(drift, DRIFT),
        )  # fmt: skip
        if number < 100:
            for worse in (1.0, 1.25):
                runs = [timed(worse * ratio / 0.5)[0] for ratio in after]
                found[worse, latency(runs, promise)[0]] += 1
    assert covered / 200 >= 0.92
    assert found[1.0, "broken"] <= 1
    assert drift > DRIFT or found[1.25, "broken"] >= 95


NOISE = Noise(0.002, 0.0, 12)


def test_what_varies_too_much_is_promised_with_a_warning(tmp_path):
    promise = latency_promise(timed(1.0, 4), ("CPU", {}), 0.1, NOISE, 0.0, tmp_path)
    assert isinstance(promise, LatencyPromise)
    assert (promise.drift, promise.tolerance) == (DRIFT, 0.1)
    with pytest.warns(HeteroLabWarning, match="too much for a tolerance of 10%"):
        promise = latency_promise(timed(1.0, 4), ("CPU", {}), 0.1, NOISE, 0.06, tmp_path)
    assert isinstance(promise, LatencyPromise)
    assert promise.drift == 0.06


@pytest.mark.parametrize("busy", [1, 2])
def test_a_busy_machine_is_given_a_second_chance(busy, tmp_path, monkeypatch):
    """The figure of other work is made up: what this machine does meanwhile is not ours to say."""
    calls = []
    observed_once = functools.cache(lambda directory: observe(directory, reference=("CPU", {})))

    def observed_beside(directory, **_more):
        calls.append(1)
        seen = observed_once(directory)
        disturbed = len(calls) <= busy
        return msgspec.structs.replace(seen, foreign_cpus=float(seen.n_cpus * disturbed))

    monkeypatch.setattr(freezing, "observe", observed_beside)
    if busy == 1:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The latency varies too much")
            hl.freeze("digits_inception", "CPU", tmp_path)
        assert len(calls) == 5
        assert isinstance(read_contract(tmp_path).latency, LatencyPromise)
        return
    noisy, quiet = str(tmp_path / "noisy"), str(tmp_path / "noisy-quiet")
    for directory in (noisy, quiet):  # the command leads to the same directory again
        stored = f"{noisy}/model.xml"
        command = f"machine: hetero-lab freeze {stored} {quiet} --affinity {stored}$"
        with pytest.warns(HeteroLabWarning, match=command):
            hl.freeze("digits_inception", "CPU", directory)
        assert len(calls) == 2
        calls.clear()
    told = latency(timed(1.0), read_contract(noisy).latency)
    proven = Verification("deploy", (ContractPart("latency", *told),), (), "2026.4")
    assert "2026.4 (no latency promised: other processes kept" in proven.verdict
    assert proven.is_decided
    chosen = latency(timed(1.0), None)  # as its author chose
    proven = Verification("deploy", (ContractPart("latency", *chosen),), (), "2026.4")
    assert proven.verdict.endswith("keeps its contract with OpenVINO 2026.4 (no latency promised).")


def test_a_reference_that_fails_is_told(tmp_path):
    hl.emulate("VERGONE")
    placed = resolve(bind("digits_inception"), "CPU")
    gone = resolve(placed.bound, "VERGONE").placement
    wrong = gone.with_properties({"VERGONE": {"INFERENCE_NUM_THREADS": "many"}})
    with pytest.warns(HeteroLabWarning, match="No latency is promised: the reference VERGONE"):
        freeze_placed(placed, tmp_path, baseline=wrong)
    assert "the reference VERGONE fails" in str(read_contract(tmp_path).latency)


def test_a_contract_of_an_older_version(deployed, copy):
    old = msgspec.structs.replace(PROMISE, ratios=(), spread=0.0)

    def make_old(data):
        data["latency"] = {**msgspec.to_builtins(old), "median_us": 50.0, "reference_us": 100.0}
        for name in ("ratios", "spread", "drift", "tolerance"):
            del data["latency"][name]

    sign(copy, make_old)
    assert read_contract(copy).latency == old
    assert latency(timed(1.0, 5), old)[0] == "ok"
    # Turns within one process say nothing about the next one.
    told = latency(timed(1.5, 5), old)
    assert told[0] == "undecided"
    assert "deploy again to promise a latency between processes" in told[1]
    exact = msgspec.structs.replace(old, ratio_ci95_low=0.5, ratio_ci95_high=0.5)
    assert latency(timed(1.0), exact)[0] == "ok"
    assert latency(timed(1.5, 5), exact)[0] == "undecided"
    assert latency(timed(1.0), None)[0] == "not promised"


def test_an_affinity_of_one_device_is_that_device(tmp_path):
    whole = hl.Affinity.uniform("digits_inception", "CPU")
    made = hl.freeze("digits_inception", whole, tmp_path, tolerance=None)
    assert read_contract(made).label == "CPU"
    mine = hl.Placement(whole, "mine")  # its author's words, and HETERO, are kept
    made = hl.freeze("digits_inception", mine, tmp_path, tolerance=None)
    assert read_contract(made).label == "mine"
    assert "1 subgraph ('CPU')" in str(hl.verify(made, turns=3))


def test_the_reference_is_another_device_or_one_core(deployed):
    _, properties = ONE_CORE
    one_core = msgspec.structs.replace(PROMISE, reference_properties=dict(properties))
    assert str(one_core).endswith(" of the time in f32 on one core of CPU")
    assert str(PROMISE).endswith(" of the time on CPU")
    model = hl.load("digits_inception")
    alone = hl.Placement(hl.Affinity.uniform(model, "CPU"), "CPU", direct=True)
    split = hl.Placement(hl.Affinity.automatic(model, "HETERO:VERACC,CPU"), "split")
    accelerated = hl.Placement(hl.Affinity.uniform(model, "VERACC"), "acc", direct=True)
    assert reference_for(split, None) == ("CPU", {})
    assert reference_for(split, accelerated) == ("VERACC", {})
    assert reference_for(alone, None)[1]["INFERENCE_NUM_THREADS"] == 1
    assert reference_for(alone, alone) == reference_for(alone, None)
    for wholly in (replace(alone, direct=False), with_label(alone.affinity, "file.json")):
        assert reference_for(wholly, None) == reference_for(alone, None)
    # With other properties it is not the baseline that the user knows.
    assert reference_for(alone.with_properties({"CPU": F32}), alone) == ("CPU", {})


@pytest.mark.slow
def test_beside_busy_processes_the_latency_is_undecided(promising):
    others = [
        subprocess.Popen(  # no child of this process, whose work counts as our own
            ["sh", "-c", '"$0" -c "while True: pass" > /dev/null & echo $!', sys.executable],
            stdout=subprocess.PIPE, text=True,
        )
        for _ in range(os.cpu_count() or 1)
    ]  # fmt: skip
    pids = [int(other.communicate()[0]) for other in others]
    try:
        proven = hl.verify(promising)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    assert proven.ok
    assert not proven.is_decided
    assert proven.undecided == ("latency",)
    assert proven.verdict.startswith("Undecided whether ")
    assert "other processes kept" in proven.verdict


def test_a_report_for_continuous_integration(deployed, copy, tmp_path, capsys):
    one = tmp_path / "one.csv"
    assert main(["verify", str(deployed), "--csv", str(one)]) == 0
    assert list(read_csv(one).columns[:2]) == ["directory", "release"]
    assert "partition   ok" in capsys.readouterr().out  # one directory is told part by part
    (copy / "requests.npz").write_bytes((copy / "inputs.npz").read_bytes())
    report, table = tmp_path / "junit.xml", tmp_path / "table.csv"
    given = [str(deployed), str(copy), "-q"]
    assert main(["verify", *given, "--junit", str(report), "--csv", str(table)]) == 1
    suites = ElementTree.parse(report).getroot().findall("testsuite")
    assert [suite.get("name") for suite in suites] == [str(deployed), str(copy)]
    assert [suite.get("failures") for suite in suites] == ["0", "2"]
    failed = [case.get("name") for case in suites[1] if case.find("failure") is not None]
    assert failed == ["model", "outputs"]
    frame = read_csv(table)
    assert list(frame.columns) == ["directory", "release", "part", "status", "detail"]
    assert list(frame.loc[frame["status"] == "broken", "directory"]) == [str(copy)] * 2
    capsys.readouterr()
    nowhere = str(tmp_path / "nowhere" / "junit.xml")
    assert main(["verify", str(deployed), "--junit", nowhere]) == 2
    assert "nowhere' does not exist" in capsys.readouterr().err
    assert main(["verify", str(deployed), "--across", "openvino==newest"]) == 2


def test_an_undecided_part_fails_only_where_it_is_asked_to(tmp_path):
    part = ContractPart("latency", UNDECIDED, "a \x00 <reason>")
    proven = Verification("deploy", (part,), (), "2026.4")
    undecided = "Undecided whether 'deploy' keeps its contract with OpenVINO 2026.4: latency"
    for text in (proven.verdict, html.unescape(proven._repr_html_())):
        assert undecided in text
    for strict, tag in ((False, "skipped"), (True, "failure")):
        proven.to_junit(tmp_path / "junit.xml", strict=strict)
        case = ElementTree.parse(tmp_path / "junit.xml").getroot()[0][0]
        assert [child.tag for child in case] == [tag]
        assert case[0].get("message") == "undecided: a   <reason>"
        suite = ElementTree.parse(tmp_path / "junit.xml").getroot()[0]
        assert (suite.findtext("system-out") or "").startswith(undecided)
    assert proven.ok
    assert not proven.is_decided
    unchecked = Verification("deploy", (ContractPart("accuracy", UNKNOWN),), (), "2026.4")
    assert (unchecked.ok, unchecked.is_decided) == (True, False)
    with pytest.raises(ArgumentError, match="at least one deployed directory"):
        hl.verify([])


def test_an_accuracy_that_is_not_reached(deployed, copy):
    data = hl.dataset("digits").evaluation[:30]
    metric = hl.dataset("digits").metric
    with pytest.raises(ArgumentError, match="data= needs labels"):
        hl.verify(copy, data=data)
    told = hl.verify(copy, data=data, metric=metric).parts[-1]
    assert (told.name, told.status) == ("accuracy", "ok")
    assert told.detail.endswith("of 30 examples, promised is nothing")
    contract = read_contract(copy)
    write_contract(copy, msgspec.structs.replace(contract, accuracy=AccuracyPromise(
        accuracy=1.0, drop=0.0, n_examples=30)))  # fmt: skip
    wrong = [(inputs, (label + 1) % 10 if n < 2 else label) for n, (inputs, label) in
             enumerate(data)]  # fmt: skip
    proven = hl.verify(copy, data=wrong, metric=metric)
    assert proven.broken == ("accuracy",)
    assert proven.parts[-1].detail.endswith("promised is 100.0% of 30 examples")
    assert hl.verify(copy, data=wrong, metric=metric, max_drop=0.5).ok


def test_a_contract_that_was_edited_or_is_of_a_newer_version(deployed, copy):
    path = copy / FILE_NAME
    path.write_text(path.read_text().replace('"n_requests": 3', '"n_requests": 2'))
    with pytest.raises(StoredFileError, match="was changed after it was written"):
        hl.verify(copy)
    path.write_text("{")
    with pytest.raises(StoredFileError, match="cannot be read as a stored contract"):
        hl.verify(copy)
    shutil.copy(deployed / FILE_NAME, path)
    newer = msgspec.structs.replace(read_contract(copy), schema_version=99)
    write_contract(copy, newer)
    with pytest.raises(StoredFileError, match="schema version 99; this release reads version 1"):
        hl.verify(copy)


def test_what_is_no_deployed_directory(tmp_path, capsys):
    (tmp_path / "file").touch()
    for path, told in (("", "has no contract.json"), ("file", "is a file"), ("no", "not exist")):
        assert main(["verify", str(tmp_path / path)]) == 2
        assert told in capsys.readouterr().err


def test_of_several_one_that_is_refused_or_cannot_be_run_leaves_the_others(
    deployed, copy, promising, tmp_path, capsys, monkeypatch
):
    hook = f"import os, sys\nif {str(copy)!r} in sys.orig_argv: os._exit(3)\n"
    (tmp_path / "sitecustomize.py").write_text(hook)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(MeasurementError):
        hl.verify(copy)
    known = shutil.copytree(deployed, tmp_path / "known")
    (known / "numpy.py").touch()
    unsound = shutil.copytree(promising, tmp_path / "unsound")
    sign(unsound, lambda data: data.update(header="<hetero"))
    report, directories = tmp_path / "junit.xml", map(str, [copy, known, unsound, deployed])
    assert main(["verify", *directories, "--junit", str(report)]) == 2
    suites = ElementTree.parse(report).getroot().findall("testsuite")
    assert [suite.get("errors") for suite in suites] == ["1", "1", "1", "0"]
    assert suites[0][0].find("error") is not None
    said = capsys.readouterr().out
    assert "cannot run" in said
    assert "'numpy.py', which its contract does not know" in said
    assert f"{FILE_NAME}' is not a whole contract" in said


def test_data_are_for_the_release_here(deployed):
    with pytest.raises(ArgumentError, match="not with releases="):
        hl.verify(deployed, **{"releases": ["2026.2"], "data": hl.dataset("digits")})


@pytest.mark.network
def test_the_release_that_changed_it_is_named(tmp_path):
    """Since 2026.3 HETERO breaks cycles between subgraphs in another way."""
    hl.emulate("VERDSP")
    prepared = prepare(random_model(86))
    affinity = random_affinity(prepared.graph, ["VERDSP", "CPU"], 86)
    placement = hl.Placement(affinity, "cyclic", {"VERDSP": F32, "CPU": F32})
    directory = hl.freeze(prepared, placement, tmp_path, tolerance=None)
    releases = ["2026.2.0", "2026.3.1"]
    made = hl.verify(directory, releases=releases, progress=False)
    assert made.verifications[0].broken == ("partition",)
    assert made.verifications[1].ok
    assert made.changed_by == "2026.3.1"
    assert (cache_dir() / "releases" / "openvino-2026.2" / "pyvenv.cfg").is_file()


@pytest.mark.skipif(
    len(getattr(os, "sched_getaffinity", lambda _: ())(0)) < 2, reason="one core, or no choice"
)
def test_the_reference_runs_on_the_core_that_is_free():
    everywhere = os.sched_getaffinity(0)
    busy = {min(everywhere)}

    def infer():
        if os.sched_getaffinity(0) == busy:
            time.sleep(0.02)

    free = run_frozen._free_core(infer, 1e-3, 10.0)
    assert free is not None
    assert {free} != busy
    assert os.sched_getaffinity(0) == everywhere
    # Without time to try, it is nowhere in particular.
    assert run_frozen._free_core(infer, 1.0, 10.0) is None


def test_promised_outputs_without_a_number_prove_nothing(tmp_path):
    with pytest.warns(HeteroLabWarning, match=r"compare in 'logits'.*examples=\.$"):
        hl.freeze(logarithm(2.0), "CPU", tmp_path / "nan", tolerance=None)
    nan = hl.verify(tmp_path / "nan", progress=False)
    assert nan.undecided == ("outputs",)
    assert "3 of 6 promised outputs" in nan.verdict
    assert "generated inputs" in str(nan)
    own = [np.linspace(0, 1, 16, dtype=np.float32).reshape(2, 8)]
    hl.freeze(logarithm(0.5), "CPU", tmp_path / "own", examples=[own], tolerance=None)
    kept = hl.verify(tmp_path / "own", progress=False)
    assert kept.is_decided
    assert "in 1 request\n" in str(kept)


# Paths on another drive, of another machine, out of the directory; names of devices.
OF_WINDOWS = (
    r"C:\x", "C:x", r"\\server\share", r"..\..\x", r"a\..\..\x", "a/x", "x:stream", "x.", "x ",
    "CON", "nul.bin", "Com1",
)  # fmt: skip


@pytest.fixture(scope="module")
def contract(deployed):
    return read_contract(deployed)


@given(st.from_regex(r"[\w.\\/: -]{1,12}", fullmatch=True) | st.sampled_from(OF_WINDOWS))
def test_a_file_of_a_contract_lies_in_its_directory_on_windows_too(contract, name):
    try:
        msgspec.structs.replace(contract, files={name: "0" * 64}).__post_init__()
    except ValueError:
        return
    directory = PureWindowsPath(r"D:\deploy")
    assert (directory / name).parent == directory
    assert name not in OF_WINDOWS


HOSTILE = "x\n::error::owned\x1b[31m##[error]owned"
NO_WIRING = (
    "<hetero><inputs_to_submodels_inputs><pair submodel_idx='7' node_idx='0'/>"
    "</inputs_to_submodels_inputs></hetero>"
)
LATENCY = msgspec.to_builtins(PROMISE)


@pytest.mark.parametrize(
    "changes",
    [
        {"latency": HOSTILE}, {"precision": HOSTILE}, {"devices": {HOSTILE: ""}},
        {"files": {"/dev/zero": "0" * 64}}, {"files": {"..": "0" * 64}}, {"files": {"none": ""}},
        {"emulated": {"VERACC": ["/tmp/e.so", "VERACC_CPU"]}},
        {"properties": {"CACHE_DIR": "written"}},
        {"properties": {"DEVICE_PROPERTIES": [1]}},
        {"properties": {"DEVICE_PROPERTIES": {"CPU": [1]}}},
        {"header": "<hetero"}, {"header": NO_WIRING},
        {"precision": "nope"}, {"precision": ""}, {"label": "\ud800"},
        {"latency": LATENCY | {"reference_properties": {"CACHE_DIR": "written"}}},
        *({"latency": LATENCY | wrong} for wrong in (
            {"spread": -1.0}, {"tolerance": 0.0}, {"ratio_ci95_low": 0.0},
            {"ratio_ci95_high": 0.4}, {"ratios": (0.0,)}, {"drift": -0.1},
        )),
    ],
    ids=lambda changes: next(iter(changes)),
)  # fmt: skip
def test_a_contract_that_is_signed_anew_is_refused_in_plain_text(copy, changes, capsys):
    sign(copy, lambda data: data.update(changes))
    assert main(["verify", str(copy)]) == 2
    said = capsys.readouterr().err
    assert FILE_NAME in said
    assert said.count("\n") == 1
    assert said.rstrip("\n").isprintable()
    assert not re.search(r"(^|\s)::|##\[", said)


def test_names_of_ops_are_plain_text_in_every_report(copy, capsys, tmp_path):
    contract = read_contract(copy)
    write_contract(
        copy, msgspec.structs.replace(contract, affinity={**contract.affinity, HOSTILE: "CPU"})
    )
    report = tmp_path / "junit.xml"
    assert main(["verify", str(copy), "--junit", str(report)]) == 1
    for said in (capsys.readouterr().out, ElementTree.parse(report).getroot().itertext()):
        for line in "".join(said).split("\n"):
            assert line.isprintable()
            assert not re.search(r"^\s*::|##\[", line)
