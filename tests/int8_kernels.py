"""Count what a compiled model executes in int8, from OpenVINO's own profiling info."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import openvino as ov

_INT8 = re.compile(r"_[iu]8$", re.IGNORECASE)
# What HETERO adds at a boundary, or the plugin where it quantises, is no op of the model.
_HELPERS = ("Reorder", "Convert", "Subgraph", "Reshape", "Transpose")
COUNTED = {"PERF_COUNT": True}


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
