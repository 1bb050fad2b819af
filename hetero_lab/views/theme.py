"""What figures share: text, colours of devices, error bars, layout.

Names from a model are shown as they are, never as markup. The colours are those of Okabe and Ito
(2008), which colour-blind people can tell apart, and readable on white and on the dark background
of Jupyter. No grey is, for small text: it takes the colour of the page around it.
"""

from __future__ import annotations

import html
import math
import textwrap
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import plotly.graph_objects as go

from hetero_lab.tables import interval_text, time_text
from hetero_lab.terminal import one_line, plain_text

# A caution where profiles stand side by side: their intervals ignore the time between them.
NOT_IN_TURN = "not measured in turn: compare placements with hetero_lab.sweep()"


def plain(text: str, most: int = 80) -> str:
    """Return a name as text that plotly shows literally: one line, at most ``most`` characters.

    Plotly renders a subset of HTML and, where MathJax is loaded, text between dollar signs.
    """
    return escape(squeeze(text, most))


def escape(text: str) -> str:
    """Escape markup for plotly, which knows no entity for quotes."""
    return html.escape(text, quote=False).replace("$", "&#36;")


def hover(*lines: str) -> str:
    """Return the lines of a hover text that say something."""
    return "<br>".join(filter(None, lines))


def squeeze(text: str, most: int) -> str:
    """Put a text on one line, without characters that do not print and repeated blanks."""
    # The ends of a name tell more than its middle, and a very long name is not worth a full pass.
    if len(text) > 4 * most:
        text = text[: 2 * most] + text[-2 * most :]
    return one_line(" ".join(plain_text(text).split()), most)


_WIDEST = 2.0  # times the largest value: an interval of a few turns would squeeze all the rest


# The columns of an estimate and of the ends of its 95 % interval in a summary.
INTERVALS = {
    "median_us": ("ci95_low_us", "ci95_high_us"),
    "ratio": ("ratio_ci95_low", "ratio_ci95_high"),
    "accuracy": ("accuracy_ci95_low", "accuracy_ci95_high"),
}
Interval: TypeAlias = tuple[float, float, float]  # a value, then the ends of its interval


def interval_of(row: Mapping[Any, Any], column: str = "median_us") -> Interval:
    """Return a value of a summary, the latency by default, with its interval."""
    low, high = INTERVALS[column]
    return row[column], row[low], row[high]


def error_bars(intervals: Sequence[Interval], scale: float = 1.0, **style: Any) -> dict[str, Any]:
    """Return plotly's error bars, their lengths times ``scale``; an infinite end has no bar."""
    value, low, high = np.array(intervals, float).reshape(-1, 3).T
    up, down = (scale * np.nan_to_num(abs(end - value), posinf=0.0) for end in (high, low))
    lengths = {"array": up.tolist(), "arrayminus": down.tolist()}
    return {"type": "data", "symmetric": False, **lengths, **style}


def latency_end_us(latencies: Sequence[Interval]) -> float:
    """Return the end of an axis of latencies in µs; a very wide interval extends beyond it."""
    largest = max((us for us, _, _ in latencies), default=1.0)
    ends = [high for _, _, high in latencies if math.isfinite(high)]
    return 1.05 * max(largest, min(max(ends, default=0.0), _WIDEST * largest))


def latency_axis(latencies: Sequence[Interval]) -> tuple[float, dict[str, Any]]:
    """Return the factor from µs to the unit of an axis of latencies, and the axis from 0 on."""
    end_us = latency_end_us(latencies)
    scale, unit = (1e-3, "ms") if end_us >= 1e3 else (1.0, "µs")
    return scale, {"title": f"latency ({unit})", "range": [0, scale * end_us], "gridcolor": GRID}


def latency_text(latency: Interval) -> str:
    us, low, high = latency
    if not math.isfinite(high):
        return f"{time_text(us)}, from too few turns for an interval"
    return interval_text(us, low, high, time_text)


SEVERAL = "several devices"
_FIXED = {"CPU": "#0072B2", "GPU": "#009E73", "NPU": "#CC79A7", SEVERAL: "#7a7a7a"}
# No fixed device has these; neighbours differ most.
SPARE_COLOURS = (
    "#56B4E9", "#E69F00", "#D55E00", "#B8A800", "#8C6BB1", "#A6611A", "#66A61E", "#999999",
)  # fmt: skip

TEXT = "#7a7a7a"  # where a page has no colour of its own: 4.3 to 1 on white and on #111111
_INK = f'<span style="color: var(--jp-ui-font-color1, {TEXT})">'
LINE = "#9a9a9a"
GRID = "rgba(128, 128, 128, 0.22)"
BOUNDARY = "#8a8f98"
CAUSE, CONSEQUENCE = "#e0314f", "#9d6bdb"  # at least 3 to 1 on white and on #111111
TIME_SCALE = ("#7f93ad", "#c9781a", "#d32f2f")  # from 0 to the longest; 3 to 1 on both, too
CLEAR = "rgba(0, 0, 0, 0)"


class ThemedFigure(go.Figure):
    """A figure whose text has the colour of the page that shows it, JupyterLab's or our own."""

    def to_dict(self) -> dict[str, Any]:
        """Return the figure as every renderer reads it."""
        drawn = super().to_dict()
        for trace in drawn["data"]:
            _ink(trace, "name", "texttemplate")
            if trace.get("textfont", {}).get("color") == TEXT:
                _ink(trace, "text")
        _ink_layout(drawn["layout"])
        return drawn


def _ink_layout(part: dict[str, Any]) -> None:
    """Colour the titles, notes and ticks below a part of a layout."""
    _ink(part, "text", "ticktext")
    for key, inner in part.items():
        if "axis" in key and "ticktext" not in inner:
            inner["tickprefix"] = _INK + inner.get("tickprefix", "")
            inner["ticksuffix"] = inner.get("ticksuffix", "") + "</span>"
        for each in inner if isinstance(inner, list | tuple) else [inner]:
            if isinstance(each, dict):
                _ink_layout(each)


def _ink(part: dict[str, Any], *keys: str) -> None:
    def inked(value: Any) -> Any:
        if isinstance(value, list | tuple | np.ndarray):  # of a heat map, rows of texts
            return [inked(each) for each in value]
        text = str(value)
        return f"{_INK}{text}</span>" if text and not text.startswith(_INK) else text

    for key in keys:
        if part.get(key) is not None:
            part[key] = inked(part[key])


def ink_on(colour: str) -> str:
    """Return black or white, whichever is easier to read on a colour, ``#rrggbb`` (WCAG 2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    luminance = sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return "#000000" if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else "#ffffff"


@dataclass(frozen=True)
class DeviceStyle:
    """The look of a device: ``label`` is safe to show; emulated ones have dashes and hatching."""

    device: str
    colour: str
    label: str
    emulated: bool

    @property
    def dash(self) -> str:
        return "dash" if self.emulated else "solid"

    @property
    def pattern(self) -> str:
        return "/" if self.emulated else ""

    def bar(self, opacity: float = 1.0) -> dict[str, Any]:
        return {
            "color": self.colour if opacity == 1 else self.faded(opacity),
            "line": {"width": 0},
            "pattern": {
                "shape": self.pattern,
                "solidity": 0.2,
                "fillmode": "overlay",
                "fgcolor": "#ffffff",
                "fgopacity": 0.5,
            },
        }

    def faded(self, opacity: float) -> str:
        """Return the colour with an opacity, as CSS."""
        red, green, blue = (int(self.colour[i : i + 2], 16) for i in (1, 3, 5))
        return f"rgba({red}, {green}, {blue}, {opacity})"


def device_styles(
    devices: Iterable[str], emulated: Mapping[str, str] | None = None
) -> dict[str, DeviceStyle]:
    """Return the style of each device of a figure.

    CPU, GPU and NPU have fixed colours. Another device has the one that its name hashes to; only if
    two devices of one figure hash to the same, the later name moves on to the next. ``emulated``
    maps emulated devices to the devices that really run them.
    """
    emulated = emulated or {}
    names = list(dict.fromkeys(devices))
    colours = {name: _FIXED[_kind(name)] for name in names if _kind(name) in _FIXED}
    for name in sorted(set(names) - set(colours)):
        first = zlib.crc32(name.encode("utf-8", "surrogatepass")) % len(SPARE_COLOURS)
        ring = [*SPARE_COLOURS[first:], *SPARE_COLOURS[:first]]
        colours[name] = next((c for c in ring if c not in colours.values()), ring[0])
    return {
        name: DeviceStyle(name, colours[name], device_label(name, emulated), name in emulated)
        for name in names
    }


def device_label(device: str, emulated: Mapping[str, str]) -> str:
    """Name a device, and what really runs it if it is emulated."""
    if device in emulated:
        return f"{plain(device, 30)} (emulated on {plain(emulated[device], 30)})"
    return plain(device, 30)


def _kind(device: str) -> str:
    """Return the name of the fixed colour; only the first of several GPUs has it."""
    name, _, number = device.partition(".")
    return name if number in ("", "0") else device


FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

# The axis and the rest of the layout of bars that add up to times.
TIME_AXIS = {"title": "time (µs)", "gridcolor": GRID, "rangemode": "tozero", "zeroline": False}
STACKED: dict[str, Any] = {
    "barmode": "stack",
    "bargap": 0.25,
    "showlegend": True,
    "legend_traceorder": "normal",
}

# Text to the right of a bar, over whatever is there.
BESIDE: dict[str, Any] = {
    "mode": "text",
    "textposition": "middle right",
    "textfont": {"color": TEXT, "size": 11},
    "cliponaxis": False,
}

LOG_AXIS = {"type": "log", "dtick": 1, "exponentformat": "power"}  # of errors

_LINE = 115  # characters of a subtitle that fit a page of 1000 px, or a notebook's cell
# No button uploads a figure, and no figure has anything to select.
_NO_BUTTONS = ["sendChartToCloud", "sendDataToCloud", "select2d", "lasso2d"]


def lines_of(subtitle: str) -> list[str]:
    return textwrap.wrap(subtitle, _LINE)


def finish(
    figure: go.Figure,
    title: str,
    subtitle: str = "",
    height: float | None = None,
    margins: tuple[float, float, float, float] | None = None,
    *,
    x: Mapping[str, Any] | None = None,
    y: Mapping[str, Any] | None = None,
    **layout: Any,
) -> go.Figure:
    """Give a figure the layout that all share, more of a layout, and its axes.

    ``title`` and ``subtitle`` are already safe to show. ``height`` and ``margins`` (left, right,
    top, bottom) are in pixels. Hovering shows a trace's ``hovertext``, or nothing if it has none.
    """
    heading: dict[str, Any] = {
        "text": title, "font": {"size": 16, "color": TEXT}, "x": 0, "xref": "container",
        "xanchor": "left", "y": 1, "yref": "container", "yanchor": "top",
        "pad": {"t": 16, "l": 14},
    }  # fmt: skip
    if subtitle:
        lines = "<br>".join(lines_of(subtitle))
        heading["subtitle"] = {"text": lines, "font": {"size": 11, "color": TEXT}}
    if margins is not None:
        layout["margin"] = dict(zip("lrtb", margins, strict=True))
    common = {
        "template": "none",
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "font": {"family": FONT, "size": 12, "color": TEXT},
        "title": heading,
        "hoverlabel": {
            "bgcolor": "#22262e", "bordercolor": "#22262e", "align": "left",
            "font": {"family": FONT, "size": 12, "color": "#f2f4f7"},
        },
        "legend": {
            "orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom",
            "itemsizing": "constant", "bgcolor": CLEAR, "font": {"size": 12, "color": TEXT},
        },
        "modebar": {
            "bgcolor": CLEAR, "color": "#9a9a9a", "activecolor": TEXT, "remove": _NO_BUTTONS,
            "orientation": "v",  # beside the title, not on it
        },
    }  # fmt: skip
    figure.update_layout(common, height=height, **layout)
    figure.update_xaxes(x)
    figure.update_yaxes(y)
    traces: Any = figure.data
    for trace in traces:
        trace.hoverinfo = "skip" if trace.hovertext is None else "text"
    return figure


def row_axis(names: Sequence[str]) -> dict[str, Any]:
    """Return an axis with a row for each name, from the top down; the names are safe to show."""
    return {
        "tickvals": list(range(len(names))),
        "ticktext": list(names),
        "range": [len(names) - 0.5, -0.5],
        "automargin": True,
        "showgrid": False,
        "zeroline": False,
        "ticklabelstandoff": 6,
    }


def shade(figure: go.Figure, place: int) -> None:
    """Shade what stands at a place of the axis, from top to bottom."""
    figure.add_vrect(x0=place - 0.5, x1=place + 0.5, fillcolor=GRID, line_width=0, layer="below")
