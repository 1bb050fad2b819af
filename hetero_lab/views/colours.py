"""One colour for each device, the same in every figure; emulated devices are marked.

The colours are those of Okabe and Ito (2008), which colour-blind people can tell apart. They,
and the grey of the text, are readable on white and on the dark background of Jupyter.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hetero_lab.views.text import plain

SEVERAL = "several devices"
_FIXED = {"CPU": "#0072B2", "GPU": "#009E73", "NPU": "#CC79A7", SEVERAL: "#7a7a7a"}
_OTHERS = ("#56B4E9", "#E69F00", "#D55E00", "#B8A800", "#8C6BB1", "#A6611A", "#66A61E", "#999999")

TEXT = "#7a7a7a"  # the same contrast, 4.3, on white and on #111111
LINE = "#9a9a9a"
GRID = "rgba(128, 128, 128, 0.22)"
BOUNDARY = "#8a8f98"
CLEAR = "rgba(0, 0, 0, 0)"


@dataclass(frozen=True)
class DeviceStyle:
    """How a device looks in every figure.

    ``label`` is safe to show. Emulated devices have dashed outlines and hatched bars.
    """

    device: str
    colour: str
    label: str
    emulated: bool

    @property
    def dash(self) -> str:
        """Dash of outlines."""
        return "dash" if self.emulated else "solid"

    @property
    def pattern(self) -> str:
        """Hatching of bars."""
        return "/" if self.emulated else ""

    def faded(self, opacity: float) -> str:
        """Return the colour with an opacity, as CSS."""
        red, green, blue = (int(self.colour[i : i + 2], 16) for i in (1, 3, 5))
        return f"rgba({red}, {green}, {blue}, {opacity})"


def device_styles(
    devices: Iterable[str], emulated: Mapping[str, str] | None = None
) -> dict[str, DeviceStyle]:
    """Return the style of each device.

    CPU, GPU and NPU have fixed colours. Another device has the one that its name hashes to; only
    if two devices of one figure hash to the same, the later name moves on to the next.

    Parameters
    ----------
    devices
        Names of all devices of the figure.
    emulated
        Emulated device → the device that really runs it.
    """
    emulated = emulated or {}
    names = list(dict.fromkeys(devices))
    colours = {name: _FIXED[_kind(name)] for name in names if _kind(name) in _FIXED}
    taken: set[str] = set()
    for name in sorted(set(names) - set(colours)):
        first = zlib.crc32(name.encode("utf-8", "surrogatepass")) % len(_OTHERS)
        ring = [*_OTHERS[first:], *_OTHERS[:first]]
        colours[name] = next((c for c in ring if c not in taken), ring[0])
        taken.add(colours[name])
    return {
        name: DeviceStyle(name, colours[name], device_label(name, emulated), name in emulated)
        for name in names
    }


def spare_colours() -> tuple[str, ...]:
    """Return colours for what is no device, in an order in which neighbours differ most."""
    return _OTHERS


def device_label(device: str, emulated: Mapping[str, str]) -> str:
    """Name a device, and what really runs it if it is emulated."""
    if device in emulated:
        return f"{plain(device, 30)} (emulated on {plain(emulated[device], 30)})"
    return plain(device, 30)


def _kind(device: str) -> str:
    """Return the fixed colour's name: of several GPUs only the first one has it."""
    name, _, number = device.partition(".")
    return name if number in ("", "0") else device
