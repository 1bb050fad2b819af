"""The figure of a language model: what each further layer on a device buys."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from hetero_lab.llm.language_plans import BlockCurve
from hetero_lab.views.result_views import Contents
from hetero_lab.views.theme import GRID, device_styles, finish, plain


def block_curve(curve: BlockCurve) -> go.Figure:
    """Draw tokens per second, and the time to the first token, against the memory of a device.

    Each point is the fastest predicted placement with one more layer on the device than the point
    before. Where the curve is flat, another layer gains nothing; where it is steep, memory is worth
    its price. Hovering over a point shows its layers and the gain of the last one.
    """
    frame = curve.to_frame()
    devices = [m.device for m in curve.points[0].memory]
    style = device_styles(devices, curve.emulated)[curve.device]
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    hovers = [
        f"<b>{row.blocks} layers on {style.label}</b>, {row.memory_mib:.1f} MiB<br>"
        f"{row.tokens_per_s:.1f} tokens/s ({row.tpot_ms:.2f} ms each), first after "
        f"{row.ttft_ms:.1f} ms"
        + (f"<br>{row.gain_tokens_per_s:+.2f} tokens/s by the last layer" if at else "")
        for at, row in enumerate(frame.itertuples())
    ]
    for number, column in enumerate(("tokens_per_s", "ttft_ms"), start=1):
        figure.add_scatter(
            x=frame["memory_mib"].tolist(),
            y=frame[column].tolist(),
            mode="lines+markers",
            line={"color": style.colour, "width": 2, "dash": style.dash},
            marker={"color": style.colour, "size": 7, "line": {"width": 0}},
            hovertext=hovers,
            showlegend=False,
            row=number,
            col=1,
        )
    anchors = {len(frame) - 1: "right", len(frame) // 2: "center", 0: "left"}
    for at, anchor in sorted(anchors.items()):
        row = frame.iloc[at]
        figure.add_annotation(
            x=row["memory_mib"],
            y=row["tokens_per_s"],
            text=f"{row['blocks']:.0f} layers",
            xanchor=anchor,
            yshift=14,
            showarrow=False,
            row=1,
            col=1,
        )
    scenario = curve.scenario
    figure.update_xaxes(title=f"MiB on {plain(curve.device, 30)}", gridcolor=GRID, row=2, col=1)
    most = frame["memory_mib"].max()
    figure.update_yaxes(title="tokens per second", row=1, col=1)
    figure.update_yaxes(title="first token, ms", row=2, col=1)
    return finish(
        figure,
        f"What each further layer on {plain(curve.device, 30)} buys",
        f"predicted, the fastest placement of each size · {scenario.prompt_tokens} tokens of "
        f"prompt, {scenario.new_tokens} new ones · memory: weights, key-value cache, boundary "
        f"tensors · {style.label}",
        520,
        (70, 30, 110, 60),
        x={"gridcolor": GRID, "range": [-0.02 * most, 1.03 * most], "zeroline": False},
        y={"gridcolor": GRID, "rangemode": "tozero"},
    )


def contents_of_curve(curve: BlockCurve) -> Contents:
    """Return what a page shows of a curve."""
    return Contents({block_curve: curve}, f"What each further layer on {curve.device} buys")
