"""A profile made in a process of its own: a driver's crash or hang costs no notebook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_lab.errors import MeasurementError, shorten
from hetero_lab.experiments.workers.job import Job
from hetero_lab.experiments.workers.process import WorkerError, WorkerProcess
from hetero_lab.experiments.workers.set_up import write_set_up
from hetero_lab.model.read import PreparedModel
from hetero_lab.placement.placement import Placement
from hetero_lab.tables import scratch_directory

if TYPE_CHECKING:
    import openvino as ov


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
    job = Job(
        key="profile",
        label=placement.label,
        variant="model",
        affinity=dict(placement.affinity),
        device_properties={d: dict(p) for d, p in placement.device_properties.items()},
        direct=placement.direct,
    )
    with scratch_directory() as directory:
        set_up = write_set_up(directory, {"model": prepared}, {"model": arrays}, 0, core)
        try:
            worker = WorkerProcess(set_up)
            try:
                return worker.ask(
                    "profile", timeout_s=timeout_s, job=job, options=dict(options)
                ), worker.warnings
            finally:
                worker.close()
        except WorkerError as error:
            raise MeasurementError(
                f"The placement {shorten(placement.label)} could not be profiled in a process of "
                f"its own: {error}"
            ) from error
