"""Layout of a model for the board of the tweaker: the place of each op and wire.

The model is laid out once, as one subgraph, so that nothing moves while devices change; the board
only recolours. Everything is plain data; indices are places in the list of nodes.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hetero_lab.model.opgraph import NOT_OPS, OpGraph, Tensor
from hetero_lab.model.read import PreparedModel
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import Partition, one_subgraph, predict
from hetero_lab.tables import bytes_text
from hetero_lab.views.graph_data import graph_data, node_labels
from hetero_lab.views.graph_layout import DENSE, ROOMY, Page, Strip, break_into_rows, lay_out
from hetero_lab.views.theme import TIME_SCALE, device_styles, squeeze

if TYPE_CHECKING:
    from hetero_lab.costs.cost_model import CostModel

PANE = (760.0, 360.0)  # approximate room for the graph
_WIDTHS = (900, 1500, 2500, 4000)  # approximate widths of a row, in the graph's own pixels
_RADIUS, _PORT_RADIUS = 6.0, 3.5  # of _SHAPES, and about that of the small squares of the board
_LONGEST_NAME = 200  # characters: a name of thousands would be sent for each of thousands of ops
_SHAPES = (  # around a point: circle, square, diamond, triangle, hexagon
    "m-6 0a6 6 0 1 1 12 0a6 6 0 1 1-12 0z",
    "m-5.4-5.4h10.8v10.8h-10.8z",
    "m0-7.5l7.5 7.5l-7.5 7.5l-7.5-7.5z",
    "m0-7.2l6.6 12h-13.2z",
    "m-6 0l3-5.4h6l3 5.4l-3 5.4h-6z",
)


class BoardPicture:
    """Nodes and wires of a graph with their places.

    ``devices`` are those that ops may be on, ``emulated`` maps the emulated ones to the devices
    that really run them, and ``attributes`` maps each op to its attributes, as text. ``heading`` is
    HTML to show above them.
    """

    def __init__(
        self,
        graph: OpGraph,
        devices: Sequence[str],
        emulated: Mapping[str, str],
        attributes: Mapping[str, Mapping[str, str]],
        heading: str = "",
    ):
        self.heading = heading
        self._graph = graph
        self._attributes = attributes
        self._devices = tuple(devices)
        self._emulated = dict(emulated)
        affinity = Affinity.from_graph(graph, lambda _name: self._devices[0])
        whole = one_subgraph(predict(graph, affinity), self._devices[0])
        self._data = graph_data(graph, affinity, whole)
        # The name in the graph of each node that is drawn, in topological order, and its place.
        self.names = tuple(graph.ops[node.index].name for node in self._data.nodes)
        self.place_of = {name: place for place, name in enumerate(self.names)}

    @property
    def palette(self) -> list[dict[str, str]]:
        """The look of each device: ``device, label, colour, shape, dash``."""
        styles = device_styles(self._devices, self._emulated)
        return [
            {
                "device": device,
                "label": html.unescape(styles[device].label),  # the board shows it as text
                "colour": styles[device].colour,
                "shape": _SHAPES[number % len(_SHAPES)],
                "dash": styles[device].dash,
            }
            for number, device in enumerate(self._devices)
        ]

    def to_json(
        self, able: Mapping[str, frozenset[str]], costs: CostModel | None = None
    ) -> dict[str, Any]:
        """Return plain data for the board; it shows names as text, so they are not escaped."""
        data, ops = self._data, self._graph.ops
        labels = node_labels(data)
        radii = {n.index: _RADIUS if n.kind == "op" else _PORT_RADIUS for n in data.nodes}
        spacing = DENSE if data.is_big else ROOMY
        page = _largest(lay_out(data, radii, labels, {}, {0: ""}, spacing))
        columns, times, fused = [], {}, {}
        if costs is not None:
            columns = [costs.devices.index(device) for device in self._devices]
            times, fused = costs.op_us, costs.fused_into
        nodes = []
        for name, node in zip(self.names, data.nodes, strict=True):
            x, y = page.spots[node.index]
            op, op_times = ops[node.index], times.get(name)
            us = [op_times[column] for column in columns] if op_times else []
            nodes.append(
                {
                    "x": round(x, 1),
                    "y": round(y, 1),
                    "kind": node.kind,
                    "name": squeeze(node.name, _LONGEST_NAME),
                    "type": squeeze(node.type, 60),
                    "label": labels.get(node.index, ""),
                    "able": [d for d, device in enumerate(self._devices) if name in able[device]],
                    "us": [time and round(time, 2) for time in us],
                    "fused": squeeze(fused.get(name, ""), _LONGEST_NAME),
                    "inputs": [
                        f"{tensor_text(ops[i].outputs[port])} from {squeeze(ops[i].name, 60)}"
                        for i, port in op.inputs
                    ],
                    "outputs": [tensor_text(tensor) for tensor in op.outputs],
                    "attributes": [
                        [squeeze(key, 60), squeeze(text, _LONGEST_NAME)]
                        for key, text in self._attributes.get(name, {}).items()
                    ],
                }
            )
        place = {node.index: number for number, node in enumerate(data.nodes)}
        wires = [
            {
                "from": place[edge.source],
                "to": place[edge.target],
                "path": "".join(map(_path, page.routes.get((edge.source, edge.target), ()))),
            }
            for edge in data.edges
        ]
        return {
            "width": round(page.width, 1),
            "height": round(page.height, 1),
            "timed": bool(times),
            "timeScale": TIME_SCALE,
            "nodes": nodes,
            "wires": wires,
        }

    def devices_of(self, affinity: Affinity) -> list[int]:
        number = {device: n for n, device in enumerate(self._devices)}
        return [number[affinity[name]] for name in self.names]

    def subgraphs_of(self, partition: Partition) -> list[int]:
        return [partition.home[node.index] for node in self._data.nodes]


def attributes_of(prepared: PreparedModel) -> dict[str, dict[str, str]]:
    """Return the attributes of each op as text, such as ``strides`` of a convolution."""
    return {
        op.get_friendly_name(): {name: str(value) for name, value in op.get_attributes().items()}
        for op in prepared.model.get_ordered_ops()
        if op.get_type_name() not in NOT_OPS
    }


def _largest(strip: Strip) -> Page:
    """Break a strip into rows so that the whole is as large as possible in the pane."""

    def scale(page: Page) -> float:
        return min(PANE[0] / page.width, PANE[1] / page.height)

    page = break_into_rows(strip, _WIDTHS[0])
    for width in _WIDTHS[1:]:
        other = break_into_rows(strip, width)
        if scale(other) <= scale(page):
            break
        page = other
    return page


def board_image(picture: Any, palette: Any, places: Any) -> str:
    """Return what a Board of these shows, with a key below, as an image."""
    nodes, homes = picture["nodes"], places["subgraphs"]
    inner, across, keys, x = [], [], [], 12
    for wire in picture["wires"]:
        a, b = homes[wire["from"]], homes[wire["to"]]
        (across if a >= 0 and b >= 0 and a != b else inner).append(wire["path"])
    drawn = [
        f'<path d="{"".join(inner)}" fill="none" stroke="#999"/>',
        f'<path d="{"".join(across)}" fill="none" stroke="#333" stroke-width="2.2"/>',
    ]
    for number, look in enumerate(palette):
        shape, rest = look["shape"], f'" fill="{look["colour"]}" stroke="#fff"/>'
        ops = [n for n, d in zip(nodes, places["devices"], strict=True) if d == number]
        spots = (f"M{n['x']} {n['y']}{shape}" for n in ops if n["kind"] == "op")
        drawn.append(f'<path d="{"".join(spots)}{rest}')
        keys.append(f'<path d="M{x} 14{shape}{rest}{_text(look["label"], x + 12, 18, "start")}')
        x += 40 + 6 * len(look["label"])
    drawn += (_text(node["label"], node["x"], node["y"] + 16, "middle") for node in nodes)
    wide, high = max(x, picture["width"]), picture["height"]
    scale = max(1.0, wide / 1000)  # that the key of a wide graph, shown smaller, can be read
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high + 28 * scale:.0f}" '
        f'font-family="sans-serif" font-size="9">{"".join(drawn)}'
        f'<g transform="translate(0 {high}) scale({scale:.2f})">{"".join(keys)}</g></svg>'
    )
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    return f'<img alt="graph" style="max-width:100%;background:#fff" src="{source}">'


def _text(text: str, x: float, y: float, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{html.escape(text)}</text>'


def tensor_text(tensor: Tensor) -> str:
    """Return type, shape and size: ``f32 [1, 64, 8, 8], 16.4 KB``."""
    shape = "of unknown shape" if tensor.shape is None else str(list(tensor.shape))
    size = "" if tensor.n_bytes is None else f", {bytes_text(tensor.n_bytes)}"
    return f"{tensor.element_type} {shape}{size}"


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
