"""The look that all figures share: readable on a light and on a dark page."""

from __future__ import annotations

from typing import Any

from hetero_lab.views.colours import CLEAR, TEXT

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

# Nothing is offered that uploads a figure; and there is nothing to select in any of them.
_NO_BUTTONS = ["sendChartToCloud", "sendDataToCloud", "select2d", "lasso2d"]


def base_layout(title: str, subtitle: str = "") -> dict[str, Any]:
    """Return the layout that every figure starts from; both titles are safe to show already."""
    heading: dict[str, Any] = {
        "text": title, "font": {"size": 16, "color": TEXT}, "x": 0, "xref": "container",
        "xanchor": "left", "y": 1, "yref": "container", "yanchor": "top",
        "pad": {"t": 16, "l": 14},
    }  # fmt: skip
    if subtitle:
        heading["subtitle"] = {"text": subtitle, "font": {"size": 11, "color": TEXT}}
    return {
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
        },
    }  # fmt: skip
