"""Predicted against measured: how well a cost model does on placements it was not fitted to."""

from __future__ import annotations

from dataclasses import dataclass

import plotly.graph_objects as go

from hetero_lab.errors import PlanError
from hetero_lab.planning.cost_model import CostModel
from hetero_lab.views.text import plain, time_text
from hetero_lab.views.theme import BOUNDARY, GRID, LINE, base_layout

# Not a colour that stands for a device: a placement uses several.
_POINT = "#b0413e"
_BAND = 0.05


@dataclass(frozen=True)
class ValidationPoints:
    """The points and the range of both axes; times in µs."""

    labels: tuple[str, ...]
    predicted_us: tuple[float, ...]
    measured_us: tuple[float, ...]
    low_us: float
    high_us: float


def validation_points(costs: CostModel) -> ValidationPoints:
    """Return the validation placements of a cost model; none if it was not validated."""
    rows = costs.validation_rows
    predicted = tuple(row.predicted_us for row in rows)
    measured = tuple(row.measured_us for row in rows)
    least, most = (
        min((*predicted, *measured), default=0.0),
        max((*predicted, *measured), default=1.0),
    )
    room = 0.08 * (most - least) or 0.08 * most or 1.0
    return ValidationPoints(
        labels=tuple(row.label for row in rows),
        predicted_us=predicted,
        measured_us=measured,
        low_us=max(0.0, least - room),
        high_us=most + room,
    )


def predicted_measured(costs: CostModel) -> go.Figure:
    """Draw predicted over measured latency of the placements that the fit has not seen.

    Points on the diagonal are predicted exactly; above it the prediction is too high. Of a cost
    model that was not validated the figure has no points and says so.
    """
    found = validation_points(costs)
    ends = [found.low_us, found.high_us]
    figure = go.Figure()
    figure.add_scatter(
        x=ends, y=ends, mode="lines", name="predicted = measured", hoverinfo="skip",
        line={"color": LINE, "width": 1.5, "dash": "dot"},
    )  # fmt: skip
    figure.add_scatter(
        x=[*ends, *reversed(ends)],
        y=[end * (1 + _BAND) for end in ends] + [end * (1 - _BAND) for end in reversed(ends)],
        fill="toself", fillcolor=GRID, line={"width": 0}, mode="lines", name=f"± {_BAND:.0%}",
        hoverinfo="skip",
    )  # fmt: skip
    figure.add_scatter(
        x=found.measured_us,
        y=found.predicted_us,
        mode="markers",
        name="placement",
        showlegend=False,
        marker={"size": 10, "color": _POINT, "line": {"width": 1, "color": BOUNDARY}},
        hovertext=[
            f"<b>{plain(label, 200)}</b><br>measured {time_text(measured)}<br>"
            f"predicted {time_text(predicted)} ({predicted / measured - 1:+.1%})"
            for label, predicted, measured in zip(
                found.labels, found.predicted_us, found.measured_us, strict=True
            )
        ],
        hoverinfo="text",
    )
    n = len(found.labels)
    figure.update_layout(
        **base_layout(
            f"Predicted, measured: {_errors(costs) if n else 'not validated'}",
            f"{plain(costs.graph.name, 60)} on {plain(', '.join(costs.devices), 60)} · "
            f"{n} placement{'s' * (n != 1)} that the fit has not seen",
        ),
        width=700,
        height=660,
        margin={"l": 80, "r": 30, "t": 100, "b": 60},
    )
    if not n:
        figure.add_annotation(
            text="Not validated: calibrate with a larger budget_s", showarrow=False,
            x=0.5, y=0.5, xref="paper", yref="paper",
        )  # fmt: skip
    axis = {"gridcolor": GRID, "zeroline": False, "range": ends}
    figure.update_xaxes(**axis, title="measured latency (µs)")
    figure.update_yaxes(**axis, title="predicted latency (µs)", automargin=True)
    return figure


def _errors(costs: CostModel) -> str:
    mape = f"MAPE {costs.mape:.1%}"
    try:
        return f"{mape}, R² {_minus(costs.r2)}"
    except PlanError:  # all took the same time
        return mape


def _minus(value: float) -> str:
    return f"{value:.3f}".replace("-", "−")
