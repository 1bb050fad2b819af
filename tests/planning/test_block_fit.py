"""What a device is counted to hold where a model is divided by block."""

from __future__ import annotations

import numpy as np
import openvino as ov
from openvino import opset13 as op

import hetero_lab as hl


def layers() -> ov.Model:
    """Build three layers, with weights of 1024 bytes each, that hand on 128 bytes."""
    x = here = op.parameter([2, 16], np.float32, name="x")
    for number in range(3):
        weight = op.constant(np.eye(16, dtype=np.float32), name=f"layers.{number}.weight")
        product = op.matmul(here, weight, False, False, name=f"layers.{number}.matmul")
        here = op.relu(product, name=f"layers.{number}.relu")
    return ov.Model([op.result(here)], [x], "layers")


def test_only_what_is_handed_over_is_a_boundary():
    devices = [hl.emulate("ACC").name, "CPU"]
    for limit, boundaries in ({}, [0, 0]), ({"ACC": 3000}, [128, 128]):
        held = hl.fit_blocks(layers(), devices, limit).memory
        assert [each.boundary_bytes for each in held] == boundaries
