"""A profile made in a process of its own: a driver's crash or hang costs no notebook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_lab.backend.emulation import emulated_devices
from hetero_lab.errors import MeasurementError, shorten
from hetero_lab.experiments.workers.process import WorkerError, WorkerProcess
from hetero_lab.model.read import PreparedModel, save
from hetero_lab.placement.placement import Placement
from hetero_lab.tables import scratch_directory

if TYPE_CHECKING:
    import openvino as ov


def write_set_up(
    directory: Path,
    prepared: Mapping[str, PreparedModel],
    arrays: Mapping[str, Sequence[np.ndarray]],
    seed: int,
    core: ov.Core,
) -> dict[str, Any]:
    """Write models and inputs where a worker can read them; return what sets a worker up."""
    models, inputs = {}, {}
    for index, variant in enumerate(prepared):
        path = directory / f"model{index}.xml"
        save(prepared[variant].model, path)
        models[variant] = str(path)
        named: dict[str, Any] = {f"{i:04d}": array for i, array in enumerate(arrays[variant])}
        inputs[variant] = str(directory / f"inputs{index}.npz")
        np.savez(inputs[variant], **named)
    emulated = [spec.to_json() for spec in emulated_devices(core).values()]
    return {"emulated": emulated, "models": models, "inputs": inputs, "seed": seed}


def profile_data(
    prepared: PreparedModel,
    placement: Placement,
    arrays: Sequence[np.ndarray],
    options: Mapping[str, Any],
    timeout_s: float,
    core: ov.Core,
) -> tuple[dict[str, Any], Iterable[str]]:
    """Profile in a worker; return the profile as plain data, and the worker's warnings.

    Raises
    ------
    MeasurementError
        The worker crashed, hung, ran out of memory or could not compile the placement.
    """
    with scratch_directory() as directory:
        set_up = write_set_up(directory, {"model": prepared}, {"model": arrays}, 0, core)
        try:
            worker = WorkerProcess(set_up)
            try:
                return worker.ask(
                    "profile",
                    timeout_s=timeout_s,
                    variant="model",
                    label=placement.label,
                    affinity=dict(placement.affinity),
                    device_properties={d: dict(p) for d, p in placement.device_properties.items()},
                    direct=placement.direct,
                    options=dict(options),
                ), worker.warnings
            finally:
                worker.close()
        except WorkerError as error:
            raise MeasurementError(
                f"The placement {shorten(placement.label)} could not be profiled in a process of "
                f"its own: {error}"
            ) from error
