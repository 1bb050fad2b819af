"""Why there are so many subgraphs, of chains and forks whose subgraphs are counted by hand."""

from __future__ import annotations

from planning.random_costs import GraphMaker

from hetero_lab.model.opgraph import OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.subgraph_causes import Cause, Division, cause_of


def chain(**types: str) -> OpGraph:
    """Return ops that read each other, by name the type."""
    maker = GraphMaker()
    at = maker.add("Parameter")
    for name, op_type in types.items():
        at = maker.chain(at, [name], op_type)
    return maker.graph()


def cause(graph: OpGraph, lacks: set[str], **elsewhere: str) -> Cause:
    """Return the cause where A comes first and lacks some types, and some ops are elsewhere."""
    ops = {graph.ops[index].name: graph.ops[index].type for index in graph.placeable}
    able = {name for name, op_type in ops.items() if op_type not in lacks}
    device_of = {op.name: "A" if op.name in able or op.name not in ops else "B" for op in graph}
    affinity = Affinity.from_graph(graph, {**device_of, **elsewhere})
    return cause_of(Division(graph, affinity, {"A": able, "B": set(ops)}))


FIVE = {"a": "Relu", "b": "Softmax", "c": "Relu", "d": "Softmax", "e": "Relu"}


def test_what_a_device_lacks():
    assert cause(chain(**FIVE), set()) == Cause("1 subgraph: nothing is cut.")
    found = cause(chain(**FIVE), {"Softmax"})
    assert found.text == (
        "5 subgraphs: A does not support Softmax (2 ops). If A supported it, there would be 1 "
        "subgraph."
    )
    assert (found.device, found.ops, found.n_without) == ("A", ("b", "d"), 1)


def test_of_several_types_those_that_explain_most_are_named():
    types = {**FIVE, "f": "Tanh", "g": "Relu"}
    found = cause(chain(**types), {"Softmax", "Tanh"})
    assert found.reason == "A does not support Softmax, Tanh (3 ops)"
    assert (found.ops, found.n_without) == (("b", "d", "f"), 1)
    # One of six explains too little to be named beside the others.
    many = {f"{name}{n}": op_type for n in range(3) for name, op_type in FIVE.items()}
    found = cause(chain(**many, f="Tanh", g="Relu"), {"Softmax", "Tanh"})
    assert found.reason == "A does not support Softmax (6 ops)"
    assert found.n_without == 3
    assert found.text.startswith("15 subgraphs: ")


def test_what_a_placement_chose():
    found = cause(chain(a="Relu", b="Relu", c="Relu"), set(), b="B")
    assert found.text == (
        "3 subgraphs: 1 op that A can run is elsewhere ('b'). On A, there would be 1 subgraph."
    )
    assert (found.device, found.ops) == ("A", ("b",))
    more = cause(chain(**dict.fromkeys("abcdefgh", "Relu")), set(), b="B", d="B", f="B")
    assert more.reason == "3 ops that A can run are elsewhere ('b', 'd' and 1 more)"
    assert more.n_without == 1


def test_the_order_that_explains_most_is_taken_for_the_priorities():
    graph = chain(a="Relu", b="Softmax", c="Relu", d="Relu")
    names = [graph.ops[index].name for index in graph.placeable]
    affinity = Affinity.from_graph(graph, {op.name: "B" if op.name == "b" else "A" for op in graph})
    division = Division(graph, affinity, {"B": set(names), "A": set(names) - {"b"}})
    order = [division.devices[number] for number in division.priorities()]
    assert order == ["A", "B"]
    assert len(division.elsewhere(division.priorities())) == 0
    other = division.priorities()[::-1]
    assert [graph.ops[index].name for index in division.elsewhere(other)] == ["a", "c", "d"]
    assert division.n_subgraphs(division.start) == 3
    assert division.components(division.start) == (3, False)
    moved = division.moved([graph.index_of["b"]], division.devices.index("A"))
    assert division.n_subgraphs(moved) == 1


def test_of_many_types_the_twelve_with_most_ops_are_tried():
    kinds = [f"Kind{n}" for n in range(16)]
    maker = GraphMaker()
    at = maker.chain(maker.add("Parameter"), ["first"])
    for kind in kinds:
        at = maker.add("Relu", [maker.add(kind, [at], name=kind)])
    found = cause(maker.graph(), set(kinds))  # each takes two subgraphs
    assert found.ops == tuple(kinds[:12])
    assert found.n_without == 33 - 2 * 12
    assert found.reason == "A does not support Kind0, Kind1, Kind2 and 9 more types (12 ops)"
