"""Measure the memory that the layers of a language model take, which only Linux reports."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import nnls

from hetero_lab.costs.cost_model import CostModel, MeasuredBytes
from hetero_lab.costs.design import affinity_of
from hetero_lab.devices.core import BoundModel, bases_of, bind
from hetero_lab.errors import MeasurementError, PlanError, names_at_hand
from hetero_lab.measure.bench import Bench
from hetero_lab.measure.session import Conditions, Session
from hetero_lab.measure.worker_process import WorkerError
from hetero_lab.model.blocks import block_range, find_blocks
from hetero_lab.model.read import Source
from hetero_lab.progress import Progress

if TYPE_CHECKING:
    import openvino as ov

_AT_MOST_S = 600.0  # for one process to compile its parts and generate; a slower one hangs
_VARIANT = "model"
_FEW = 4  # a cut is behind a quarter of the layers, another one before the last quarter


def measure_memory(
    model: Source, costs: CostModel, *, progress: bool = True, core: ov.Core | None = None
) -> CostModel:
    """Measure the memory that a language model takes on devices whose memory is the process's.

    Plans count weights as they are stored and the cache by its shape. A plugin takes more: it
    packs weights for its kernels, lets the cache grow in steps, and needs workspace. Here the
    model runs as a whole and cut at two places, each time in a process of its own, with all parts
    compiled for one device, and generates as the scenario says. The private memory of each part
    is fitted by the memory before the layers, of a layer, after the layers, and of any part
    besides; the last is raised until it covers every part. A process with HETERO then shows the
    memory for the nodes of the model, which is counted on each device. Plans with the returned
    costs keep ``memory_limit`` by these figures.

    This works for the CPU and devices emulated on it, on Linux. The memory of other devices is
    counted as before. A mapped file of weights is not private memory.

    Parameters
    ----------
    model
        The calibrated model.
    costs
        The result of :func:`hetero_lab.calibrate` with a ``scenario``.
    progress
        Show the current step.

    Returns
    -------
    CostModel
        The same costs with ``measured_memory``, in ``prefill`` as well.

    Raises
    ------
    ArgumentError
        ``costs`` are not a cost model.
    PlanError
        They are those of no language model or of another one, or no device is one of these.
    MeasurementError
        The model cannot be cut between layers, its parts cannot be compiled or run, or the
        system does not show private memory.

    Examples
    --------
    Needs the extra ``llm``, so that it is not run here::

        costs = hl.calibrate(llm, ["ACC", "CPU"], scenario=hl.Scenario(64, 32))
        costs = hl.llm.measure_memory(llm, costs)
        hl.plan(llm, costs, memory_limit={"ACC": "100MB"})
    """
    if costs.scenario is None or costs.prefill is None:
        raise PlanError(
            "These costs are of one inference: memory is measured of a language model, over a "
            "generation. Make costs with hetero_lab.calibrate(model, devices, scenario=…)."
        )
    bound = bind(model, core)
    costs.check_graph(bound.graph)
    bases = bases_of(costs.devices, bound.core)
    base = {device: bases.get(device, device) for device in costs.devices}
    inside = [d for d in costs.devices if base[d].partition(".")[0] == "CPU"]
    if not inside:
        raise PlanError(
            f"The memory of {names_at_hand(costs.devices)} is not that of a process, so that it "
            "cannot be measured there. Plan with the memory that is counted."
        )
    memory_of: dict[str, tuple[MeasuredBytes, ...]] = {}
    memory: dict[str, tuple[MeasuredBytes, ...]] = {}
    with Progress("measure memory", show=progress) as bar:
        for device in inside:
            properties = costs.device_properties.get(device, {})
            same = f"{base[device]} {sorted(properties.items())!r}"
            if same not in memory_of:
                memory_of[same] = _layer_memory(bound, costs, device, bar)
            memory[device] = memory_of[same]
    prefill = replace(costs.prefill, measured_memory=memory)
    return replace(costs, measured_memory=memory, prefill=prefill)


def _layer_memory(
    bound: BoundModel, costs: CostModel, device: str, bar: Progress
) -> tuple[MeasuredBytes, ...]:
    """Return the memory of the units before and after the layers, each layer, and any part."""
    layers, index_of = find_blocks(costs.graph), costs.graph.index_of
    n, few = layers.n_blocks, layers.n_blocks // _FEW
    blocks = [layers.of_op[index_of[unit.ops[0]]] for unit in costs.units]
    measurements: list[MeasuredBytes] = []
    with Session({_VARIANT: bound}, Conditions(scenario=costs.scenario)) as session:
        for end in sorted({n, max(1, few), n - few}):
            first, rest = f"layers {block_range(0, end - 1)}", f"layers {block_range(end, n - 1)}"
            parts = [first if block < end or end == n else rest for block in blocks]
            each = zip(costs.units, parts, strict=True)
            bar.step(f"memory of {first} on {device}")
            part_of = affinity_of(costs.graph, {op: part for unit, part in each for op in unit.ops})
            for part, n_bytes in _measure_apart(session, costs, device, dict(part_of)).items():
                units = tuple(unit for unit, p in enumerate(parts) if p == part)
                measurements.append(MeasuredBytes(units, *(max(0, size) for size in n_bytes)))
        bar.step(f"memory of a process with HETERO on {device}")
        (process,) = _measure_apart(session, costs, device, {}).values()
    *units_memory, any_part = _fit(blocks, n, measurements)
    whole = measurements[-1]  # behind the last layer there is no cut
    return *units_memory, MeasuredBytes(
        any_part.units,
        any_part.weight_bytes + max(0, process[0] - whole.weight_bytes),
        any_part.state_bytes + max(0, process[1] - whole.state_bytes),
    )


def _measure_apart(
    session: Session, costs: CostModel, device: str, parts: dict[str, str]
) -> dict[str, tuple[int, int]]:
    assert costs.scenario is not None
    request = partial(
        Bench.measure_memory,
        variant=_VARIANT,
        parts=parts,
        device=device,
        properties=dict(costs.device_properties.get(device, {})),
        scenario=costs.scenario,
    )
    try:
        with contextlib.closing(session.start()) as bench:
            return bench.ask(request, timeout_s=_AT_MOST_S)
    except WorkerError as error:
        raise MeasurementError(f"The memory on {device} was not measured: {error}") from error


def _fit(
    blocks: Sequence[int], n_blocks: int, measurements: Sequence[MeasuredBytes]
) -> list[MeasuredBytes]:
    """Fit the memory of ends, layers and any part, the last raised so that it covers every part.

    ``blocks`` has the block of each unit, -1 and ``n_blocks`` at the ends.
    """
    layers = [(unit,) for unit, block in enumerate(blocks) if 0 <= block < n_blocks]
    ends = [tuple(u for u, b in enumerate(blocks) if b == end) for end in (-1, n_blocks)]
    ends = [units for units in ends if units]
    sets = [set(part.units) for part in measurements]
    matrix = np.array(
        [[*(has >= {*u} for u in ends), sum(has >= {*u} for u in layers), 1] for has in sets],
        dtype=float,
    )
    solutions = []
    for n_bytes in np.array([[p.weight_bytes, p.state_bytes] for p in measurements], dtype=float).T:
        x, _ = nnls(matrix, n_bytes)
        x[-1] += max(0.0, float((n_bytes - matrix @ x).max()))
        solutions.append(np.ceil(x).astype(int).tolist())
    *of_ends, of_layer, of_any = zip(*solutions, strict=True)
    memory = [MeasuredBytes(units, *n_bytes) for units, n_bytes in zip(ends, of_ends, strict=True)]
    memory += [MeasuredBytes(units, *of_layer) for units in layers]
    return [*memory, MeasuredBytes(tuple(range(len(blocks))), *of_any)]
