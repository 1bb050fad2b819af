"""Ranges of blocks, such as ``"0-14"``, and the device that each block gets from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hetero_lab.errors import AffinityError, shorten
from hetero_lab.model.blocks import Blocks

BEFORE, AFTER = "before", "after"
_RANGE = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?")


def device_by_block(found: Blocks, name: str, devices: Mapping[Any, str]) -> list[str]:
    """Return the device of what is before the first block, of each block, and of what is after.

    Raises
    ------
    AffinityError
        The model has no blocks, a key is no range of them, two overlap, or a block is left out.
    """
    n_blocks = found.n_blocks
    if not n_blocks:
        raise AffinityError(
            f"{shorten(name)} has no repeated layers, so there are no blocks to place. Place ops "
            "with hetero_lab.Affinity.automatic(…).fix(…)."
        )
    if not isinstance(devices, Mapping):
        raise AffinityError(
            f"Blocks are placed by a mapping, for instance {{'0-{n_blocks - 1}': 'CPU'}}, not "
            f"{type(devices).__name__}."
        )
    chosen: dict[int, str] = {}
    for key, device in devices.items():
        if key in (BEFORE, AFTER):
            continue
        for block in _range(key, n_blocks):
            if block in chosen:
                raise AffinityError(
                    f"Block {block} is given to {shorten(str(chosen[block]))} and, by "
                    f"{shorten(repr(key))}, to {shorten(str(device))}. Let ranges not overlap."
                )
            chosen[block] = device
    left_out = [block for block in range(n_blocks) if block not in chosen]
    if left_out:
        raise AffinityError(
            f"No device is given to {_spans(left_out)}. The model has blocks 0-{n_blocks - 1}."
        )
    first, last = chosen[0], chosen[n_blocks - 1]
    inside = [chosen[block] for block in range(n_blocks)]
    return [devices.get(BEFORE, first), *inside, devices.get(AFTER, last)]


def block_range(first: int, last: int) -> str:
    """Write a range of blocks as :func:`device_by_block` reads it."""
    return str(first) if first == last else f"{first}-{last}"


def _range(key: object, n_blocks: int) -> range:
    is_number = isinstance(key, int) and not isinstance(key, bool)
    match = _RANGE.fullmatch(str(key)) if is_number or isinstance(key, str) else None
    if match is None:
        raise AffinityError(
            f"{shorten(repr(key))} is not a range of blocks. Write '0-{n_blocks - 1}', '0', "
            f"{BEFORE!r} or {AFTER!r}."
        )
    first, last = int(match[1]), int(match[2] or match[1])
    if not first <= last < n_blocks:
        raise AffinityError(
            f"There are no blocks {shorten(str(key))}. The model has blocks 0-{n_blocks - 1}."
        )
    return range(first, last + 1)


def _spans(blocks: list[int]) -> str:
    """Write blocks in words: ``block 3``, ``blocks 3-5, 9``."""
    runs: list[list[int]] = []
    for block in blocks:
        if runs and runs[-1][1] == block - 1:
            runs[-1][1] = block
        else:
            runs.append([block, block])
    spans = ", ".join(block_range(*run) for run in runs)
    return f"block{'s' * (len(blocks) > 1)} {spans}"
