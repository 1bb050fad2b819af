"""A real Core that keeps account of its compiles, and placements in f32."""

from __future__ import annotations

from pathlib import Path

import openvino as ov

import hetero_lab as hl

F32 = {"INFERENCE_PRECISION_HINT": "f32"}


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
