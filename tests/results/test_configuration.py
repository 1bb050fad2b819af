"""One name for one configuration: which precision each device runs in, wherever a row is named."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from counting_core import core_with_acc
from views.hand_made import small_profile
from widgets.hand_sweeps import measured_row, on_cpu_alone, small_sweep

import hetero_lab as hl
from hetero_lab.results.configuration import configuration
from hetero_lab.results.profile_report import differing
from hetero_lab.tables import html_table, text_table

HINT = "INFERENCE_PRECISION_HINT"
F32, BF16 = {HINT: "f32"}, {HINT: "bf16"}


@pytest.mark.parametrize(
    ("label", "precisions", "properties", "name"),
    [
        ("CPU", {"CPU": "bf16"}, {}, "CPU (bf16, default)"),
        ("CPU", {"CPU": "f32"}, {"CPU": F32}, "CPU (f32)"),
        ("CPU", {"CPU": "f32"}, {"CPU": {"EXECUTION_MODE_HINT": "ACCURACY"}}, "CPU (f32)"),
        ("H", {"GPU": "f16", "CPU": "bf16"}, {}, "H (GPU f16, CPU bf16, default)"),
        ("H", {"GPU": "f32", "CPU": "f32"}, {}, "H (f32, default)"),
        ("H", {"GPU": "f16", "CPU": "f32"}, {"CPU": F32}, "H (GPU f16 by default, CPU f32)"),
        ("H", {"GPU": "f32", "CPU": "f32"}, {"CPU": F32}, "H (f32)"),
        ("H", {"GPU": "f32", "CPU": ""}, {"GPU": F32}, "H (GPU f32)"),
        ("GPU", {"GPU.0": "f32"}, {"GPU": F32}, "GPU (f32)"),
        ("AUTO:GPU,CPU", {"GPU": "f32"}, {"AUTO": F32, "GPU": {}}, "AUTO:GPU,CPU (f32)"),
        # What a label says already is not said twice.
        ("CPU · f32", {"CPU": "f32"}, {"CPU": F32}, "CPU (f32)"),
        ("CPU · f32 · int8", {"CPU": "f32"}, {"CPU": F32}, "CPU · int8 (f32)"),
        # A candidate of an advice has the same name before it is measured.
        ("CPU (f32)", {"CPU": "f32"}, {"CPU": F32}, "CPU (f32)"),
        (f"CPU · CPU.{HINT}=f32, CPU.NUM_STREAMS=2", {"CPU": "f32"}, {"CPU": F32},
         "CPU · CPU.NUM_STREAMS=2 (f32)"),
        ("in f32", {"CPU": "f32"}, {"CPU": F32}, "in f32"),
        ("bf16", {"GPU": "f16"}, {"GPU": {HINT: "f16"}}, "bf16 (f16)"),
        ("candidate 1 (recorded)", {"GPU": "f32"}, {"GPU": F32}, "candidate 1 (recorded, f32)"),
        ("BATCH:GPU(8)", {"GPU": "f16"}, {}, "BATCH:GPU(8) (f16, default)"),
        # Records of older versions have what was asked for, or nothing.
        ("H", {}, {"GPU": F32, "CPU": F32}, "H (f32)"),
        ("H", {}, {"GPU": {}, "CPU": F32}, "H (CPU f32)"),
        ("H", {}, {"GPU": {}, "CPU": {}}, "H"),
    ],
)  # fmt: skip
def test_the_shortest_name_that_is_not_ambiguous(label, precisions, properties, name):
    assert configuration(label, precisions, properties) == name


@pytest.fixture(scope="module")
def core():
    return core_with_acc(unsupported={"Softmax"})


@pytest.fixture(scope="module")
def sweep(core, digits):
    """Measure the CPU as it comes and in f32, and a split with ACC in f32 and the CPU by itself."""
    cpu = hl.Affinity.uniform(digits, "CPU", core=core)
    in_f32 = hl.Placement(cpu, "exact", {"CPU": F32}, direct=True)
    return hl.sweep(
        digits, ["CPU", in_f32, "HETERO:ACC,CPU"], turns=2, isolate=False, progress=False, core=core
    )  # fmt: skip


@pytest.fixture(scope="module")
def names(core, sweep):
    """Return the expected name of each row."""
    default = str(core.get_property("CPU", HINT).get_type_name())
    assert default in ("bf16", "f16", "f32")
    split = "f32" if default == "f32" else f"ACC f32, CPU {default} by default"
    return [f"CPU ({default}, default)", "exact (f32)", f"HETERO:ACC,CPU ({split})"]


def test_rows_and_their_csv_have_the_label_and_the_configuration(sweep, names, tmp_path):
    assert list(sweep.summary["configuration"])[:3] == names
    assert set(sweep.ranking["configuration"]) == set(names)
    sweep.to_csv(tmp_path / "sweep.csv")
    read = pd.read_csv(tmp_path / "sweep.csv")
    assert list(read["configuration"])[:3] == names
    assert list(read["label"])[:3] == ["CPU", "exact", "HETERO:ACC,CPU"]
    assert sweep.profile(names[1]).label == "exact"  # what a table shows names a row, too


def test_tables_for_people_show_the_configuration_instead_of_the_label(sweep, names):
    for shown in (str(sweep), sweep._repr_html_(), html_table(sweep.summary)):
        for name in names:
            assert name in shown
    head = text_table(sweep.summary).splitlines()[0]
    assert head.count("PLACEMENT") == 1
    assert "LABEL" not in head
    assert "RAW" not in head  # a latency has one number and one interval
    assert "LATENCY  [95 %]" in head


def test_sentences_name_the_reference_with_its_precision(sweep, names):
    assert f"ratios to '{names[0]}' (below 1 is faster), latencies on its scale" in str(sweep)
    small = small_profile()
    chosen = replace(small.chosen, precisions={"ACC": "bf16", "CPU": "f32"})
    split = replace(small, chosen=chosen, device_properties={"CPU": F32, "ACC": BF16})
    rows = (measured_row("split", split), measured_row("again", split, 0.5))
    named = "(ACC bf16, CPU f32)"
    verdict = replace(small_sweep(), rows=rows, reference="split").report().splitlines()[0]
    assert verdict.startswith(f"Fastest: 'again {named}', 51.2 µs")
    assert f", 0.500 of the time of 'split {named}' (95 %: " in verdict


def test_figures_and_pages_name_rows_with_their_precision(sweep, names, tmp_path):
    ticks = hl.views.latency_ranking(sweep).layout.yaxis.ticktext
    assert {tick.removesuffix(" ⌂") for tick in ticks} == {*names}
    hovers = [text for t in hl.views.placement_latency(sweep).data for text in t.hovertext]
    assert all(any(f"<b>{name}</b>" in hover for hover in hovers) for name in names)
    profile = sweep.profile("HETERO:ACC,CPU")
    title = hl.views.placement_graph(sweep.profile("exact")).layout.title.text
    assert title.startswith(f"digits_inception on {names[1]}: ")
    hl.views.page([sweep, profile], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for name in names:
        assert page.count(name) > 3


def test_a_profile_and_an_evaluation_say_it_as_well(core, digits, sweep, names, tmp_path):
    sweep.profile("exact").export(tmp_path)
    profile = hl.read_profile(tmp_path)
    assert f"with {names[1]}; " in str(profile)
    assert list(profile.tables["summary"]["configuration"]) == [names[1]]
    found = hl.evaluate(digits, "CPU", hl.dataset("digits").calibration[:2], core=core)
    assert list(found.summary["configuration"]) == [names[0]]
    assert repr(found).startswith(f"Evaluation('{names[0]}'")


def test_a_page_says_which_conditions_differ(tmp_path):
    """Another latency of the same placement, of a profile in another precision and other inputs."""
    small = small_profile(device_properties={"CPU": F32}, inputs_digest="ours")
    row = on_cpu_alone(replace(small, chosen=replace(small.chosen, precisions={"CPU": "f32"})))
    sweep = replace(small_sweep(), rows=(measured_row("CPU", row),), reference="CPU")
    row = sweep.profile("CPU")
    later = replace(row, latency=row.latency.scaled(1e4))
    slow = replace(
        later, device_properties={"CPU": BF16}, inputs_digest="others",
        chosen=replace(row.chosen, precisions={"CPU": "bf16"}),
    )  # fmt: skip
    assert differing(row, row) == ""
    assert differing(replace(slow, inputs_digest=""), row) == "precision, properties"  # older file

    def page(*results) -> str:
        hl.views.page(list(results), tmp_path / "page.html")
        return (tmp_path / "page.html").read_text(encoding="utf-8")

    said = page(slow, sweep)
    assert "CPU (bf16) takes" in said
    assert (
        "What differs: precision, properties, inputs, time and load; not measured in turn" in said
    )
    assert "What differs" not in page(row, sweep)
    assert "What differs: time and load; not measured in turn" in page(later, sweep)
