"""The name of a configuration: a placement's label with the precision of its devices.

``CPU (bf16, default)``, ``CPU (f32)``, ``HETERO:GPU,CPU (GPU f16, CPU bf16, default)``. Without
*default* somebody asked for the precision. Every table, figure and sentence says it like this.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hetero_lab.devices.devices import VIRTUAL
from hetero_lab.devices.properties import PRECISION_HINT

_ASKED_BY = frozenset({PRECISION_HINT, "EXECUTION_MODE_HINT"})
# A grid's part of a label, which the name says more shortly.
_OF_A_GRID = re.compile(rf"[^\s,]+\.{PRECISION_HINT}=[^\s,]+")


def configuration(
    label: str, precisions: Mapping[str, str], properties: Mapping[str, Mapping[str, Any]]
) -> str:
    """Return the name of a measured placement; its label, where no precision is known.

    ``precisions`` are those that the runtime reports; older records have the ``properties`` alone.
    """
    hints = {device: str(p.get(PRECISION_HINT, "")) for device, p in properties.items()}
    precisions = precisions or hints
    explicit = {device for device, p in properties.items() if _ASKED_BY & p.keys()}
    # A GPU may be reported by its number, and asked for through AUTO.
    default = {
        d: not {d, d.split(".")[0], *VIRTUAL} & explicit for d in precisions if precisions[d]
    }
    if not default:
        return label
    words = list({*precisions.values()})
    if len(words) > 1:
        some = any(default.values()) and not all(default.values())
        words = [
            f"{d} {precisions[d]}{' by default' if some and default[d] else ''}" for d in default
        ]
    suffix = ", ".join([*words, "default"] if all(default.values()) else words)
    first, *more = (part.strip(", ") for part in _OF_A_GRID.sub("", label).split(" · "))
    short = " · ".join([first, *(part for part in more if part not in ("", *words))])
    if re.search(rf"\b{re.escape(suffix)}\b", short):
        return short
    if re.search(r" \([^()]*\)$", short):  # in the same brackets, as "candidate 1 (recorded)"
        return f"{short[:-1]}, {suffix})"
    return f"{short} ({suffix})"
