"""Recordings: what was measured on a machine with other devices, to be looked at on this one."""

from __future__ import annotations

import html
import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hetero_lab.costs.cost_model import CostModel
from hetero_lab.fetch import cache_dir, file_digest, keep_directory
from hetero_lab.progress import Progress
from hetero_lab.results.sweep_builder import read_one
from hetero_lab.results.sweep_result import Sweep
from hetero_lab.samples.catalogue import datasets_dir
from hetero_lab.tables import reading

if TYPE_CHECKING:
    from hetero_lab.widgets.tweaker.board_picture import BoardPicture
    from hetero_lab.widgets.tweaker.tweaker_measurement import Attempt
    from hetero_lab.widgets.tweaker.tweaker_state import TweakerState


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
            keep_directory(target, lambda path: shutil.unpack_archive(archive, path, filter="data"))
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


def board_of_recording(
    recorded: Recording, costs: CostModel | None
) -> tuple[TweakerState, BoardPicture, list[Attempt]]:
    """Return a board of what was recorded, whose history takes the place of measuring."""
    from hetero_lab.widgets.tweaker.board_picture import BoardPicture
    from hetero_lab.widgets.tweaker.tweaker_measurement import attempt_of
    from hetero_lab.widgets.tweaker.tweaker_state import TweakerState

    costs, reference = costs or recorded.costs, recorded.profile(recorded.reference)
    graph, origin = reference.graph, recorded.notes[0]
    costs.check_graph(graph)
    able = {device: costs.supports(device) for device in costs.devices}
    attributes = {op.name: {"times": origin} for op in graph.ops}
    heading = f"<b>A recording of {html.escape(graph.name)}</b><br>{html.escape(origin)}"
    picture = BoardPicture(graph, costs.devices, costs.emulated, attributes, heading)
    state = TweakerState(graph, reference.affinity, able, costs)
    rows = zip(recorded.summary.to_dict("records"), recorded.rows, strict=True)
    attempts = [attempt_of(row, r.profile.affinity) for row, r in rows if r.profile is not None]
    return state, picture, [replace(t, predicted=costs.predict(t.affinity)) for t in attempts]
