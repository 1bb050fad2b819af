"""One inference of a model that is compiled for it: in this process, or by a worker from files."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov

_HINT = "INFERENCE_PRECISION_HINT"


def infer_once(
    model: ov.Model,
    target: str,
    properties: Mapping[str, Any],
    arrays: Sequence[np.ndarray],
    core: ov.Core,
) -> tuple[list[np.ndarray], dict[str, str]]:
    """Compile a model for a device or for HETERO and infer once.

    Returns
    -------
    tuple
        The outputs in the model's order, and the precision hint of each device that tells it.
    """
    compiled = core.compile_model(model, target, dict(properties))
    request = compiled.create_infer_request()
    for index, array in enumerate(arrays):
        request.set_input_tensor(index, ov.Tensor(np.ascontiguousarray(array)))
    request.infer()
    outputs = [np.array(request.get_output_tensor(i).data) for i in range(len(compiled.outputs))]
    return outputs, _hints(compiled, target)


def _hints(compiled: ov.CompiledModel, target: str) -> dict[str, str]:
    hints: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # not every device has the property
        if target.startswith("HETERO:"):
            by_device = compiled.get_property("DEVICE_PROPERTIES")
            hints = {d: own[_HINT] for d, own in by_device.items() if _HINT in own}
        else:
            hints = {target: compiled.get_property(_HINT)}
    return {device: str(hint) for device, hint in hints.items()}


def infer_file(
    path: str,
    target: str,
    properties: Mapping[str, Any],
    affinities: Mapping[str, str] | None,
    inputs: str,
    outputs: str,
    core: ov.Core,
) -> dict[str, str]:
    """Do the same with a model and arrays from files; write the outputs to a file.

    ``affinities`` maps every node to a device, as files do not keep them.
    """
    model = core.read_model(path)
    if affinities is not None:
        for node in model.get_ordered_ops():
            node.get_rt_info()["affinity"] = affinities[node.get_friendly_name()]
    with np.load(inputs) as stored:
        arrays = [stored[f"in{index}"] for index in range(len(model.inputs))]
    made, hints = infer_once(model, target, properties, arrays, core)
    named: dict[str, Any] = {f"out{index}": array for index, array in enumerate(made)}
    np.savez(outputs, **named)
    return hints


def affinities_of(model: ov.Model) -> dict[str, str]:
    """Return the affinity that is written on each node of a model."""
    return {
        node.get_friendly_name(): node.get_rt_info()["affinity"].astype(str)
        for node in model.get_ordered_ops()
    }
