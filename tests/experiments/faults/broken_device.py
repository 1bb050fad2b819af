"""A broken device: everything is the real runtime, but one compile of it has a fault.

Started in place of the usual worker, or with a script as its argument, which it then runs.
``FAULT`` in the environment is a :class:`Broken` in JSON.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import openvino as ov
from openvino import opset13 as op

from hetero_lab.experiments.measure.workers import worker
from hetero_lab.experiments.measure.workers.launch import FORK
from tests.proof.faults import put_instead, spoil_op


class Broken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is wrong with a device, and where.

    ``how`` is ``"wrong"``, ``"crash"``, ``"hang"``, ``"refuse"``, ``"slow"`` or ``"NaN"``. It shows
    where the last op of ``ops`` is on ``device`` and reads the first one there; an op is a name or
    a type. NaN begins when the op has ``length`` tokens, slow makes it ``work`` matmuls longer.
    ``settings`` must be set as well, and the release be ``since`` or newer.
    """

    how: str
    ops: tuple[str, ...]
    device: str = "ACC"
    settings: Mapping[str, str] = {}
    since: str = ""
    length: int = 0
    work: int = 0

    def environment(self, release: str = "") -> dict[str, str]:
        """Return the variables that make a process's device broken."""
        return {"FAULT": msgspec.json.encode(self).decode(), "RELEASE": release}

    def shows(self, model: ov.Model, target: str, properties: Mapping[str, Any]) -> bool:
        """Whether the fault is in a model as it is compiled."""
        if target.startswith("HETERO"):
            properties = properties.get("DEVICE_PROPERTIES", {}).get(self.device, {})
        nodes = {node.get_friendly_name(): node for node in model.get_ordered_ops()}
        last = nodes.get(self.ops[-1])
        if last is None or {str(properties.get(k)) for k in self.settings} - {
            *self.settings.values()
        }:
            return False
        near = [last, *(value.get_node() for value in last.input_values())]
        both = [n for n in near if {n.get_friendly_name(), n.get_type_name()} & {*self.ops}]
        homes = {home_of(node, target) for node in both if node.get_type_name() != "Parameter"}
        is_new = os.environ.get("RELEASE", "") >= self.since
        return len(both) >= len(self.ops) and homes == {self.device} and is_new

    def take_effect(self, model: ov.Model) -> None:
        """Fail, or put something else in the place of the op."""
        (node,) = (n for n in model.get_ordered_ops() if n.get_friendly_name() == self.ops[-1])
        if self.how == "refuse":
            raise RuntimeError("no kernel for this")
        if self.how == "hang":
            threading.Event().wait()
        if self.how == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.how == "wrong":
            spoil_op(node)
        else:
            make = {
                "NaN": lambda: late_nan(node, self.length),
                "slow": lambda: longer(node, self.work),
            }
            put_instead(node, make[self.how])
        for new in model.get_ordered_ops():
            if "affinity" not in new.get_rt_info():
                new.get_rt_info()["affinity"] = self.device


def home_of(node: ov.Node, target: str) -> str:
    """Return the device that a node is compiled for."""
    if not target.startswith("HETERO"):
        return target
    return node.get_rt_info()["affinity"].astype(str)


def late_nan(node: ov.Node, length: int) -> ov.Node:
    """Add NaN once the node's longest axis of tokens, or its largest position, is as long."""
    kind, value = node.get_type_name(), node.output(0)
    if kind in ("Sin", "Cos"):
        angles = node.input_value(0)
        seen = op.reduce_max(
            angles, op.constant(np.arange(angles.get_partial_shape().rank.get_length()))
        )
        late = op.greater_equal(seen, op.constant(np.float32(length - 1)))
    else:
        keys = node.input_value(1) if kind == "ScaledDotProductAttention" else value
        axis = -1 if kind == "Select" else 2
        seen = op.gather(op.shape_of(keys), op.constant(np.int64(axis)), op.constant(np.int64(0)))
        late = op.greater_equal(seen, op.constant(np.int64(length)))
    bad = op.select(late, op.constant(np.float32(np.nan)), op.constant(np.float32(0)))
    return op.add(value, bad)


def longer(node: ov.Node, work: int) -> ov.Node:
    """Let a node of a square shape take as long as some matmuls more."""
    size = node.get_output_shape(0)[-1]
    weights = op.constant(
        (np.random.default_rng(0).normal(size=(size, size)) / size).astype(np.float32)
    )
    extra = node
    for _ in range(work):
        extra = op.matmul(op.tanh(extra), weights, False, False)
    return op.add(node, op.multiply(extra, op.constant(np.float32(1e-20))))


def main(arguments: Sequence[str]) -> None:
    """Be a worker, a server that forks workers, or a script."""
    fault, usual = msgspec.json.decode(os.environ["FAULT"], type=Broken), ov.Core.compile_model

    def compile_model(core: ov.Core, model: Any, target: str = "", properties: Any = None) -> Any:
        if fault.shows(model, target, properties or {}):
            model = model.clone()
            fault.take_effect(model)
        return usual(core, model, target, properties or {})

    ov.Core.compile_model = compile_model
    if [*arguments] == [FORK]:
        worker.serve_forks()
    elif arguments:
        sys.argv, sys.executable = [*arguments], os.environ["BROKEN_PYTHON"]
        runpy.run_path(arguments[0], run_name="__main__")
    else:
        worker.serve()


if __name__ == "__main__":
    main(sys.argv[1:])
