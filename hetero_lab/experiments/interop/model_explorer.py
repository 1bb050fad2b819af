"""Export for Google's Model Explorer: the graph with its subgraphs, and data of its nodes.

The formats are those of ``ai-edge-model-explorer`` 0.1 (``graph_builder.py`` and
``node_data_builder.py`` there).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hetero_lab.experiments.results.profile.result import Profile
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.tables import make_directory, write_json

GRAPH_FILE, TIMES_FILE = "graph.json", "time_us.json"
_GRADIENT = [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#e69f00"}]


def export_model_explorer(profile: Profile, directory: str | os.PathLike[str]) -> Path:
    """Write a profile for Google's Model Explorer.

    ``graph.json`` has the ops with their devices; each subgraph is a layer, and the boundaries
    are an overlay of edges. ``time_us.json`` is node data: the time of each op by the counters,
    in µs; it is left out of a profile without counters. Open both with
    ``model-explorer graph.json --node_data_paths=time_us.json``.

    Parameters
    ----------
    profile
        The measured placement.
    directory
        Made if it is not there; files of the same names are replaced.

    Returns
    -------
    pathlib.Path
        The directory.

    Raises
    ------
    OutputPathError
        The directory cannot be made or written.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> import tempfile
    >>> measured = hl.profile("digits_inception", "CPU", iterations=20, progress=False)
    >>> with tempfile.TemporaryDirectory() as scratch:
    ...     directory = hl.interop.export_model_explorer(measured, f"{scratch}/explorer")
    ...     sorted(path.name for path in directory.iterdir())
    ['graph.json', 'time_us.json']
    """
    graph_id = profile.graph.name
    graph = {"id": graph_id, "nodes": list(_nodes(profile)), "tasksData": _boundaries(profile)}
    target = make_directory(directory)
    write_json(target / GRAPH_FILE, {"label": profile.label, "graphs": [graph]})
    if profile.counters:
        times: dict[str, float] = {}
        for counter in profile.counters:
            if counter.op:
                times[counter.op] = times.get(counter.op, 0.0) + counter.real_time_us
        results = {op: {"value": time_us} for op, time_us in times.items()}
        data = {"name": "time (µs)", "results": results, "gradient": _GRADIENT}
        write_json(target / TIMES_FILE, {graph_id: data})
    return target


def _nodes(profile: Profile) -> Iterator[dict[str, Any]]:
    graph, affinity = profile.graph, profile.affinity
    subgraph_of = profile.partition.subgraph_of
    devices = [subgraph.device for subgraph in profile.partition.subgraphs]
    shown = {op.index for op in graph if op.index not in graph.constant_side}
    for index in sorted(shown):
        op = graph.ops[index]
        number = subgraph_of.get(op.name)
        layer = "" if number is None else f"subgraph {number} ({devices[number]})"
        yield {
            "id": op.name,
            "label": op.type,
            "namespace": layer,
            "attrs": [
                {"key": "name", "value": op.name},
                {"key": "device", "value": affinity[op.name]},
            ],
            "incomingEdges": [
                {
                    "sourceNodeId": graph.ops[producer].name,
                    "sourceNodeOutputId": str(port),
                    "targetNodeInputId": str(number),
                }
                for number, (producer, port) in enumerate(op.inputs)
                if producer in shown
            ],
            "outputsMetadata": [
                {"id": str(port), "attrs": _tensor(graph, index, port)}
                for port in range(len(op.outputs))
            ],
        }


def _tensor(graph: OpGraph, index: int, port: int) -> list[dict[str, str]]:
    tensor = graph.ops[index].outputs[port]
    shape = "x".join(map(str, tensor.shape)) if tensor.shape else ""
    size = [] if tensor.n_bytes is None else [{"key": "n_bytes", "value": str(tensor.n_bytes)}]
    return [{"key": "tensor_shape", "value": f"{tensor.element_type} {shape}".strip()}, *size]


def _boundaries(profile: Profile) -> dict[str, Any]:
    graph = profile.graph
    home = profile.partition.subgraph_of
    edges = []
    for boundary in profile.partition.boundaries:
        index = graph.index_of.get(boundary.op)
        for use in () if index is None else graph.consumers[index]:
            name = graph.ops[use.index].name
            if home.get(name) in boundary.targets:
                edge = {"sourceNodeId": boundary.op, "targetNodeId": name}
                edges.append({**edge, "label": f"{boundary.n_bytes or 0} B"})
    overlay = {"name": "boundaries", "edgeColor": "#d55e00", "edgeWidth": 3, "edges": edges}
    data = {"type": "edge_overlays", "name": "boundaries", "overlays": [overlay]}
    return {"edgeOverlaysDataListLeftPane": [data]}
