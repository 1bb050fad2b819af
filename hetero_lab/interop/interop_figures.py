"""What is drawn of plans of NPUW and of recordings: a placement graph, and the tweaker's board."""

from __future__ import annotations

import html
from dataclasses import replace

from hetero_lab.costs.cost_model import CostModel
from hetero_lab.interop.npuw_plan import NpuwPlan
from hetero_lab.interop.recording import Recording
from hetero_lab.views.graph_data import GraphData, graph_data, structure
from hetero_lab.views.theme import squeeze
from hetero_lab.widgets.tweaker.board_picture import BoardPicture, attributes_of
from hetero_lab.widgets.tweaker.tweaker_measurement import Attempt, attempt_of
from hetero_lab.widgets.tweaker.tweaker_state import TweakerState


def data_of_plan(plan: NpuwPlan) -> GraphData:
    """Return the placement graph of a plan, whose groups are drawn as subgraphs."""
    graph, what = plan.bound.graph, structure(plan.partition).replace("subgraph", "group")
    title = f"{squeeze(graph.name, 50)}, {squeeze(plan.label, 50)}: {what}"
    return graph_data(graph, plan.affinity, plan.partition, title=title)


def board_of_plan(
    plan: NpuwPlan, _costs: CostModel | None
) -> tuple[TweakerState, BoardPicture, list[Attempt]]:
    """Return a board where the groups and devices of a plan take the place of devices."""
    graph, names = plan.bound.graph, (*(f"G{g.index}" for g in plan.groups), *plan.devices)
    able = dict.fromkeys(names, frozenset(graph.index_of))
    picture = BoardPicture(graph, names, {}, attributes_of(plan.bound))
    return TweakerState(graph, plan.grouping, able), picture, []


def board_of_recording(
    recorded: Recording, costs: CostModel | None
) -> tuple[TweakerState, BoardPicture, list[Attempt]]:
    """Return a board of what was recorded, whose history takes the place of measuring."""
    costs, reference = costs or recorded.costs, recorded.profile(recorded.reference)
    graph, origin = reference.graph, recorded.notes[0]
    costs.check_graph(graph)
    able = {device: costs.supports(device) for device in costs.devices}
    told = {op.name: {"times": origin} for op in graph.ops}
    heading = f"<b>A recording of {html.escape(graph.name)}</b><br>{html.escape(origin)}"
    picture = BoardPicture(graph, costs.devices, costs.emulated, told, heading)
    state = TweakerState(graph, reference.affinity, able, costs)
    rows = zip(recorded.summary.to_dict("records"), recorded.rows, strict=True)
    tried = [attempt_of(row, r.profile.affinity) for row, r in rows if r.profile is not None]
    return state, picture, [replace(t, predicted=costs.predict(t.affinity)) for t in tried]
