"""What advice is asked for, and what is kept in a store so that the same call goes on from it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetero_lab.backend.bound import BoundModel
from hetero_lab.errors import OutputPathError
from hetero_lab.experiments.accuracy.evaluate import ReadData
from hetero_lab.experiments.deployment.contract import file_digest
from hetero_lab.model.read import PreparedModel, prepare, save
from hetero_lab.planning.cost_model import CostModel
from hetero_lab.planning.memory import MemoryLimit, memory_pools
from hetero_lab.runtime.inputs import Inputs
from hetero_lab.samples.datasets import Dataset
from hetero_lab.tables import scratch_directory


@dataclass(frozen=True)
class AdviseSettings:
    """The arguments of :func:`hetero_lab.advise`, checked; ``examples`` are those of ``data``."""

    devices: tuple[str, ...]
    data: Dataset | Sequence[Any] | None
    examples: ReadData | None
    max_drop: float
    objective: str
    requests: int
    properties: Mapping[str, Mapping[str, Any]]
    memory_limit: MemoryLimit | None
    costs: CostModel | None
    inputs: Inputs | None
    seed: int
    isolate: bool
    progress: bool


def kept_path(store: Path | None, name: str, suffix: str, *depends_on: str) -> Path | None:
    """Return where a file is kept; another call may ask for something else."""
    return store and store / f"{name}-{digest(depends_on)}{suffix}"


def digest(parts: Sequence[str]) -> str:
    """Return a short name for texts such as the labels of finalists."""
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=4).hexdigest()


def searched_for(bound: BoundModel, asked: AdviseSettings) -> list[str]:
    """Return texts of all that the result of a search depends on."""
    of_costs = ""
    if asked.costs is not None:
        with scratch_directory() as scratch:
            asked.costs.to_json(scratch / "costs.json")
            of_costs = file_digest(scratch / "costs.json")
    properties = [(d, sorted(p.items())) for d, p in sorted(asked.properties.items())]
    limits = sorted(memory_pools(asked.devices, asked.memory_limit).items())
    # The names of kept files are made from this text: its form may not change.
    return [bound.fingerprint, repr((asked.devices, asked.objective, properties, limits)), of_costs]


def keep_model(made: PreparedModel, kept: Path, notes: list[str]) -> PreparedModel:
    """Write a variant of a model, whole or not at all, and return it as it is read again.

    If it cannot be written, ``notes`` says so, and the variant is returned as it is.
    """
    try:
        with scratch_directory(kept.parent, ".hetero_lab-") as draft:
            save(made.model, draft / kept.name)
            for suffix in (".bin", ".xml"):  # the weights first: a structure implies its weights
                os.replace((draft / kept.name).with_suffix(suffix), kept.with_suffix(suffix))
    except (OSError, RuntimeError, OutputPathError) as error:
        notes.append(f"The int8 variant could not be kept in store=: {error}")
        return made
    return prepare(kept)
