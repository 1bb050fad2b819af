"""Plans of NPUW, OpenVINO's partitioner for the NPU, which works on a CPU, too.

NPUW divides a model into groups and runs one after another. It says nothing about much that goes
wrong; that is refused here before anything is compiled.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from xml.etree import ElementTree

import numpy as np
from msgspec import structs

from hetero_lab.arguments import checked
from hetero_lab.costs.difference import Difference, Side, compare_placements
from hetero_lab.debug.placed_runs import PlacedRuns
from hetero_lab.devices.core import BoundModel, bind
from hetero_lab.devices.properties import PRECISION_HINT
from hetero_lab.errors import (
    AffinityError,
    ArgumentError,
    CompileError,
    StoredFileError,
    names_at_hand,
    shorten,
    unknown,
    warn,
)
from hetero_lab.lint.context import ERROR, INFO, Finding
from hetero_lab.lint.lint import to_frame
from hetero_lab.model.opgraph import CONSTANT, NOT_OPS, Op, OpGraph, grouped
from hetero_lab.model.read import Source
from hetero_lab.placement.affinity import Affinity, of_type
from hetero_lab.placement.partition import (
    Boundary,
    Partition,
    Subgraph,
    partition_of,
    predict,
    torn_path,
)
from hetero_lab.placement.placement import PlacementLike, resolve
from hetero_lab.result import Framed
from hetero_lab.runtime import counters
from hetero_lab.runtime.compiled import COUNTED
from hetero_lab.runtime.inputs import Inputs, input_arrays
from hetero_lab.runtime.reference import compare_with_reference, lowest_precision
from hetero_lab.tables import frame_of, read_bytes, scratch_directory, write_text

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd

    from hetero_lab.costs.cost_model import CostModel
    from hetero_lab.views.graph_data import GraphData
    from hetero_lab.widgets.tweaker.board_picture import BoardPicture
    from hetero_lab.widgets.tweaker.tweaker_measurement import Attempt
    from hetero_lab.widgets.tweaker.tweaker_state import TweakerState

_DEVICES = ("NPU", "CPU")
_USED = {"NPU_USE_NPUW": "YES", "NPUW_F16IC": "NO"}
_HERE = "CPU"  # where plans are made and proven


@dataclass(frozen=True, eq=False, repr=False)
class NpuwPlan(Framed):
    """The groups that NPUW makes of a model: subgraphs, in the order in which they run.

    ``devices`` are its NPUW_DEVICES; a group avoids those before its own. AffinityError, if NPUW
    could not run it.
    """

    bound: BoundModel
    label: str
    devices: tuple[str, ...]
    groups: tuple[Subgraph, ...]

    def __post_init__(self) -> None:
        if fault := next(_faults(self), ""):
            raise AffinityError(
                f"{self.label} is no plan for {shorten(self.bound.graph.name)}: {fault}. "
                "hetero_lab.interop.npuw(model) makes one."
            )

    @cached_property
    def partition(self) -> Partition:
        """The groups, and the tensors that cross between them."""
        ops = self.bound.graph.ops
        home = {op: group.index for group in self.groups for op in group.ops}
        crossing = grouped(
            (source, home[op.name])
            for op in _divided(self.bound.graph)
            for source in op.inputs
            if home.get(ops[source[0]].name, home[op.name]) != home[op.name]
        )
        boundaries = (
            Boundary(
                tensor=ops[producer].tensor_name(port),
                op=ops[producer].name,
                port=port,
                source=home[ops[producer].name],
                targets=tuple(sorted(set(targets))),
                n_bytes=ops[producer].outputs[port].n_bytes,
            )
            for (producer, port), targets in crossing.items()
        )
        return Partition(self.groups, tuple(boundaries))

    @property
    def affinity(self) -> Affinity:
        """The device of every node."""
        return self._affinity([group.device for group in self.groups])

    @property
    def grouping(self) -> Affinity:
        """The group of every node in place of its device: ``G0``, ``G1``, …"""
        return self._affinity([f"G{group.index}" for group in self.groups])

    def _affinity(self, names: Sequence[str]) -> Affinity:
        home = self.partition.subgraph_of  # a node that no op uses may go anywhere
        return Affinity.from_graph(self.bound.graph, lambda op: names[home.get(op, 0)])

    def __repr__(self) -> str:
        return f"NpuwPlan({self.label!r}, {self.partition!r})"

    def to_frame(self) -> pd.DataFrame:
        """Return one row per group: ``group``, ``device``, ``n_ops``, ``ops``."""
        return self.partition.to_frame().rename(columns={"subgraph": "group"})

    @checked
    def regrouped(self, affinity: Affinity) -> NpuwPlan:
        """Return a plan with a group for each subgraph that HETERO would make of an affinity.

        Its values are groups of this plan (``"G3"``), which keep their device, or ``devices``.
        AffinityError, if it is of another model or names something else.
        """
        graph = self.bound.graph
        device_of = {f"G{g.index}": g.device for g in self.groups} | {d: d for d in self.devices}
        for name in affinity.devices:
            if name not in device_of:
                raise AffinityError(unknown("This plan has no", name, device_of, "Names", 30))
        home = predict(graph, affinity).home
        members = grouped((home[graph.leader[op.index]], op.name) for op in _divided(graph))
        groups = tuple(
            Subgraph(device_of[affinity[ops[0]]], tuple(ops), index)
            for index, (_, ops) in enumerate(sorted(members.items()))
        )
        return replace(self, label=f"{self.label.removesuffix(' edited')} edited", groups=groups)

    @checked
    def difference(self, placement: PlacementLike) -> Difference:
        """Compare a placement under HETERO (before) with this plan (after)."""
        other = resolve(self.bound, placement)
        before = Side(other.label, other.affinity, partition_of(other))
        plan = Side(self.label, self.affinity, self.partition)
        return compare_placements(self.bound.graph, before, plan)

    def lint(self) -> pd.DataFrame:
        """Return what NPUW gets wrong, as :func:`hetero_lab.lint` does, most of it without a word.

        The rules are ``output-read`` and ``convert-apart`` (errors), and ``f16-boundary``.
        """
        graph, home, together = self.bound.graph, self.partition.subgraph_of, "Put them together."
        crossing = {(graph.index_of[b.op], b.port): b for b in self.partition.boundaries}
        findings: list[Finding] = []
        for source in (graph.ops[index].inputs[0] for index in graph.results):
            last, name = graph.ops[source[0]], shorten(graph.ops[source[0]].name)
            if source in crossing:
                what = f"{name} makes an output. Other groups that read it get wrong numbers."
                findings.append(Finding("output-read", ERROR, (last.name,), what, together))
            edge = crossing.get(last.inputs[0]) if last.type == "Convert" else None
            if edge and home[last.name] in edge.targets:
                what = f"{name} converts {shorten(edge.op)} to an output, which NPUW refuses apart."
                findings.append(Finding("convert-apart", ERROR, (last.name,), what, together))
        types = (graph.ops[index].outputs[port].element_type for index, port in crossing)
        wide = [b.op for b, kind in zip(crossing.values(), types, strict=True) if kind == "f32"]
        if wide:
            what = "NPUW rounds these tensors to f16 between groups, unless NPUW_F16IC is NO."
            advice = "It is, in the properties that write(file) returns. Keep it."
            findings.append(Finding("f16-boundary", INFO, tuple(dict.fromkeys(wide)), what, advice))
        return to_frame(findings, priced=False)

    @checked
    def write(self, file: str | os.PathLike[str]) -> dict[str, str]:
        """Write the plan for NPUW; nothing in it says that blocks are repeated.

        Returns the properties for ``core.compile_model(model, "NPU", properties)``. If the file is
        gone by then, NPUW makes a plan of its own without a word.
        """
        root = ElementTree.Element("ensemble", gflops="1")
        parts = ElementTree.SubElement(root, "partitioning")
        for group in self.groups:
            avoid = ",".join(self.devices[: self.devices.index(group.device)])
            part = ElementTree.SubElement(parts, "group", id=str(group.index), gflops="0")
            part.attrib |= {"avoid": avoid} if avoid else {}
            # NPUW itself finds the layers that cross, among those named as inputs and outputs.
            for tag in ("input", "output", "layer"):
                for op in group.ops:
                    ElementTree.SubElement(part, tag, name=op)
        ElementTree.indent(root)
        write_text(file, ElementTree.tostring(root, encoding="unicode"))
        path = str(Path(file).resolve())
        return {**_USED, "NPUW_DEVICES": ",".join(self.devices), "NPUW_PLAN": path}

    @checked
    def check(self, inputs: Inputs | None = None) -> pd.DataFrame:
        """Run the plan on the CPU, see that NPUW obeys it, and compare outputs with one device's.

        Returns one row per output, with ``verdict`` and ``relative_error``. AffinityError, if
        :meth:`lint` has an error; nothing was compiled then. CompileError, if NPUW refused the plan
        or made other groups.
        """
        lint = self.lint()
        for row in lint[lint["severity"] == ERROR].itertuples():
            raise AffinityError(f"{row.finding} {row.advice}")
        arrays = input_arrays(self.bound, inputs)
        groups = tuple(structs.replace(group, device=_HERE) for group in self.groups)
        with scratch_directory() as place:
            properties = replace(self, devices=(_HERE,), groups=groups).write(place / "plan.xml")
            outputs, rows = _run(self.bound, properties, arrays)
        groups_of = grouped((row.node_name, row.subgraph) for row in rows)
        home = self.partition.subgraph_of
        strays = [op for op, group in home.items() if group not in groups_of.get(op, [group])]
        if strays or {row.subgraph for row in rows} != set(range(len(self.groups))):
            raise CompileError(
                f"NPUW did not obey {self.label}: it ran {names_at_hand(strays, 4) or 'its ops'} "
                f"in other groups than the plan's {len(self.groups)}."
            )
        precision = lowest_precision(rows, self.bound.graph, [])
        results = dict(zip(self.bound.output_names, outputs, strict=True))
        agreement = compare_with_reference(self.bound, arrays, results, precision)
        return frame_of([asdict(output) for output in agreement])


def npuw(
    model: Source,
    pipeline: Literal["NONE", "INIT", "JUST", "REG", "REP"] = "REG",
    *,
    avoid: Mapping[str, str] | None = None,
    devices: Sequence[str] | None = None,
    core: ov.Core | None = None,
) -> NpuwPlan:
    """Let NPUW divide a model of static shapes on this machine's CPU, as for an NPU.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    pipeline
        ``"NONE"`` makes one group, ``"INIT"`` one of each op; ``"REP"`` keeps repeated blocks.
    avoid
        Op type → a device that shall not run its groups: ``{"Softmax": "NPU"}``.
    devices
        NPUW_DEVICES, by default ``["NPU", "CPU"]``. They need not be here.

    Raises
    ------
    ArgumentError
        An unknown pipeline, device or op type, or dynamic shapes.
    CompileError
        NPUW refused the model.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> plan = hl.interop.npuw("digits_inception", avoid={"Softmax": "NPU"})
    >>> sorted(plan.affinity.devices)
    ['CPU', 'NPU']
    """
    bound, order, avoid = bind(model, core), tuple(devices or _DEVICES), avoid or {}
    for op_type, device in avoid.items():
        of_type(bound.graph.ops, op_type)
        if device not in order:
            raise ArgumentError(unknown("NPUW never uses", device, order, "Devices"))
    arrays = input_arrays(bound, None)
    with scratch_directory() as place:
        properties = {
            "NPUW_DEVICES": _HERE,
            "NPUW_ONLINE_PIPELINE": pipeline,
            "NPUW_ONLINE_AVOID": ",".join(f"Op:{op}/{device}" for op, device in avoid.items()),
            "NPUW_ONLINE_DUMP_PLAN": str(place / "plan.xml"),
        }
        _run(bound, properties, arrays)
        plan = read_npuw_plan(place / "plan.xml", bound, devices=order, core=core)
    if avoid and set(plan.affinity.devices) == {order[0]}:
        warn(f"The pipeline {pipeline} ignores avoid=.")
    return replace(plan, label=f"NPUW {pipeline}")


def read_npuw_plan(
    file: str | os.PathLike[str],
    model: Source,
    *,
    devices: Sequence[str] | None = None,
    core: ov.Core | None = None,
) -> NpuwPlan:
    """Read a plan of NPUW: a dump of it, or what NPUW_PLAN names.

    Parameters
    ----------
    file
        An XML file.
    model
        The model that it divides: anything that :func:`hetero_lab.load` takes.
    devices
        NPUW_DEVICES, by default ``["NPU", "CPU"]``. They need not be here.

    Raises
    ------
    StoredFileError
        The file is missing or no plan, which NPUW itself ignores.
    AffinityError
        An op is missing, unknown or in two groups, or a group reads from a later one.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> import tempfile
    >>> plan = hl.interop.npuw("digits_inception", "NONE")
    >>> with tempfile.TemporaryDirectory() as scratch:
    ...     properties = plan.write(f"{scratch}/plan.xml")
    ...     hl.interop.read_npuw_plan(f"{scratch}/plan.xml", "digits_inception")
    NpuwPlan('plan.xml', Partition(1 subgraph, 0 boundaries, 0 bytes, predicted))
    """
    bound, order = bind(model, core), tuple(devices or _DEVICES)
    try:
        root = ElementTree.fromstring(read_bytes(file))
    except (OSError, SyntaxError, ValueError, LookupError) as error:
        raise StoredFileError(f"{shorten(str(file))} is no plan of NPUW: {error}.") from error
    if root.find("partitioning") is None:
        raise StoredFileError(f"{shorten(str(file))} is no plan of NPUW: it divides nothing.")
    index_of = bound.graph.index_of
    copied = {op.name for op in bound.graph} - {op.name for op in _divided(bound.graph)}
    groups: list[Subgraph] = []
    for group in root.iterfind("partitioning/group"):
        names = {layer.get("name", ""): None for layer in group.iterfind("layer")}
        ops = sorted(names.keys() - copied, key=lambda op: index_of.get(op, -1))
        avoid = group.get("avoid", "").split(",")
        device = next((device for device in order if device not in avoid), "")
        groups.append(Subgraph(device, tuple(ops), len(groups)))
    if not groups:  # as the pipeline NONE dumps it
        groups.append(Subgraph(order[0], tuple(op.name for op in _divided(bound.graph))))
    return NpuwPlan(bound, Path(file).name, order, tuple(groups))


def _divided(graph: OpGraph) -> Iterator[Op]:
    """Yield the ops that NPUW divides: it copies conversions of stored weights to their users."""
    for op in graph:
        is_weight = op.type == "Convert" and graph.ops[op.inputs[0][0]].type == CONSTANT
        if op.type not in NOT_OPS and not is_weight:
            yield op


def _faults(plan: NpuwPlan) -> Iterator[str]:
    divisible = dict.fromkeys(op.name for op in _divided(plan.bound.graph))
    counts = Counter(op for group in plan.groups for op in group.ops)
    faults = {
        "not in the model": counts.keys() - divisible.keys(),
        "in no group": divisible.keys() - counts.keys(),
        "in several groups": [op for op, n in counts.items() if n > 1],
    }
    sentences = [f"{names_at_hand(sorted(ops), 4)} {what}" for what, ops in faults.items() if ops]
    if sentences:
        yield "; ".join(sentences)
    for group in plan.groups:
        if not group.ops or not group.device:
            yield f"group {group.index} {'avoids every device' if group.ops else 'is empty'}"
    for b in plan.partition.boundaries:
        if b.targets[0] < b.source:
            yield f"group {b.targets[0]} reads {shorten(b.op)} from a later one, {b.source}"
    if torn := torn_path(plan.bound.graph, plan.partition):
        yield f"the state of {names_at_hand(torn, 4)} is in several groups"


def _run(
    bound: BoundModel, properties: Mapping[str, str], arrays: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], tuple[counters.Counter, ...]]:
    """Compile and infer in a process of its own; return the outputs in order and the counters."""
    settings = {**_USED, **properties, **COUNTED, PRECISION_HINT: "f32"}
    with PlacedRuns(resolve(bound, _HERE), arrays, _HERE, isolate=True) as runs:
        return runs.infer(bound.model, "NPU", settings, arrays, ["NPUW"])


def data_of_plan(plan: NpuwPlan) -> GraphData:
    """Return the placement graph of a plan, whose groups are drawn as subgraphs."""
    from hetero_lab.views.graph_data import graph_data, structure
    from hetero_lab.views.theme import squeeze

    graph, what = plan.bound.graph, structure(plan.partition).replace("subgraph", "group")
    title = f"{squeeze(graph.name, 50)}, {squeeze(plan.label, 50)}: {what}"
    return graph_data(graph, plan.affinity, plan.partition, title=title)


def board_of_plan(
    plan: NpuwPlan, _costs: CostModel | None
) -> tuple[TweakerState, BoardPicture, list[Attempt]]:
    """Return a board where the groups and devices of a plan take the place of devices."""
    from hetero_lab.widgets.tweaker.board_picture import BoardPicture, attributes_of
    from hetero_lab.widgets.tweaker.tweaker_state import TweakerState

    graph, names = plan.bound.graph, (*(f"G{g.index}" for g in plan.groups), *plan.devices)
    able = dict.fromkeys(names, frozenset(graph.index_of))
    picture = BoardPicture(graph, names, {}, attributes_of(plan.bound))
    return TweakerState(graph, plan.grouping, able), picture, []
