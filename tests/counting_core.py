"""A real Core that keeps account of its compiles, placements in f32, and kernels in int8."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import openvino as ov

import hetero_lab as hl

F32 = {"INFERENCE_PRECISION_HINT": "f32"}
_INT8 = re.compile(r"_[iu]8$", re.IGNORECASE)
# What HETERO adds at a boundary, or the plugin where it quantises, is no op of the model.
_HELPERS = ("Reorder", "Convert", "Subgraph", "Reshape", "Transpose")
COUNTED = {"PERF_COUNT": True}


class CountingCore(ov.Core):
    """A real Core that keeps the properties of every model that it was asked to compile."""

    def __init__(self) -> None:
        super().__init__()
        self.configs: list[dict[str, object]] = []

    @property
    def n_compiled(self) -> int:
        """How many models it was asked to compile."""
        return len(self.configs)

    def compile_model(self, model, device_name, config=None):
        self.configs.append(dict(config or {}))
        return super().compile_model(model, device_name, config or {})


def core_with_acc(**emulation) -> CountingCore:
    """Return a new Core with an emulated device ACC in f32."""
    core = CountingCore()
    hl.emulate("ACC", **{"properties": F32, **emulation}, core=core)
    return core


def on_acc(model: ov.Model, core: ov.Core, *ops: str) -> hl.Affinity:
    """Put some ops on ACC and all others on CPU."""
    cpu = hl.Affinity.uniform(model, "CPU", core=core)
    return cpu.fix(ops=dict.fromkeys(ops, "ACC"), core=core)


def torn_by_a_file(affinity: hl.Affinity, path: Path) -> hl.Affinity:
    """Put the op 'middle' of a stateful path on ACC, as only an edited file can."""
    frame = affinity.to_frame()
    frame["leader"] = frame["node"]
    frame.loc[frame["node"] == "middle", "device"] = "ACC"
    frame.to_csv(path, index=False)
    return hl.Affinity.from_csv(path)


def in_f32(affinity: hl.Affinity, label: str = "f32", direct: bool = False) -> hl.Placement:
    """Return a placement that runs in f32 on every device."""
    return hl.Placement(affinity, label, dict.fromkeys(affinity.devices, F32), direct=direct)


def int8_kernels(compiled: ov.CompiledModel, inputs: Any) -> Counter[str]:
    """Run a model that was compiled with counters; return node type → kernels in int8."""
    request = compiled.create_infer_request()
    request.infer(inputs)
    return Counter(
        info.node_type
        for info in request.get_profiling_info()
        if _INT8.search(info.exec_type) and info.node_type not in _HELPERS
    )


def heavy(kernels: Counter[str]) -> int:
    """Count the convolutions and matmuls among them."""
    wanted = ("Convolution", "GroupConvolution", "FullyConnected", "MatMul")
    return sum(n for kind, n in kernels.items() if kind.startswith(wanted))
