"""Formats of other tools: Model Explorer, Arrow, flat JSON."""

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pyarrow
import pytest
from small_models import chain

import hetero_lab as hl
from hetero_lab.errors import AffinityError, StoredFileError

MODEL = "digits_inception"


@pytest.fixture(scope="module")
def measured() -> hl.types.Profile:
    hl.emulate("OPENACC", unsupported={"Concat", "Softmax"})
    return hl.profile(MODEL, "HETERO:OPENACC,CPU", iterations=10, reference=False, progress=False)


def test_model_explorer_gets_subgraphs_boundaries_and_times(measured, tmp_path):
    hl.interop.export_model_explorer(measured, tmp_path)
    (graph,) = json.loads((tmp_path / "graph.json").read_text())["graphs"]
    nodes = {node["id"]: node for node in graph["nodes"]}
    partition = measured.partition
    for op, number in partition.subgraph_of.items():
        device = partition.subgraphs[number].device
        assert nodes[op]["namespace"] == f"subgraph {number} ({device})"
        assert {"key": "device", "value": device} in nodes[op]["attrs"]
    for node in graph["nodes"]:
        assert all(edge["sourceNodeId"] in nodes for edge in node["incomingEdges"])
    (panes,) = graph["tasksData"].values()
    edges = panes[0]["overlays"][0]["edges"]
    crossing = {(edge["sourceNodeId"], edge["targetNodeId"]) for edge in edges}
    expected = {
        (boundary.op, use)
        for boundary in partition.boundaries
        for use, number in partition.subgraph_of.items()
        if number in boundary.targets
        and boundary.op in {e["sourceNodeId"] for e in nodes[use]["incomingEdges"]}
    }
    assert crossing == expected
    times = json.loads((tmp_path / "time_us.json").read_text())[graph["id"]]["results"]
    total = sum(counter.real_time_us for counter in measured.counters if counter.op)
    assert sum(result["value"] for result in times.values()) == pytest.approx(total)


@pytest.mark.browser
def test_model_explorer_opens_it(measured, tmp_path, browser):
    pytest.importorskip("model_explorer")
    hl.interop.export_model_explorer(measured, tmp_path)
    graph, times = tmp_path / "graph.json", tmp_path / "time_us.json"
    server = subprocess.Popen(
        [
            str(Path(sys.executable).with_name("model-explorer")), str(graph),
            f"--node_data_paths={times}", "--no_open_in_browser", "--port=8097",
        ],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        next(line for line in server.stdout if "http://" in line)
        data = {"models": [{"url": str(graph)}], "nodeData": [str(times)]}
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:8097/?data={quote(json.dumps(data))}")
        page.get_by_text("time (µs)").first.wait_for()
        text = page.inner_text("body")
        assert "Convolution" in text
        assert measured.graph.name in text
    finally:
        server.terminate()
        server.wait()


def test_tables_are_read_through_arrow(measured):
    table = pyarrow.table(measured.tables["boundaries"])
    assert table["n_bytes"].to_pylist() == [b.n_bytes for b in measured.partition.boundaries]


def test_a_flat_affinity_goes_both_ways(measured, tmp_path):
    measured.affinity.to_json(tmp_path / "flat.json", flat=True)
    flat = json.loads((tmp_path / "flat.json").read_text())
    assert set(flat.values()) == {"OPENACC", "CPU"}
    assert hl.Affinity.from_json(tmp_path / "flat.json", MODEL) == measured.affinity
    assert hl.Affinity.from_mapping(MODEL, flat) == measured.affinity


def test_a_flat_affinity_is_whole(tmp_path):
    model = chain("one", "two")
    with pytest.raises(AffinityError, match="leaves out 'two'"):
        hl.Affinity.from_mapping(model, {"one": "CPU"})
    with pytest.raises(AffinityError, match="does not have, 'three'"):
        hl.Affinity.from_mapping(model, {"one": "CPU", "two": "CPU", "three": "CPU"})
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(StoredFileError, match="JSON object that maps op names"):
        hl.Affinity.from_json(tmp_path / "list.json", model)
