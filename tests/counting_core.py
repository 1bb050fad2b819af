"""A real Core that counts its compiles, and placements in f32."""

from __future__ import annotations

import openvino as ov

import hetero_lab as hl

F32 = {"INFERENCE_PRECISION_HINT": "f32"}


class CountingCore(ov.Core):
    """A real Core that counts what it was asked to compile."""

    def __init__(self) -> None:
        super().__init__()
        self.n_compiled = 0

    def compile_model(self, *args, **kwargs):
        self.n_compiled += 1
        return super().compile_model(*args, **kwargs)


def core_with_acc(**emulation) -> CountingCore:
    """Return a new Core with an emulated device ACC in f32."""
    core = CountingCore()
    hl.emulate("ACC", **{"properties": F32, **emulation}, core=core)
    return core


def in_f32(affinity: hl.Affinity, label: str = "f32", direct: bool = False) -> hl.Placement:
    """Return a placement that runs in f32 on every device."""
    return hl.Placement(affinity, label, dict.fromkeys(affinity.devices, F32), direct=direct)
