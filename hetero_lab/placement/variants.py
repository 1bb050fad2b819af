"""Carry an affinity over to a variant of its model, for instance the quantised one."""

from __future__ import annotations

from collections.abc import Mapping

from hetero_lab.errors import AffinityError, names_at_hand
from hetero_lab.model.opgraph import OpGraph

LEAST_SHARE = 0.5  # of the ops that can be placed; fewer, and it is another model


def carried_devices(devices: Mapping[str, str], graph: OpGraph) -> dict[str, str]:
    """Return the device of each leader of a variant's graph, from those of the original's nodes.

    An op of the same name keeps its device. A new one goes where its output is used first: so
    a FakeQuantize stays with the op that runs in int8 thanks to it. One whose output no known
    op uses goes with what it reads.

    Parameters
    ----------
    devices
        Node of the original model → device.
    graph
        The variant.

    Raises
    ------
    AffinityError
        Fewer than half of the variant's ops are known: it is of another model.
    """
    placeable = graph.placeable
    known = [index for index in placeable if graph.ops[index].name in devices]
    # Quantisers are new in any case; what they quantise is not.
    old = [index for index in placeable if index in known or graph.ops[index].type not in _MADE]
    if len(known) < LEAST_SHARE * len(old) or not known:
        missing = names_at_hand([graph.ops[i].name for i in old if i not in set(known)], 3)
        raise AffinityError(
            f"This affinity belongs to another model: it knows {len(known)} of {len(old)} ops, "
            f"not {missing}. Make one with hetero_lab.Affinity.automatic(model, 'HETERO:…')."
        )
    found = {index: devices[graph.ops[index].name] for index in known}
    free = set(placeable)
    for index in reversed(placeable):
        if index not in found:
            users = (use.index for use in graph.consumers[index] if use.index in found)
            first = next(users, None)
            if first is not None:
                found[index] = found[first]
    for index in placeable:
        if index not in found:
            above = (producer for producer, _ in graph.ops[index].inputs if producer in found)
            first = next(above, None)
            found[index] = found[first] if first is not None else found[known[0]]
    leaders = dict.fromkeys(graph.leader)
    return {
        graph.ops[index].name: found[index] if index in free else found[known[0]]
        for index in leaders
    }


_MADE = frozenset(["FakeQuantize", "Convert", "Multiply", "Subtract"])
