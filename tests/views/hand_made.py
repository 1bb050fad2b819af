"""Results made by hand, small enough to work out every number."""

from __future__ import annotations

import re
from dataclasses import replace

from random_models import random_affinity, random_model

from hetero_lab.intervals import Latency
from hetero_lab.model.opgraph import Op, OpGraph, Tensor
from hetero_lab.model.read import prepare
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import Boundary, Partition, Subgraph, predict
from hetero_lab.results.environment import Environment
from hetero_lab.results.profile_result import Profile
from hetero_lab.runtime.counters import Counter
from hetero_lab.views.graph_data import GraphData, graph_data

# The first three are those that a quick test takes.
NASTY = [
    '<a href="javascript:alert(1)">link</a><br><b>bold</b>',
    "</script><img src=x onerror=alert(1)>",
    "n" * 10_000,
    '<script>alert("1")</script>',
    "two\nlines\tand\rmore",
    "=1+1",
    "a/b/../../c",
    "$\\alpha$ costs $5",
    "%{x} %{customdata}",
    "&lt;b&gt; &amp;",
    "turn\u202earound",
]


def contrast(first: str, second: str) -> float:
    """Return the contrast of two colours, ``#rrggbb`` or ``rgb(r, g, b)`` (WCAG 2)."""
    levels = []
    for colour in (first, second):
        base, digits = (16, "[0-9a-fA-F]{2}") if colour.startswith("#") else (10, "[0-9]+")
        parts = [int(n, base) / 255 for n in re.findall(digits, colour)[:3]]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        levels.append(sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True)))
    low, high = sorted(levels)
    return (high + 0.05) / (low + 0.05)


def tensor(size: int, name: str = "") -> Tensor:
    return Tensor((1, size), "f32", 4 * size, name)


def small_graph(relu: str = "relu", output: str = "probabilities") -> OpGraph:
    """Build x → matmul → relu → softmax → add → output, where add reads relu too."""
    ops = (
        Op(0, "x", "Parameter", (), (tensor(4, "x"),)),
        Op(1, "weights", "Constant", (), (tensor(32),)),
        Op(2, "matmul", "MatMul", ((0, 0), (1, 0)), (tensor(8),)),
        Op(3, relu, "Relu", ((2, 0),), (tensor(8),)),
        Op(4, "softmax", "Softmax", ((3, 0),), (tensor(8),)),
        Op(5, "add", "Add", ((3, 0), (4, 0)), (tensor(8, output),)),
        Op(6, "add/result", "Result", ((5, 0),), ()),
    )
    return OpGraph("small", ops, (0,), (6,))


def small_profile(relu: str = "relu", label: str = "HETERO:ACC,CPU", **changes) -> Profile:
    """Build a profile of it: softmax on CPU, the rest on an emulated ACC."""
    graph = small_graph(relu)
    affinity = Affinity.from_graph(
        graph, {op.name: "CPU" if op.type == "Softmax" else "ACC" for op in graph}
    )
    partition = Partition(
        (
            Subgraph("ACC", ("matmul", relu)),
            Subgraph("CPU", ("softmax",)),
            Subgraph("ACC", ("add",)),
        ),
        (
            Boundary(relu, relu, 0, 0, (1, 2), 32),
            Boundary("softmax", "softmax", 0, 1, (2,), 32),
        ),
        observed=True,
    )
    profile = Profile(
        label=label,
        model_fingerprint="0",
        graph=graph,
        affinity=affinity,
        latency=Latency(((100.0, 101.0, 102.0, 102.0), (104.0, 106.0, 108.0, 900.0))),
        partition=partition,
        as_predicted=True,
        counters=(
            counter(0, "ACC", "op", "matmul", 10.0, fused_ops=(relu,), precision="bf16"),
            counter(0, "ACC", "reorder", "", 2.0, tensor=relu),
            counter(1, "CPU", "op", "softmax", 5.0, precision="f32"),
            counter(2, "ACC", "op", "add", 3.0, precision="bf16"),
            counter(2, "ACC", "reorder", "", 1.0, tensor="softmax"),
        ),
        agreement=(),
        compile_ms=1.0,
        first_inference_ms=1.0,
        peak_rss_bytes=1,
        environment=Environment(
            "2026.4", "3.11", "Linux", "host", 2, "2026-01-01T00:00:00+00:00", "", None,
            (("ACC", "a"), ("CPU", "c")), (("ACC", "CPU"),),
        ),
    )  # fmt: skip
    return replace(profile, **changes)


def predicted_data(graph: OpGraph, affinity: Affinity) -> GraphData:
    return graph_data(graph, affinity, predict(graph, affinity))


def random_data(seed: int, *n_ops: int, devices: str = "AB") -> GraphData:
    """Place a random model at random."""
    graph = prepare(random_model(seed, *n_ops)).graph
    return predicted_data(graph, random_affinity(graph, [*devices], seed))


def counter(subgraph: int, device: str, kind: str, op: str, time_us: float, **more) -> Counter:
    return Counter(
        **{
            "subgraph": subgraph, "device": device, "node_name": op or kind, "node_type": "",
            "exec_type": "", "precision": "", "status": "EXECUTED", "real_time_us": time_us,
            "cpu_time_us": time_us, "kind": kind, "op": op, **more,
        }
    )  # fmt: skip
