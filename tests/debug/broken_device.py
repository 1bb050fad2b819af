"""A broken device: everything is the real runtime, but what it compiles has a fault.

Started in place of the usual worker, or with a script as its argument, which it then runs.
``FAULT`` in the environment is a :class:`Broken` in JSON.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import openvino as ov
from openvino import opset13 as op

from hetero_lab.measure import worker_program
from hetero_lab.measure.worker_program import prepare as prepare
from tests.proof.faults import put_instead, spoil_op


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a device, and where.

    ``how`` is ``"wrong"``, ``"crash"``, ``"hang"``, ``"refuse"``, ``"slow"`` or ``"NaN"``. It shows
    where the last op of ``ops`` is on ``device`` and reads the first one there; an op is a name or
    a type. NaN begins when the op, or its second input, has so many ``elements``. The ``settings``
    must be set as well, and the release be ``since`` or newer.
    """

    how: str
    ops: tuple[str, ...]
    device: str = "ACC"
    elements: int = 0
    settings: Mapping[str, str] = {}
    since: str = ""

    def environment(self, release: str = "") -> dict[str, str]:
        """Return the variables that make the device of a process broken."""
        return {"FAULT": msgspec.json.encode(self).decode(), "RELEASE": release}

    def put_into(self, model: ov.Model, target: str, properties: Mapping[str, Any]) -> None:
        """Fail, or change the model that is compiled, if it has the fault."""
        is_hetero = target.startswith("HETERO:")
        own = properties.get("DEVICE_PROPERTIES", {}) if is_hetero else {target: properties}
        given = {key: str(own.get(self.device, {}).get(key)) for key in self.settings}
        if given != self.settings or os.environ["RELEASE"] < self.since:
            return

        def is_here(node: ov.Node) -> bool:
            home = node.get_rt_info()["affinity"].astype(str) if is_hetero else target
            return home == self.device or node.get_type_name() == "Parameter"

        for node in model.get_ordered_ops():
            near = filter(is_here, [node, *(value.get_node() for value in node.input_values())])
            named = {name for n in near for name in (n.get_friendly_name(), n.get_type_name())}
            if node.get_friendly_name() == self.ops[-1] and named >= {*self.ops}:
                self._break(node)
                break
        for node in model.get_ordered_ops():
            if "affinity" not in node.get_rt_info():
                node.get_rt_info()["affinity"] = self.device

    def _break(self, node: ov.Node) -> None:
        match self.how:
            case "refuse":
                raise RuntimeError("no kernel for this")
            case "hang":
                threading.Event().wait()
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "wrong":
                spoil_op(node)
            case "NaN":
                put_instead(node, lambda: _late_nan(node, self.elements))
            case "slow":
                put_instead(node, lambda: _longer(node))


def _late_nan(node: ov.Node, elements: int) -> ov.Node:
    is_attention = node.get_type_name() == "ScaledDotProductAttention"
    seen = op.shape_of(node.input_value(1) if is_attention else node)
    late = op.greater_equal(op.reduce_prod(seen, op.constant([0])), op.constant(elements))
    bad = op.select(late, op.constant(np.float32(np.nan)), op.constant(np.float32(0)))
    return op.add(node, bad)


def _longer(node: ov.Node) -> ov.Node:
    """Do four matmuls more, which change nothing."""
    size, extra = node.get_output_shape(0)[-1], node
    weights = op.constant(np.eye(size, dtype=np.float32) / 2)
    for _ in range(4):
        extra = op.matmul(op.tanh(extra), weights, False, False)
    return op.add(node, op.multiply(extra, op.constant(np.float32(1e-20))))


def serve(prepared: Any = None) -> None:
    """Be a worker."""
    break_device()
    worker_program.serve(prepared)


def break_device() -> None:
    """Put the fault into what this process compiles."""
    fault, usual = msgspec.json.decode(os.environ["FAULT"], type=Broken), ov.Core.compile_model

    def compile_model(core: ov.Core, model: Any, target: str = "", properties: Any = None) -> Any:
        model = model.clone()
        fault.put_into(model, target, properties or {})
        return usual(core, model, target, properties or {})

    ov.Core.compile_model = compile_model


def main(arguments: list[str]) -> None:
    """Be a worker or a script."""
    if arguments:
        break_device()
        sys.argv, sys.executable = arguments, os.environ["BROKEN_PYTHON"]
        runpy.run_path(arguments[0], run_name="__main__")
    else:
        serve()


if __name__ == "__main__":
    main(sys.argv[1:])
