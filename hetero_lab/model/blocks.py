"""Blocks: the repeated layers of a network, found from the structure of its graph.

The ops on the longest paths, level by level, are a sequence of symbols; repeated layers are its
longest repetition (Main and Lorentz 1984). The ops beside it are assigned by matching each layer
with the one before it, wire by wire.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hetero_lab.errors import AffinityError, shorten, warn
from hetero_lab.model.opgraph import OpGraph, grouped
from hetero_lab.model.read import Source, prepare
from hetero_lab.tables import frame_of

if TYPE_CHECKING:
    import pandas as pd

_LEAST_SHARE = 0.25  # of the levels must repeat; two small twins in a big model are not layers
_NUMBER = re.compile(r"\d+")
_BEFORE, _AFTER = "before", "after"
_RANGE = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?")

_Signature: TypeAlias = "tuple[str, tuple[bool, ...], int]"
_Kinded: TypeAlias = "tuple[int, ...]"  # an op, at the end


@dataclass(frozen=True)
class Blocks:
    """Which block each node of a graph is in.

    ``of_op`` has an entry for each node: the number of its block, -1 for nodes before the first
    block or beside all of them, and ``n_blocks`` for nodes after the last one. Data flow from a
    block to itself or to later ones only.
    """

    n_blocks: int
    of_op: tuple[int, ...]

    def numbered(self, index: int) -> int | None:
        """Return the block of a node, or ``None``."""
        block = self.of_op[index]
        return block if 0 <= block < self.n_blocks else None


def blocks(model: Source) -> pd.DataFrame:
    """List the repeated layers of a network, such as the layers of a transformer.

    They are found from the structure of the graph: types and wires of ops, not shapes, so that a
    bottleneck with more channels is a bottleneck as well. Where structure does not determine the
    start of a layer, it is where numbers in the names change, or else where the fewest tensors
    cross.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.

    Returns
    -------
    pandas.DataFrame
        ``op`` in topological order, and ``block``, counted from 0, ``<NA>`` for ops before the
        first block or after the last. The states of a layer are in its block. If nothing is
        repeated, a warning says so and all blocks are ``<NA>``.

    Raises
    ------
    ModelError
        The model cannot be read.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> found = hl.blocks("digits_inception")
    >>> found["block"].value_counts().sort_index().tolist()
    [19, 23]
    """
    graph = prepare(model).graph
    layers = find_blocks(graph)
    if not layers.n_blocks:
        warn(f"{shorten(graph.name)} has no repeated layers; no op is in a block.")
    rows = [(graph.ops[index].name, layers.numbered(index)) for index in graph.placeable]
    return frame_of(rows, ["op", "block"]).astype({"op": "str", "block": "Int64"})


def find_blocks(graph: OpGraph) -> Blocks:
    """Return the blocks of a graph; none if nothing is repeated."""
    return graph.derived(_find)


def _find(graph: OpGraph) -> Blocks:
    skeleton = _Skeleton(graph)
    repeated = _longest_repetition(skeleton.symbols)
    if repeated is None:
        return Blocks(0, (-1,) * len(graph))
    matched = [
        (changes, _without_fragments(_counterparts(skeleton, starts, repeated)))
        for changes, starts in _starts(skeleton, repeated)
    ]
    _, block = min(matched, key=lambda one: (one[0], -len(one[1])))
    return _total(skeleton, block)


class _Skeleton:
    """The placeable ops of a graph, the wires between them, and the longest paths by level.

    Ops of equal ``signatures`` may be counterparts. ``reads`` has (port, producer) of each op, and
    ``uses`` (its output, port of the user, user). ``levels`` are the ops on the longest paths, by
    level; equal ``symbols`` of levels are equal signatures. ``open_wires`` counts, for each level,
    the tensors that are read below it.
    """

    def __init__(self, graph: OpGraph):
        ops = set(graph.placeable)
        self.graph = graph
        self.reads: dict[int, list[tuple[int, int]]] = {}
        self.uses: dict[int, list[tuple[int, int, int]]] = {}
        self.signatures: dict[int, _Signature] = {}
        for i in graph.placeable:
            op, users = graph.ops[i], graph.consumers[i]
            self.reads[i] = [(port, p) for port, (p, _) in enumerate(op.inputs) if p in ops]
            self.uses[i] = [(u.source_port, u.port, u.index) for u in users if u.index in ops]
            from_ops = tuple(producer in ops for producer, _ in op.inputs)
            self.signatures[i] = op.type, from_ops, len(op.outputs)
        depth: dict[int, int] = {}
        for index, reads in self.reads.items():
            depth[index] = max((depth[p] + 1 for _, p in reads), default=0)
        height: dict[int, int] = {}
        for index in reversed(graph.placeable):
            height[index] = max((height[u] + 1 for _, _, u in self.uses[index]), default=0)
        longest = max(depth.values(), default=-1)
        self.levels: list[list[int]] = [[] for _ in range(longest + 1)]
        change = np.zeros(longest + 2, dtype=np.int64)
        for index, at in depth.items():
            if at + height[index] == longest:
                self.levels[at].append(index)
            change[at] += 1
            change[max((depth[u] for _, _, u in self.uses[index]), default=at)] -= 1
        self.open_wires = np.cumsum(change)[:-1]
        number: dict[tuple[_Signature, ...], int] = {}
        words = [tuple(sorted(self.signatures[i] for i in level)) for level in self.levels]
        symbols = [number.setdefault(word, len(number)) for word in words]
        self.symbols = np.array(symbols, dtype=np.int64)


def _longest_repetition(symbols: np.ndarray) -> range | None:
    """Return the repetition that covers most levels; among equals, that of the shortest period.

    The range goes from its first level to the one behind the last, in steps of the period.
    """
    best, most = None, 0
    for period in range(1, len(symbols) // 2 + 1):
        alike = np.flatnonzero(np.diff(symbols[:-period] == symbols[period:], prepend=0, append=0))
        if not len(alike):
            continue
        runs = alike[1::2] - alike[::2]
        for run in np.flatnonzero(runs >= period).tolist():
            start, length = int(alike[2 * run]), int(runs[run]) + period
            covered = length // period * period
            # A chain of equal ops, such as ReLU after ReLU, is not a layer.
            if covered > most and np.ptp(symbols[start : start + period]):
                best, most = range(start, start + length, period), covered
    return best if most >= _LEAST_SHARE * len(symbols) else None


def _starts(skeleton: _Skeleton, repeated: range) -> Iterator[tuple[int, list[int]]]:
    """Yield the levels at which layers begin, cut in one or two ways; partial layers are left out.

    The period is cut at the level where the numbers in names change, then where the fewest
    tensors cross, then at the first. The second way does the same among the cuts that make the
    most layers. Each comes with how often numbers change within a layer.
    """
    start, end, period = repeated.start, repeated.stop, repeated.step
    symbols = skeleton.symbols
    names = [skeleton.graph.ops[level[0]].name for level in skeleton.levels]
    layer = [
        _counting(names[d], names[d + period]) if d + period < len(names) else None
        for d in range(len(names))
    ]

    def cost(offset: int) -> tuple[int, float, int]:
        n_layers = (end - start - offset) // period
        cuts = [start + offset + n * period for n in range(n_layers + 1)]
        changes = 0
        for first, behind in itertools.pairwise(cuts):
            numbers = [number for number in layer[first:behind] if number is not None]
            changes += sum(a != b for a, b in itertools.pairwise(numbers))
        crossing = np.mean([skeleton.open_wires[level - 1] for level in cuts[1:]])
        return changes, float(crossing), offset

    most = range((end - start) % period + 1)
    for offset in dict.fromkeys(min(some, key=cost) for some in (range(period), most)):
        starts = list(range(start + offset, end - period + 1, period))
        word = symbols[starts[0] : starts[0] + period]
        earlier = _elsewhere(symbols, word, range(starts[0] - period, -1, -1))
        later = _elsewhere(symbols, word, range(starts[-1] + period, len(symbols)))
        yield cost(offset)[0], [*reversed(list(earlier)), *starts, *later]


def _counting(name: str, following: str) -> int | None:
    """Return the first number that differs between two names, if the next one follows it."""
    numbers = [int(n) for n in _NUMBER.findall(name)]
    others = [int(n) for n in _NUMBER.findall(following)]
    if len(numbers) != len(others) or _NUMBER.sub("", name) != _NUMBER.sub("", following):
        return None
    different = ((a, b) for a, b in zip(numbers, others, strict=True) if a != b)
    a, b = next(different, (0, 0))
    return a if b == a + 1 else None


def _elsewhere(symbols: np.ndarray, word: np.ndarray, levels: range) -> Iterator[int]:
    """Yield the levels at which a word stands, each behind the one before in that direction."""
    free = levels.start
    for level in levels:
        passed = (level - free) * levels.step >= 0
        if passed and np.array_equal(symbols[level : level + len(word)], word):
            yield level
            free = level + levels.step * len(word)


def _counterparts(skeleton: _Skeleton, starts: Sequence[int], repeated: range) -> dict[int, int]:
    """Return the block of each op that has a counterpart in the layer before or after it.

    Starting from the ops of the longest paths, producers of counterparts are counterparts too if
    they are of one kind; then users are. Ops that several layers share have none.
    """
    block: dict[int, int] = {}
    before: dict[int, int] = {}  # op → its counterpart in the layer before
    paired: set[int] = set()

    def pair(op: int, other: int, number: int) -> bool:
        if (
            op == other
            or op in before
            or other in paired
            or skeleton.signatures[op] != skeleton.signatures[other]
            or block.get(op, number) != number
            or block.get(other, number - 1) != number - 1
        ):
            return False
        before[op] = other
        paired.add(other)
        block[op], block[other] = number, number - 1
        return True

    period = repeated.step
    levels = [
        (later + at, earlier + at, number)
        for number, (earlier, later) in enumerate(itertools.pairwise(starts), 1)
        for at in range(period)
    ]
    if repeated.start < starts[0]:  # the end of a layer whose beginning looks different
        levels += [(d + period, d, 0) for d in range(repeated.start, starts[0])]
    last = starts[-1] + period
    levels += [(d, d - period, len(starts)) for d in range(last, repeated.stop)]
    new, at = list[tuple[int, int, int]](), skeleton.levels
    for most in (1, len(skeleton.signatures)):  # of twins any will do: all are in one block
        new = new or [
            (op, other, number)
            for later, earlier, number in levels
            for op, other in _alike(
                skeleton, [(op,) for op in at[later]], [(op,) for op in at[earlier]], most
            )
            if pair(op, other, number)
        ]
    while new:
        upwards = list(new)
        while upwards:
            op, other, number = upwards.pop()
            ports = dict(skeleton.reads[other])
            for port, producer in skeleton.reads[op]:
                if port in ports and pair(producer, ports[port], number):
                    upwards.append((producer, ports[port], number))
                    new.append(upwards[-1])
        more = []
        for op, other, number in new:
            users = [use for use in skeleton.uses[op] if use[-1] not in before]
            counterparts = [use for use in skeleton.uses[other] if use[-1] not in paired]
            for user, counterpart in _alike(skeleton, users, counterparts, len(users)):
                if pair(user, counterpart, number):
                    more.append((user, counterpart, number))
        new = more
    return block


def _alike(
    skeleton: _Skeleton, ops: Iterable[_Kinded], others: Iterable[_Kinded], most: int
) -> Iterator[tuple[int, int]]:
    """Yield pairs of ops of one kind, if both sides have equally many, and at ``most`` so many.

    Each op comes with what else its counterpart has to share.
    """
    kinds, counterparts = (
        grouped(((*shared, skeleton.signatures[op]), op) for *shared, op in some)
        for some in (ops, others)
    )
    for kind, alike in kinds.items():
        if len(alike) == len(counterparts.get(kind, ())) <= most:
            yield from zip(alike, counterparts[kind], strict=True)


def _without_fragments(block: dict[int, int]) -> dict[int, int]:
    """Drop fragments of less than half a layer at either end, and count from 0."""
    sizes = Counter(block.values())
    usual = sorted(sizes.values())[len(sizes) // 2]
    whole = sorted(number for number, size in sizes.items() if 2 * size >= usual)
    return {i: number - whole[0] for i, number in block.items() if whole[0] <= number <= whole[-1]}


def _total(skeleton: _Skeleton, block: dict[int, int]) -> Blocks:
    """Assign all other ops to the layer that they are in, or before or after all layers."""
    graph = skeleton.graph
    n_blocks = max(block.values()) + 1
    for path in graph.stateful_paths:
        users = [user for i in path for _, _, user in skeleton.uses[i]]
        numbers = [block[i] for i in path if i in block] or [block[i] for i in users if i in block]
        if numbers:
            block.update(dict.fromkeys(path, min(numbers)))
    below: set[int] = set()
    for index in graph.placeable:
        if any(p in block or p in below for _, p in skeleton.reads[index]):
            below.add(index)
    for index in reversed(graph.placeable):
        if index in block:
            continue
        users = [block[user] for _, _, user in skeleton.uses[index] if user in block]
        if index in below:
            block[index] = min(users, default=n_blocks)
        elif users and min(users) == max(users) > 0 and len(users) == len(skeleton.uses[index]):
            block[index] = users[0]
    of_op = [-1] * len(graph)
    # No wire may lead back to an earlier block, or two devices that take turns by block would
    # depend on each other in a cycle.
    for index in graph.placeable:
        earliest = max((of_op[p] for _, p in skeleton.reads[index]), default=-1)
        of_op[index] = max(block.get(index, -1), earliest)
    for path in graph.stateful_paths:
        for index in path:
            of_op[index] = max(of_op[i] for i in path)
    for index, leader in enumerate(graph.leader):
        of_op[index] = of_op[leader]
    return Blocks(n_blocks, tuple(of_op))


def device_by_block(blocks: Blocks, name: str, devices: Mapping[Any, str]) -> list[str]:
    """Return the devices before, of and after the blocks; AffinityError as in ``by_block``."""
    n_blocks = blocks.n_blocks
    if not n_blocks:
        raise AffinityError(
            f"{shorten(name)} has no repeated layers, so there are no blocks to place. Place ops "
            "with hetero_lab.Affinity.automatic(…).fix(…)."
        )
    device_of: dict[int, str] = {}
    for key, device in devices.items():
        if key in (_BEFORE, _AFTER):
            continue
        for block in _blocks_of(key, n_blocks):
            if block in device_of:
                raise AffinityError(
                    f"Block {block} is given to {shorten(str(device_of[block]))} and, by "
                    f"{shorten(repr(key))}, to {shorten(str(device))}. Ranges must not overlap."
                )
            device_of[block] = device
    left_out = [block for block in range(n_blocks) if block not in device_of]
    if left_out:
        raise AffinityError(
            f"No device is given to {_spans(left_out)}. The model has blocks 0-{n_blocks - 1}."
        )
    first, last = device_of[0], device_of[n_blocks - 1]
    inside = [device_of[block] for block in range(n_blocks)]
    return [devices.get(_BEFORE, first), *inside, devices.get(_AFTER, last)]


def block_range(first: int, last: int) -> str:
    """Write a range of blocks as :func:`device_by_block` reads it."""
    return str(first) if first == last else f"{first}-{last}"


def _blocks_of(key: object, n_blocks: int) -> range:
    is_number = isinstance(key, int) and not isinstance(key, bool)
    match = _RANGE.fullmatch(str(key)) if is_number or isinstance(key, str) else None
    if match is None:
        raise AffinityError(
            f"{shorten(repr(key))} is not a range of blocks. Write '0-{n_blocks - 1}', '0', "
            f"{_BEFORE!r} or {_AFTER!r}."
        )
    first, last = int(match[1]), int(match[2] or match[1])
    if not first <= last < n_blocks:
        raise AffinityError(
            f"There are no blocks {shorten(str(key))}. The model has blocks 0-{n_blocks - 1}."
        )
    return range(first, last + 1)


def _spans(blocks: list[int]) -> str:
    """Write blocks in words: ``block 3``, ``blocks 3-5, 9``."""
    runs = np.split(blocks, np.flatnonzero(np.diff(blocks) > 1) + 1)
    spans = ", ".join(block_range(int(run[0]), int(run[-1])) for run in runs)
    return f"{'block' if len(blocks) == 1 else 'blocks'} {spans}"
