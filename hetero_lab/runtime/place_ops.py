"""Compile a model as its file says. Needs openvino alone.

core = ov.Core()
model = core.read_model("placed.xml")
compiled = core.compile_model(model, *place_ops(model, core))
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import openvino as ov

NOTE = ["hetero_lab", "placement"]  # in the model's file
# The properties that a file may set: none of them takes a path, or writes.
_ALLOWED = """
ACTIVATIONS_SCALE_FACTOR ALLOW_AUTO_BATCHING AUTO_BATCH_TIMEOUT COMPILATION_NUM_THREADS
CPU_DENORMALS_OPTIMIZATION CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE DEVICE_BIND_BUFFER DEVICE_ID
DYNAMIC_QUANTIZATION_GROUP_SIZE ENABLE_CPU_PINNING ENABLE_CPU_RESERVATION ENABLE_HYPER_THREADING
ENABLE_RUNTIME_FALLBACK ENABLE_STARTUP_FALLBACK ENABLE_TENSOR_PARALLEL EXCLUSIVE_ASYNC_REQUESTS
EXECUTION_MODE_HINT GPU_DISABLE_WINOGRAD_CONVOLUTION GPU_ENABLE_LARGE_ALLOCATIONS
GPU_ENABLE_LOOP_UNROLLING GPU_ENABLE_SDPA_OPTIMIZATION GPU_HOST_TASK_PRIORITY GPU_QUEUE_PRIORITY
GPU_QUEUE_THROTTLE INFERENCE_NUM_THREADS INFERENCE_PRECISION_HINT KEY_CACHE_GROUP_SIZE
KEY_CACHE_PRECISION KV_CACHE_PRECISION LOW_POWER_DEVICE MODEL_DISTRIBUTION_POLICY MODEL_PRIORITY
NPU_BYPASS_UMD_CACHING NPU_COMPILATION_MODE NPU_COMPILER_TYPE NPU_DEFER_WEIGHTS_LOAD
NPU_PLATFORM NPU_TILES NPU_TURBO NUM_STREAMS PERFORMANCE_HINT PERFORMANCE_HINT_NUM_REQUESTS
PERF_COUNT QUERY_MODEL_RATIO SCHEDULE_POLICY SCHEDULING_CORE_TYPE TBB_PARTITIONER
VALUE_CACHE_GROUP_SIZE VALUE_CACHE_PRECISION
"""


def check_plugins(emulated: Mapping[str, Sequence[str]]) -> None:
    """Raise ValueError unless these plugins are those that ``hetero_lab.emulate`` registers."""
    reserved = "(CPU|GPU|NPU|AUTO|MULTI|HETERO|BATCH|PROXY|TEMPLATE)"
    for name, (plugin, internal) in emulated.items():
        pairs = [
            (f"openvino_intel_{b.lower()}_plugin", f"{name}_{b}") for b in ("CPU", "GPU", "NPU")
        ]
        if (plugin, internal) not in pairs or not re.fullmatch(
            f"(?!{reserved}$)[A-Z][A-Z0-9_]*", name
        ):
            raise ValueError(
                f"the device {name!r} has a plugin {plugin!r}, {internal!r} of its own"
            )


def check_properties(properties: Mapping[str, Any]) -> None:
    """Raise ValueError for a property that a file must not set: it may take a path, or write."""
    for key, value in properties.items():
        by_device = value.values() if isinstance(value, dict) else [value]
        if key == "DEVICE_PROPERTIES" and all(isinstance(each, dict) for each in by_device):
            for of_device in by_device:
                check_properties(of_device)
        elif key not in _ALLOWED.split() or not re.fullmatch(r"[\w.:,+ -]*", str(value), re.A):
            raise ValueError(f"a file must not set the property {key!r} to {value!r}")


def noted(model: ov.Model) -> dict[str, Any]:
    """Return the placement in a model's file; ValueError for one that could load or write files."""
    note = json.loads(model.get_rt_info(NOTE).astype(str))
    check_plugins(note["emulated"])
    check_properties(note["properties"])
    return note


def place_ops(model: ov.Model, core: ov.Core) -> tuple[str, dict[str, Any]]:
    """Label the ops of a model as its file says; return the device and the properties."""
    note = noted(model)
    devices, ops, weights = dict(note["affinity"]), model.get_ordered_ops(), set()
    for op in ops:  # constants are not named there, nor what compression adds to them
        sources = {value.get_node().get_friendly_name() for value in op.input_values()}
        if op.get_friendly_name() not in devices and sources <= weights:
            weights.add(op.get_friendly_name())
    here = {op.get_friendly_name() for op in ops} - weights
    if here != devices.keys():
        lacks, new = sorted(devices.keys() - here)[:8], sorted(here - devices.keys())[:8]
        raise ValueError(f"The model is not the one that was placed. It lacks {lacks}; new: {new}.")
    for device in {*devices.values()}:
        core.get_property(device.partition(":")[0], "FULL_DEVICE_NAME")  # raises if it is missing
    for op in reversed(ops):
        device = op.get_rt_info()["affinity"] = devices[op.get_friendly_name()]
        sources = {value.get_node().get_friendly_name() for value in op.input_values()}
        devices.update(dict.fromkeys(sources & weights, device))  # in the end, the first user's
    return note["target"], note["properties"]
