"""Recordings: what was measured on a machine with other devices, to be looked at on this one."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from hetero_lab.costs.cost_model import CostModel
from hetero_lab.fetch import cache_dir, file_digest, keep_directory
from hetero_lab.progress import Progress
from hetero_lab.results.sweep_reading import read_one
from hetero_lab.results.sweep_result import Sweep
from hetero_lab.samples.catalogue import datasets_dir
from hetero_lab.tables import reading


@dataclass(frozen=True, repr=False)
class Recording(Sweep):
    """A sweep from a machine whose devices need not be here, with the costs learnt there.

    Every label ends with "(recorded)" and the first note says where, so that no table and no figure
    can be taken for a measurement made here.
    """

    costs: CostModel = field(kw_only=True)


def recordings() -> Path:
    """Return the directory of the bundled recordings of a real GPU, an NVIDIA H200.

    They are unpacked into the cache at the first call. ``datasets/README.md`` lists what is there.

    Raises
    ------
    SampleError
        The cache cannot be written.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> sorted(case.name for case in (hl.interop.recordings() / "eight").glob("alexnet.*"))
    ['alexnet.all', 'alexnet.b', 'alexnet.c']
    """
    archive = datasets_dir() / "recordings" / "nvidia_h200.tar.xz"
    target = cache_dir() / f"recordings-{file_digest(archive)[:12]}"
    if not target.is_dir():
        with Progress("unpacking the recordings", show=True):
            keep_directory(target, lambda made: shutil.unpack_archive(archive, made, filter="data"))
    return target / "nvidia_h200"


def read_recording(directory: str | os.PathLike[str]) -> Recording:
    """Read a stored sweep and the ``costs.json`` beside it; no device is needed.

    Make one where the devices are with ``hetero_lab.sweep(model, placements, store=directory)`` and
    ``costs.to_json(directory + "/costs.json")``. The first placement is HETERO's own choice.

    Raises
    ------
    StoredFileError
        The directory lacks one of the two.
    PlanError
        The costs are of another model than the sweep.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> recorded = hl.interop.read_recording(hl.interop.recordings() / "eight" / "alexnet.all")
    >>> recorded.ranking["label"].iloc[0]
    'candidate 1 (recorded)'
    """
    sweep = read_one(directory, " (recorded)")
    costs = CostModel.from_json(Path(directory) / "costs.json")
    with reading(directory, "recording"):
        graph = sweep.profile(sweep.reference).graph
    costs.check_graph(graph)
    where = costs.origin.replace("Measured", "Recorded", 1)
    notes = (f"{where} Nothing was measured here.", *sweep.notes)
    return Recording(sweep.rows, sweep.reference, sweep.environment, notes, costs=costs)
