"""The files that workers are set up with, how workers are started, and their memory limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hetero_lab.backend.bound import BoundModel
from hetero_lab.backend.emulation import emulated_devices
from hetero_lab.experiments.workers.requests import SetUp
from hetero_lab.model.read import save


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker is started, and how much memory it may use."""

    command: tuple[str, ...] | None = None
    memory_limit_bytes: int | None = None


def write_set_up(
    directory: Path,
    bound: Mapping[str, BoundModel],
    arrays: Mapping[str, Sequence[np.ndarray]],
    seed: int,
) -> SetUp:
    """Write models and inputs where a worker can read them; return what sets a worker up."""
    models, inputs = {}, {}
    core = next(iter(bound.values())).core
    for index, variant in enumerate(bound):
        path = directory / f"model{index}.xml"
        save(bound[variant].model, path)
        models[variant] = str(path)
        named: dict[str, Any] = {f"{i:04d}": array for i, array in enumerate(arrays[variant])}
        inputs[variant] = str(directory / f"inputs{index}.npz")
        np.savez(inputs[variant], **named)
    return SetUp(
        models=models,
        inputs=inputs,
        emulated=[spec.to_json() for spec in emulated_devices(core).values()],
        seed=seed,
        directory=str(directory),
    )
