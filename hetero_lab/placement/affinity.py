"""Affinity: the device of every node of a model, total by construction.

Constants, parameters and results follow the ops that use or make them, and the ops of a
stateful path stay together, because HETERO cannot cut there.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from hetero_lab.arguments import checked
from hetero_lab.devices.core import BoundModel, bind, shared_core
from hetero_lab.devices.devices import check_device, supported_ops, unsupported_message
from hetero_lab.errors import (
    AffinityError,
    DeviceError,
    StoredFileError,
    did_you_mean,
    names_at_hand,
    shorten,
    unknown,
)
from hetero_lab.model.blocks import device_by_block, find_blocks
from hetero_lab.model.opgraph import NOT_OPS, Op, OpGraph, grouped
from hetero_lab.model.read import Source, prepare
from hetero_lab.placement.priorities import Priorities
from hetero_lab.result import Framed
from hetero_lab.tables import (
    SCHEMA_VERSION,
    check_values,
    frame_of,
    load_json,
    read_csv,
    read_json,
    reading,
    write_csv,
    write_json,
)
from hetero_lab.terminal import first_of

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd

_COLUMNS = ["node", "type", "device", "leader"]
_MIN_SHARE = 0.5  # of a variant's ops must be known; with fewer, it counts as another model
_QUANTIZER_TYPES = frozenset(["FakeQuantize", "Convert", "Multiply", "Subtract"])


@dataclass(frozen=True, slots=True)
class Node:
    """A node of an affinity; ``leader`` is the node that decides its device."""

    name: str
    type: str
    leader: str


N = TypeVar("N", Node, Op)


class Affinity(Framed, Mapping[str, str]):
    """The device of every node of a model: an immutable mapping name → device.

    Two affinities are equal if they give every node the same device. Make one with
    :meth:`automatic`, :meth:`uniform` or :meth:`from_json`, change it with :meth:`fix`.
    """

    __slots__ = ("_devices", "_hash", "_nodes")

    def __init__(self, nodes: Sequence[Node], devices: Mapping[str, str]):
        """Build from nodes and the device of each leader."""
        self._nodes = tuple(nodes)
        self._devices = {node.name: devices[node.leader] for node in self._nodes}
        self._hash: int | None = None

    @classmethod
    @checked
    def automatic(
        cls,
        model: Source,
        priorities: str | Sequence[str],
        *,
        core: ov.Core | None = None,
    ) -> Affinity:
        """Put each op on the first device that supports it, as HETERO's automatic mode does.

        It is written out for every node, because the runtime's own automatic mode swaps inputs
        and outputs of some models.

        Raises
        ------
        DeviceError
            A device is not here, or no device of the list supports some op.

        Examples
        --------
        >>> import hetero_lab as hl
        >>> model = hl.load("digits_inception")
        >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
        >>> hl.Affinity.automatic(model, "HETERO:ACC,CPU")
        Affinity(92 ops; ACC: 91, CPU: 1)
        """
        bound = bind(model, core)
        return greedy(bound, Priorities.parse(priorities, bound.core).devices)

    @classmethod
    @checked
    def uniform(cls, model: Source, device: str, *, core: ov.Core | None = None) -> Affinity:
        """Put every node on one device.

        Raises
        ------
        DeviceError
            The device is not here. (Whether it supports every op is checked when it is used.)

        Examples
        --------
        >>> import hetero_lab as hl
        >>> model = hl.load("digits_inception")
        >>> hl.Affinity.uniform(model, "CPU")
        Affinity(92 ops; CPU: 92)
        """
        check_device(device, core or shared_core())
        return cls.on_one(prepare(model).graph, device)

    @classmethod
    @checked
    def by_block(
        cls,
        model: Source,
        devices: Mapping[Any, str],
        *,
        core: ov.Core | None = None,
    ) -> Affinity:
        """Place the repeated layers of a model: see :func:`hetero_lab.blocks`.

        Parameters
        ----------
        model
            Anything that :func:`hetero_lab.load` takes.
        devices
            Device by block (``3`` or ``"3"``) or range of blocks (``"0-14"``, both ends included).
            Ops before the first block go with it, and ops after the last block with that one,
            unless ``"before"`` and ``"after"`` say otherwise.

        Raises
        ------
        AffinityError
            The model has no repeated layers, a key is not a range of its blocks, two ranges
            overlap, or a block is left out.
        DeviceError
            A device is not here. (Whether it supports every op is checked when it is used.)

        Examples
        --------
        >>> import hetero_lab as hl
        >>> model = hl.load("digits_inception")
        >>> acc = hl.emulate("ACC")
        >>> hl.Affinity.by_block(model, {0: "ACC", 1: "CPU", "before": "CPU"})
        Affinity(92 ops; CPU: 73, ACC: 19)
        """
        graph = prepare(model).graph
        blocks = find_blocks(graph)
        by_block = device_by_block(blocks, graph.name, devices)
        core = core or shared_core()
        for device in dict.fromkeys(by_block):
            check_device(device, core)
        index_of = graph.index_of
        return cls.from_graph(graph, lambda name: by_block[blocks.of_op[index_of[name]] + 1])

    @classmethod
    @checked
    def of(cls, model: Source) -> Affinity:
        """Take the labels of a model's ops, ``rt_info["affinity"]``, which HETERO obeys.

        Raises
        ------
        AffinityError
            An op has no label, or those of a stateful path differ.
        """
        prepared = prepare(model)
        return cls.from_mapping(prepared.model, labels_of(prepared.model))

    @classmethod
    @checked
    def from_mapping(cls, model: Source, devices: Mapping[str, str]) -> Affinity:
        """Build from the device of every op, as a ``dict`` or flat JSON gives it.

        Raises
        ------
        AffinityError
            Ops of the model are left out, unknown ops are named, or a stateful path is put on
            several devices.
        """
        graph = prepare(model).graph
        ops = [graph.ops[index].name for index in graph.placeable]
        left_out = [name for name in ops if name not in devices]
        if wrong := left_out or [name for name in devices if name not in graph.index_of]:
            what = "leaves out" if left_out else "names, but the model does not have,"
            raise AffinityError(
                f"The mapping {what} {names_at_hand(wrong)}. It has to name the device of each of "
                f"the {len(ops)} ops."
            )
        # No op decides for an input or a constant that is an output itself: any device will do.
        otherwise = next(iter(devices.values()), "CPU")
        affinity = cls.from_graph(graph, lambda name: devices.get(name, otherwise))
        parted = [name for name in ops if affinity[name] != devices[name]]
        if parted:
            raise AffinityError(
                f"{names_at_hand(parted)} cannot be on another device than the rest of the "
                "stateful path."
            )
        return affinity

    @classmethod
    def on_one(cls, graph: OpGraph, device: str) -> Affinity:
        """Put every node of a graph on one device; nothing is checked."""
        return cls.from_graph(graph, lambda _name: device)

    @classmethod
    def from_graph(cls, graph: OpGraph, device_of: Any) -> Affinity:
        """Build from a graph and a function (or mapping) from a leader's name to a device."""
        get = device_of.__getitem__ if isinstance(device_of, Mapping) else device_of
        leaders = [graph.ops[index].name for index in dict.fromkeys(graph.leader)]
        return cls(_nodes(graph), {name: get(name) for name in leaders})

    def __getitem__(self, name: str) -> str:
        return self._devices[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._devices)

    def __len__(self) -> int:
        return len(self._devices)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Affinity) and self._devices == other._devices

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._devices.items()))
        return self._hash

    def __repr__(self) -> str:
        counts = ", ".join(f"{device}: {n}" for device, n in self.counts().items())
        return f"Affinity({len(self.ops)} ops; {counts})"

    def _front_tables(self) -> Mapping[str, pd.DataFrame]:
        types = {node.name: node.type for node in self._nodes}
        rows = []
        for device, ops in grouped((self[op], op) for op in self.ops).items():
            kinds = Counter(types[op] for op in ops).most_common()
            listed = first_of([f"{n} {kind}" for kind, n in kinds], 8, "types")
            rows.append((device, len(ops), listed))
        return {"": frame_of(rows, ["device", "n_ops", "types"])}

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node with the node that decides its device."""
        return self._nodes

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of the ops whose device can be chosen, in topological order."""
        leads = {node.name for node in self._nodes if node.type not in NOT_OPS}
        return tuple(node.name for node in self._nodes if {node.name, node.leader} <= leads)

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that are used, in order of first use."""
        return tuple(dict.fromkeys(self._devices.values()))

    def counts(self) -> dict[str, int]:
        """Return how many ops each device has."""
        return dict(Counter(self._devices[name] for name in self.ops))

    @checked
    def fix(
        self,
        ops: Mapping[str, str] | None = None,
        types: Mapping[str, str] | None = None,
        patterns: Mapping[str, str] | None = None,
        subgraphs: Mapping[Any, str] | None = None,
        *,
        core: ov.Core | None = None,
    ) -> Affinity:
        """Return this affinity with some ops on other devices.

        Parameters
        ----------
        ops, types, patterns, subgraphs
            Mappings to a device: of op names, of op types, of regular expressions
            (``re.search`` in the op's name), and of subgraphs of a :class:`Partition`. Names
            win over patterns, patterns over types, types over subgraphs; among patterns the
            later one wins. A constant, parameter or result is accepted and changes nothing; an
            op of a stateful path moves the whole path.

        Raises
        ------
        AffinityError
            A fix matches no op, a pattern is not a regular expression, or two fixes pull one
            stateful path apart.
        DeviceError
            A device that is not here.

        Examples
        --------
        >>> import hetero_lab as hl
        >>> model = hl.load("digits_inception")
        >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
        >>> automatic = hl.Affinity.automatic(model, "HETERO:ACC,CPU")
        >>> fixed = automatic.fix(types={"MatMul": "CPU"}, patterns={"^head_digit/": "CPU"})
        >>> fixed.diff(automatic)
                           op before after
        0  head_parity/matmul    ACC   CPU
        1   head_digit/matmul    ACC   CPU
        2     head_digit/bias    ACC   CPU
        """
        ops, types, patterns, subgraphs = (
            {} if fixes is None else fixes for fixes in (ops, types, patterns, subgraphs)
        )
        levels = [
            self._by_subgraph(subgraphs),
            ((of_type(self._nodes, name), device) for name, device in types.items()),
            ((of_pattern(self._nodes, text), device) for text, device in patterns.items()),
            self._by_name(ops),
        ]
        free, here = set(self.ops), set(self.devices)
        devices = {node.leader: self._devices[node.leader] for node in self._nodes}
        for level in levels:
            decided: dict[str, tuple[str, str]] = {}
            for nodes, device in level:
                if device not in here:  # a plan for another machine may use devices missing here
                    check_device(device, core or shared_core())
                for node in nodes:
                    if node.name not in free:
                        continue
                    by, before = decided.get(node.leader, (node.name, device))
                    if by != node.name and before != device:
                        raise AffinityError(
                            f"{shorten(by)} and {shorten(node.name)} belong to one stateful path "
                            f"and cannot be on {before} and {device}. Fix one of them."
                        )
                    decided[node.leader] = (node.name, device)
            devices.update({leader: device for leader, (_, device) in decided.items()})
        return Affinity(self._nodes, devices)

    @checked
    def carried_to(self, variant: Source) -> Affinity:
        """Return the same placement for a variant of the model, for instance a quantised one.

        Ops keep their device by name; a new one goes with the op that uses it.

        Raises
        ------
        AffinityError
            Fewer than half of the variant's ops are known here: it belongs to another model.
        """
        return self.onto(prepare(variant).graph)

    def onto(self, graph: OpGraph) -> Affinity:
        """Do as :meth:`carried_to`, given the graph of a variant.

        A new op goes where its output is used first, so that a FakeQuantize stays with the op that
        it lets run in int8. If no known op uses its output, it goes with its inputs.
        """
        devices, placeable = self._devices, graph.placeable
        same = [index for index in placeable if graph.ops[index].name in devices]
        device_of = {index: devices[graph.ops[index].name] for index in same}
        # Quantisers are new in every quantised variant, so they say nothing about its identity.
        old = [i for i in placeable if i in device_of or graph.ops[i].type not in _QUANTIZER_TYPES]
        if len(same) < _MIN_SHARE * len(old) or not same:
            missing = names_at_hand([graph.ops[i].name for i in old if i not in device_of], 3)
            raise AffinityError(
                f"This affinity belongs to another model: it knows {len(same)} of {len(old)} ops, "
                f"not {missing}. Make one with hetero_lab.Affinity.automatic(model, 'HETERO:…')."
            )
        for index in reversed(placeable):
            users = [use.index for use in graph.consumers[index] if use.index in device_of]
            if index not in device_of and users:
                device_of[index] = device_of[users[0]]
        anywhere = device_of[same[0]]
        for index in placeable:
            above = [producer for producer, _ in graph.ops[index].inputs if producer in device_of]
            device_of.setdefault(index, device_of[above[0]] if above else anywhere)
        leaders = dict.fromkeys(graph.leader)
        by_name = {graph.ops[i].name: device_of.get(i, anywhere) for i in leaders}
        return Affinity.from_graph(graph, by_name)

    @checked
    def diff(self, before: Affinity) -> pd.DataFrame:
        """List the ops on another device than in ``before``: ``op``, ``before``, ``after``."""
        self._check_names(before)
        rows = [(name, before[name], self[name]) for name in self.ops if before[name] != self[name]]
        return frame_of(rows, ["op", "before", "after"]).astype("str")

    def check_model(self, graph: OpGraph) -> None:
        """Raise AffinityError unless this affinity names exactly the nodes of ``graph``."""
        self._check_names(graph.index_of)

    def _check_names(self, expected: Mapping[str, Any]) -> None:
        if self._devices.keys() == expected.keys():
            return
        foreign = sorted(self._devices.keys() - expected.keys())
        lacking = sorted(expected.keys() - self._devices.keys())

        def few(names: list[str]) -> str:
            return f" ({names_at_hand(names, 3)})" if names else ""

        raise AffinityError(
            f"This affinity belongs to another model: {len(foreign)} of its nodes are not in the "
            f"model{few(foreign)}, {len(lacking)} of the model's are not in it{few(lacking)}. "
            "Make one with hetero_lab.Affinity.automatic(model, 'HETERO:…')."
        )

    def to_frame(self) -> pd.DataFrame:
        """Return one row per node: ``node``, ``type``, ``device``, ``leader``."""
        return frame_of(self._rows(), _COLUMNS).astype("str")

    def _rows(self) -> list[list[str]]:
        return [[n.name, n.type, self._devices[n.name], n.leader] for n in self._nodes]

    @checked
    def to_json(self, file: str | os.PathLike[str], *, flat: bool = False) -> None:
        """Write a JSON file, whole or not at all; ``flat`` writes just ``{"op": "device"}``.

        Other tools read and write the flat form, which has inputs only where no op decides. It
        lacks the types and leaders of the nodes, so reading it takes the model.
        """
        if flat:
            written = {*self.ops, *(node.leader for node in self._nodes)}
            write_json(file, {name: d for name, d in self._devices.items() if name in written})
            return
        stored = {"kind": "affinity", "schema_version": SCHEMA_VERSION, "nodes": self._rows()}
        write_json(file, stored)

    @classmethod
    @checked
    def from_json(cls, file: str | os.PathLike[str], model: Source | None = None) -> Affinity:
        """Read a file of :meth:`to_json`; the flat form needs the model that it belongs to.

        Raises
        ------
        StoredFileError
            The file is missing or is not an affinity.
        AffinityError
            The file leaves out ops of the model, or names others.
        """
        name = shorten(os.fspath(file))
        data = load_json(file, f"{name} cannot be read as a stored affinity")
        try:
            return cls._from_data(data, file, model)
        except AffinityError as error:
            raise AffinityError(f"{name}: {error}") from error

    @classmethod
    def _from_data(cls, data: Any, file: str | os.PathLike[str], model: Source | None) -> Affinity:
        name = shorten(os.fspath(file))
        if isinstance(data, dict) and data.get("kind") == "affinity":
            affinity = cls._from_rows(read_json(file, kind="affinity").get("nodes"), file)
            if model is not None:
                affinity.check_model(prepare(model).graph)
            return affinity
        is_flat = isinstance(data, dict) and all(isinstance(d, str) for d in data.values())
        if not data or not is_flat:
            raise StoredFileError(
                f"{name} is not a stored affinity: neither a file of Affinity.to_json nor a JSON "
                "object that maps op names to devices."
            )
        if model is None:
            raise StoredFileError(
                f"{name} is a flat affinity, which needs its model: from_json(file, model)."
            )
        with reading(file, "affinity"):
            check_values(data)
        return cls.from_mapping(model, data)

    @checked
    def to_csv(self, file: str | os.PathLike[str]) -> None:
        """Write a CSV file with one row per node, whole or not at all."""
        write_csv(file, self.to_frame())

    @classmethod
    @checked
    def from_csv(cls, file: str | os.PathLike[str]) -> Affinity:
        """Read a file of :meth:`to_csv`, perhaps edited in a spreadsheet.

        Raises
        ------
        StoredFileError
            The file is missing or is not an affinity.
        """
        frame = read_csv(file)
        missing = set(_COLUMNS) - set(frame.columns)
        if missing:
            raise StoredFileError(
                f"{shorten(os.fspath(file))} is not an affinity: it has no column "
                f"{names_at_hand(sorted(missing))}."
            )
        return cls._from_rows(frame[_COLUMNS].astype("str").to_numpy().tolist(), file)

    @classmethod
    def _from_rows(cls, rows: Any, file: str | os.PathLike[str]) -> Affinity:
        bad = f"{shorten(os.fspath(file))} is not a whole affinity"
        if not isinstance(rows, list) or not rows:
            raise StoredFileError(f"{bad}: it lists no node.")
        devices: dict[str, str] = {}
        nodes: list[Node] = []
        for row in rows:
            right = isinstance(row, list) and len(row) == 4
            if not right or not all(isinstance(cell, str) and cell for cell in row):
                raise StoredFileError(f"{bad}: {shorten(json.dumps(row)[:200])} is not a node.")
            name, op_type, device, leader = row
            if name in devices:
                raise StoredFileError(f"{bad}: node {shorten(name)} is there twice.")
            devices[name] = device
            nodes.append(Node(name, op_type, leader))
        for node in nodes:
            if node.leader not in devices:
                raise StoredFileError(f"{bad}: {shorten(node.leader)} is missing.")
        # A leader decides for its followers, so an op that was moved without its leader is an error
        # and not a wish that is silently dropped. Constants and inputs follow without complaint.
        for node in nodes:
            if node.type not in NOT_OPS and devices[node.name] != devices[node.leader]:
                raise StoredFileError(
                    f"{bad}: {shorten(node.name)} is on {devices[node.name]}, but goes with "
                    f"{shorten(node.leader)} on {devices[node.leader]}. Give both one device."
                )
        return cls(nodes, devices)

    def _by_name(self, ops: Mapping[str, str]) -> Iterator[tuple[list[Node], str]]:
        nodes = {node.name: node for node in self._nodes}
        for name, device in ops.items():
            if name not in nodes:
                meant = did_you_mean(str(name), self.ops)
                if any(node.type == name for node in self._nodes):
                    meant = f" For an op type, types={{{shorten(name)}: {shorten(str(device))}}}."
                raise AffinityError(
                    f"No op is called {shorten(str(name))}.{meant} Ops: {names_at_hand(self.ops)}."
                )
            yield [nodes[name]], device

    def _by_subgraph(self, subgraphs: Mapping[Any, str]) -> Iterator[tuple[list[Node], str]]:
        for subgraph, device in subgraphs.items():
            if not hasattr(subgraph, "ops"):
                raise AffinityError(
                    "subgraphs= takes subgraphs of a partition: "
                    "fix(subgraphs={hl.partition(model, affinity).subgraphs[0]: 'CPU'})."
                )
            yield from self._by_name(dict.fromkeys(subgraph.ops, device))


def labels_of(model: ov.Model) -> dict[str, str]:
    """Return the device that each labelled node of a model names."""
    infos = ((node.get_friendly_name(), node.get_rt_info()) for node in model.get_ordered_ops())
    return {name: info["affinity"].astype(str) for name, info in infos if "affinity" in info}


def of_type(nodes: Collection[N], op_type: str) -> list[N]:
    """Return the nodes of a type; AffinityError if there is none."""
    matches = [node for node in nodes if node.type == op_type]
    if not matches:
        here = sorted({node.type for node in nodes})
        raise AffinityError(unknown("No op has the type", op_type, here, "Types", 40))
    return matches


def of_pattern(nodes: Collection[N], pattern: str) -> list[N]:
    """Return the nodes in whose name a regular expression is found; AffinityError if in none."""
    try:
        search = re.compile(pattern).search
    except (re.error, TypeError) as error:
        message = f"{shorten(str(pattern))} is not a regular expression: {error}."
        raise AffinityError(message) from error
    matches = [node for node in nodes if search(node.name)]
    if not matches:
        ops = names_at_hand(node.name for node in nodes if node.type not in NOT_OPS)
        raise AffinityError(f"The pattern {shorten(pattern)} matches no op. Ops: {ops}.")
    return matches


def greedy(bound: BoundModel, order: Sequence[str]) -> Affinity:
    """Put each op on the first device of an order that supports it; see :func:`first_able`."""
    return first_able(bound.graph, {device: supported_ops(bound, device) for device in order})


def first_able(graph: OpGraph, supported: Mapping[str, Collection[str]]) -> Affinity:
    """Put each op on the first of the devices that supports it; DeviceError if none does."""
    order = list(supported)
    members: dict[int, list[str]] = {leader: [] for leader in graph.leader}
    for op, leader in zip(graph, graph.leader, strict=True):
        if op.type not in NOT_OPS:
            members[leader].append(op.name)
    devices: dict[str, str] = {}
    unsupported: list[str] = []
    for index, names in members.items():
        able = [d for d in order if all(name in supported[d] for name in names)]
        if not able:
            none = [n for n in names if not any(n in supported[d] for d in order)]
            unsupported += none or names
        devices[graph.ops[index].name] = able[0] if able else order[0]
    if unsupported:
        refused = [(name, graph.op(name).type) for name in unsupported]
        raise DeviceError(unsupported_message(order, refused))
    return Affinity(_nodes(graph), devices)


def _nodes(graph: OpGraph) -> list[Node]:
    return [Node(op.name, op.type, graph.ops[graph.leader[op.index]].name) for op in graph]
