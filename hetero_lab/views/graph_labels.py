"""Labels and hover texts of a placement graph, escaped."""

from __future__ import annotations

from hetero_lab.model.opgraph import Tensor
from hetero_lab.tables import bytes_text
from hetero_lab.terminal import count_of, first_of
from hetero_lab.views.graph_data import GraphBox, GraphData, GraphEdge, GraphNode
from hetero_lab.views.theme import device_label, plain, squeeze, time_text

BIG = 160  # a graph of more ops than this has labels beside slow nodes only
EXIT_LABEL_LIMIT = 60  # more boundaries than this have no bytes beside them
_SLOW = 0.03  # an op with more than this share of the time has it in its label
_MOST_MARKED = 40  # more ops than this that were searched for are not all named
_MOST = 4  # tensors or names that are listed


def is_big(data: GraphData) -> bool:
    """Whether a graph has so many ops that it is drawn densely, without most labels."""
    return sum(not node.is_port for node in data.nodes) > BIG


def node_labels(data: GraphData) -> dict[int, str]:
    """Return the labels beside nodes, in lines."""
    labels = {}
    big = is_big(data)
    for node in data.nodes:
        slow = bool(node.time_us) and (node.time_us or 0.0) > _SLOW * data.total_us
        if node.kind == "group":
            labels[node.index] = "\n".join(_group_label(node, slow))
        elif node.index in data.marked and len(data.marked) <= _MOST_MARKED:
            labels[node.index] = squeeze(node.name, 24)
        elif slow or not big:
            label = squeeze(node.type if node.kind == "op" else node.name, 18)
            labels[node.index] = f"{label}\n{time_text(node.time_us or 0.0)}" if slow else label
    return labels


def _group_label(node: GraphNode, slow: bool) -> list[str]:
    name = node.name if len(node.name) <= 20 else f"…{squeeze(node.name[-40:], 40)[-19:]}"
    lines = [squeeze(name, 20), f"{node.n_ops} ops"]
    if len(node.devices) > 1:
        lines[1:] = [f"{n} on {squeeze(device, 14)}" for device, n in node.devices[:3]]
    return [*lines, *([time_text(node.time_us or 0.0)] if slow else [])]


def exit_labels(data: GraphData) -> dict[int, str]:
    """Return the bytes of the tensors that leave a subgraph, by the op that makes them."""
    sizes: dict[int, dict[str, int | None]] = {}
    for edge in data.edges:
        if edge.is_boundary:
            found = sizes.setdefault(edge.source, {})
            found.update(zip(edge.tensors, edge.sizes, strict=True))
    if len(sizes) > EXIT_LABEL_LIMIT:
        return {}
    return {
        op: bytes_text(sum(size or 0 for size in each.values()))
        for op, each in sizes.items()
        if None not in each.values()
    }


def box_titles(data: GraphData) -> dict[int, tuple[str, ...]]:
    """Return titles of each subgraph, from long to the shortest that must fit."""
    big = is_big(data)
    titles = {}
    for box in data.boxes:
        device = squeeze(box.device, 24)
        took = data.box_us(box)
        if box.n_unseen:
            device += f", {count_of(box.n_unseen, 'more op')}"
        options = [f"subgraph {box.index} · {device}", f"{box.index} · {device}"]
        if box.n_subgraphs > 1:
            options = [count_of(box.n_subgraphs, "subgraph"), str(box.index)]
        if took is not None:
            timed = [f"{option} · {time_text(took)}" for option in options]
            options = [*timed, options[1]] if big else timed
        titles[box.index] = tuple(options)
    return titles


def box_hover(box: GraphBox, data: GraphData) -> str:
    """Describe a subgraph."""
    n_ops = sum(data.node_of[index].n_ops for index in box.nodes)
    if box.n_subgraphs > 1:
        lines = [f"<b>{box.n_subgraphs} subgraphs</b> from subgraph {box.index} on"]
    else:
        lines = [f"<b>subgraph {box.index}</b> on {device_label(box.device, data.emulated)}"]
    lines.append(count_of(n_ops, "op") if n_ops else "it only copies")
    if box.n_unseen:
        lines.append(f"and {box.n_unseen} that are not shown")
    took = data.box_us(box)
    if took is not None:
        lines.append(f"its ops take {_took(took, data)}")
    return "<br>".join(lines)


def op_hover(node: GraphNode, data: GraphData) -> str:
    """Describe an op, or ops that are drawn as one."""
    lines, is_group = [f"<b>{plain(node.name)}</b>"], node.kind == "group"
    if is_group:
        counts = node.devices[:_MOST]
        devices = ", ".join(f"{n} on {device_label(d, data.emulated)}" for d, n in counts)
        types = [f"{plain(name, 30)} × {n}" for name, n in node.types]
        lines += [f"{node.n_ops} ops folded: {devices}", first_of(types, _MOST, "types")]
    else:
        where = f"{device_label(node.device, data.emulated)}, subgraph {node.subgraph}"
        lines += [f"{plain(node.type)} on {where}", *_tensors(node.tensors)]
    if node.leader:
        lines.append(f"runs inside {plain(node.leader, 60)}, which has its time")
    elif node.time_us is not None:
        lines.append(_took(node.time_us, data))
    elif data.is_timed and not is_group:
        lines.append("the counters do not tell its time")
    if node.precision:
        lines.append(f"runs in {plain(node.precision)}")
    if node.displaced and not is_group:
        lines.append(plain(str(node.displaced)))
    if node.fused:
        lines.append(f"inside it run {first_of([plain(name, 40) for name in node.fused], _MOST)}")
    if node.n_unseen:
        lines.append(f"neighbours that are not shown: {node.n_unseen}")
    return "<br>".join(lines)


def port_hover(node: GraphNode) -> str:
    """Describe a model input or output."""
    lines = [f"<b>{plain(node.name)}</b>", f"model {node.kind}", *_tensors(node.tensors)]
    return "<br>".join(lines)


def boundary_hover(edge: GraphEdge, data: GraphData) -> str:
    """Describe the tensors that cross from one subgraph into another."""
    source, target = data.node_of[edge.source], data.node_of[edge.target]
    lines = [
        f"<b>boundary</b> {first_of([plain(name, 60) for name in edge.tensors], _MOST)}",
        bytes_text(edge.n_bytes),
        f"from subgraph {source.subgraph} on {device_label(source.device, data.emulated)}",
        f"to subgraph {target.subgraph} on {device_label(target.device, data.emulated)}",
        f"read by {plain(target.name, 60)}",
    ]
    if edge.reorder_us is not None:
        lines.append(f"reorders at it take {time_text(edge.reorder_us)}")
    return "<br>".join(lines)


def _took(time_us: float, data: GraphData) -> str:
    share = f", {time_us / data.total_us:.1%} of all ops" if data.total_us else ""
    return f"{time_text(time_us)}{share}"


def _tensors(tensors: tuple[Tensor, ...]) -> list[str]:
    lines = []
    for tensor in tensors[:_MOST]:
        known = None if tensor.shape is None else "×".join(map(str, tensor.shape)) or "scalar"
        shape = known or "shape not known"
        lines.append(f"{shape} {plain(tensor.element_type, 20)}, {bytes_text(tensor.n_bytes)}")
    if len(tensors) > _MOST:
        lines.append(f"and {len(tensors) - _MOST} more outputs")
    return lines
