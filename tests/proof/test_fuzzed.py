"""Changed files end right or in a sentence: some of ``tests.proof.fuzzed``, and what it found."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino as ov
import pytest
from hand_costs import flat_costs
from small_language_models import decoder
from small_models import diamond

import hetero_lab as hl
from hetero_lab.debug.bisection import bisect
from hetero_lab.deploy.deployed_run import profile_frozen
from hetero_lab.devices import releases
from hetero_lab.devices.core import bind
from hetero_lab.errors import (
    AffinityError,
    HeteroLabError,
    HeteroLabWarning,
    InputError,
    StoredFileError,
)
from hetero_lab.fetch import cache_dir
from hetero_lab.intervals import ASSUMED_NOISE
from hetero_lab.model.language import language_model
from hetero_lab.results.environment import noise_here
from tests.plain_openvino import edit_placement
from tests.proof import fuzzed


def edit(file: Path, change: Callable[[Any], object]) -> None:
    """Change a JSON file as with an editor."""
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def sentence(kind: type[HeteroLabError], name: str, call: Callable[[], object]) -> str:
    """Return the message of an error, one sentence that names a file."""
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert name in message
    assert message.isprintable()
    assert len(message) < 1000
    return message


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -(10**400), 2**63])
def test_a_number_that_was_never_stored_is_refused(number, good: SimpleNamespace, tmp_path):
    good.profile.export(tmp_path)
    edit(tmp_path / "profile.json", lambda data: data["turns_us"][0].__setitem__(0, number))
    said = sentence(StoredFileError, "profile.json", lambda: hl.read_profile(tmp_path))
    assert "is no number that was stored" in said


def test_what_the_runtime_says_of_a_broken_model_is_one_sentence(tmp_path, good: SimpleNamespace):
    file = hl.save(good.model, "CPU", tmp_path / "placed.xml", core=good.core)
    file.write_text(file.read_text().replace("</layers>", "", 1))
    sentence(HeteroLabError, "placed.xml", lambda: hl.read_placement(file))


def test_a_placement_that_contradicts_itself_is_said_of_the_file(tmp_path, good: SimpleNamespace):
    file = hl.save(good.model, "HETERO:ACC,CPU", tmp_path / "placed.xml", core=good.core)
    edit_placement(file, lambda placed: placed.update(target="CPU"))
    sentence(StoredFileError, "placed.xml", lambda: hl.read_placement(file))


def test_a_report_is_plain_text(good: SimpleNamespace, tmp_path):
    good.profile.export(tmp_path)
    edit(tmp_path / "profile.json", lambda data: data.update(few_subgraphs="x\r\x1b[2J"))
    said = hl.read_profile(tmp_path).report()
    assert all(line.isprintable() for line in said.split("\n"))


def test_a_frozen_model_whose_ops_were_renamed_is_refused(tmp_path, good: SimpleNamespace):
    hl.freeze(good.model, good.affinity, tmp_path, core=good.core, tolerance=None)
    (tmp_path / "model.xml").write_text(
        (tmp_path / "model.xml").read_text().replace('name="left"', 'name="other"')
    )
    sentence(
        StoredFileError, tmp_path.name,
        lambda: profile_frozen(bind(good.model, good.core), tmp_path),
    )  # fmt: skip


def test_an_affinity_of_another_model_names_its_file(tmp_path, good: SimpleNamespace):
    for flat in (True, False):
        good.affinity.to_json(tmp_path / "a.json", flat=flat)
        part = "nodes" if not flat else None
        edit(tmp_path / "a.json", lambda data, part=part: (data[part] if part else data).pop(
            0 if part else next(iter(data))))  # fmt: skip
        kinds = AffinityError if flat else HeteroLabError
        sentence(kinds, "a.json", lambda: hl.Affinity.from_json(tmp_path / "a.json", good.model))


def test_inputs_that_do_not_fit_name_their_file(tmp_path, good: SimpleNamespace):
    np.savez(tmp_path / "other.npz", nothing=np.zeros(3))
    said = sentence(InputError, "other.npz", lambda: good.compiled(tmp_path / "other.npz"))
    assert "no input" in said


def test_an_array_with_a_garbled_header_is_refused(tmp_path, good: SimpleNamespace):
    np.save(tmp_path / "x.npy", np.zeros(3))
    content = (tmp_path / "x.npy").read_bytes()
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", content.replace(b"(3,), }", b"(3((((("))
    sentence(InputError, "x.npz", lambda: good.compiled(tmp_path / "x.npz"))


@pytest.mark.parametrize("change", [{"relative": 10**400}, {"absolute_us": "x"}, {"host": []}])
def test_noise_that_is_none_is_assumed(change, tmp_path, monkeypatch, good: SimpleNamespace):
    monkeypatch.setenv("HETERO_LAB_CACHE", str(tmp_path))
    row = {
        "host": "", "n_cpus": 1, "openvino_version": "", "device": "", "properties": "",
        "relative": 0.1, "absolute_us": 1.0, "n_compiles": 9, "measured_at": "", **change,
    }  # fmt: skip
    stored = {"kind": "noise", "schema_version": 1, "measured": [row]}
    (tmp_path / "noise.json").write_text(json.dumps(stored))
    with pytest.warns(HeteroLabWarning, match="noise.json cannot be read"):
        assert noise_here(["CPU"], good.core) == ASSUMED_NOISE


@pytest.mark.parametrize("value", ["Infinity", "1e999", "[]", '"x"', "[" * 20_000])
def test_a_context_that_is_no_number_is_not_known(value, tmp_path):
    ov.save_model(decoder(1), tmp_path / "openvino_model.xml")
    (tmp_path / "config.json").write_text(f'{{"max_position_embeddings": {value}')
    assert language_model(hl.load(tmp_path)).context_tokens is None


@pytest.mark.parametrize("stored", ["[]", '{"2026.1.0": 1}', '{"2026.1.0": ["a", 2]}', "\ud800"])
def test_answers_of_releases_that_are_none_are_refused(stored, tmp_path, monkeypatch):
    monkeypatch.setenv("HETERO_LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(releases, "known_releases", lambda: ["2026.1.0", "2026.2.0"])
    script = tmp_path / "script.py"
    script.write_text("")
    kept = cache_dir() / "releases"
    monkeypatch.setattr("hetero_lab.debug.bisection._read_script", lambda _: (script, "name"))
    kept.mkdir(parents=True)
    (kept / "name.json").write_bytes(stored.encode("utf-8", "surrogatepass"))
    call = lambda: bisect(script, between=("2026.1.0", "2026.2.0"), progress=False)  # noqa: E731
    sentence(StoredFileError, "name.json", call)


@pytest.mark.skipif(os.name != "posix", reason="links to devices")
def test_a_plan_of_npuw_is_a_file(tmp_path, good: SimpleNamespace):
    (tmp_path / "plan.xml").symlink_to("/dev/zero")
    said = sentence(
        StoredFileError, "plan.xml",
        lambda: hl.interop.read_npuw_plan(tmp_path / "plan.xml", good.model, core=good.core),
    )  # fmt: skip
    assert "no regular file" in said


def test_a_recording_without_its_reference_is_refused(tmp_path, good: SimpleNamespace):
    hl.sweep(
        diamond(), ["CPU"], turns=2, counters=False, isolate=False, progress=False, core=good.core,
        store=tmp_path / "sweep",
    )  # fmt: skip
    (tmp_path / "sweep" / "records.jsonl").write_text("")
    flat_costs(good.compiled.prepared.graph).to_json(tmp_path / "sweep" / "costs.json")
    read = lambda: hl.interop.read_recording(tmp_path / "sweep")  # noqa: E731
    assert "was not measured" in sentence(StoredFileError, "sweep", read)


def test_a_report_with_a_share_of_an_inference_is_refused(tmp_path):
    results = {"total number of iterations": "7.29", "throughput": "3.0"}
    report = {"cmd_options": {}, "configuration_setup": {}, "execution_results": results}
    (tmp_path / "benchmark_report.json").write_text(json.dumps(report))
    read = lambda: hl.interop.read_benchmark_app(tmp_path)  # noqa: E731
    sentence(StoredFileError, tmp_path.name, read)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="reads /proc, runs a process in a session")
@pytest.mark.timeout(600)
def test_changed_files_end_right_or_in_a_sentence(tmp_path, monkeypatch, capsys):
    arguments = ["fuzzed", "--files", "120", "--seed", "7", "--jobs", "1"]
    monkeypatch.setattr("sys.argv", arguments)
    assert fuzzed.main() == 0, capsys.readouterr().out
