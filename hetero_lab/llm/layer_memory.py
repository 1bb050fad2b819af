"""Measure the memory that the layers of a language model take, which only Linux reports."""

from __future__ import annotations

import contextlib
import ctypes
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov
from scipy.optimize import nnls

from hetero_lab.costs.cost_model import CostModel, MeasuredBytes
from hetero_lab.costs.design import placed
from hetero_lab.devices.core import BoundModel, bases_of, bind
from hetero_lab.devices.devices import status_bytes
from hetero_lab.errors import MeasurementError, PlanError, names_at_hand
from hetero_lab.llm.generation import TokenSession, steps
from hetero_lab.measure.requests import MeasureMemory
from hetero_lab.measure.session import Conditions, Session
from hetero_lab.measure.worker_process import WorkerError
from hetero_lab.model.blocks import block_range, find_blocks
from hetero_lab.model.language import LanguageModel, Scenario, language_model
from hetero_lab.model.read import Source
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import predict
from hetero_lab.placement.placement import BoundPlacement, Placement
from hetero_lab.progress import Progress
from hetero_lab.runtime.compiled import (
    check_states,
    compile_placed,
    inference_errors,
    valid_submodels,
)
from hetero_lab.runtime.executors import CompiledSession
from hetero_lab.runtime.pieces import Submodel, build_model, compile_submodels, cut
from hetero_lab.runtime.tensors import to_tensor

_AT_MOST_S = 600.0
_VARIANT = "model"
_PRIVATE = "RssAnon:"  # in /proc/self/status
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
    known: dict[str, tuple[MeasuredBytes, ...]] = {}
    measured: dict[str, tuple[MeasuredBytes, ...]] = {}
    with Progress("measure memory", show=progress) as bar:
        for device in inside:
            properties = costs.device_properties.get(device, {})
            same = f"{base[device]} {sorted(properties.items())!r}"
            if same not in known:
                known[same] = _measured(bound, costs, device, bar)
            measured[device] = known[same]
    prefill = replace(costs.prefill, measured_memory=measured)
    return replace(costs, measured_memory=measured, prefill=prefill)


def _measured(
    bound: BoundModel, costs: CostModel, device: str, bar: Progress
) -> tuple[MeasuredBytes, ...]:
    """Return the memory of the units before and after the layers, each layer, and any part."""
    found, index_of = find_blocks(costs.graph), costs.graph.index_of
    n, few = found.n_blocks, found.n_blocks // _FEW
    blocks = [found.of_op[index_of[unit.ops[0]]] for unit in costs.units]
    taken: list[MeasuredBytes] = []
    with Session({_VARIANT: bound}, Conditions(scenario=costs.scenario)) as session:
        for end in sorted({n, max(1, few), n - few}):
            first, rest = f"layers {block_range(0, end - 1)}", f"layers {block_range(end, n - 1)}"
            parts = [first if block < end or end == n else rest for block in blocks]
            each = zip(costs.units, parts, strict=True)
            bar.step(f"memory of {first} on {device}")
            part_of = placed(costs.graph, {op: part for unit, part in each for op in unit.ops})
            for part, n_bytes in _asked(session, costs, device, dict(part_of)).items():
                units = tuple(unit for unit, own in enumerate(parts) if own == part)
                taken.append(MeasuredBytes(units, *(max(0, size) for size in n_bytes)))
        bar.step(f"memory of a process with HETERO on {device}")
        (process,) = _asked(session, costs, device, {}).values()
    *fitted, any_part = _fitted(blocks, n, taken)
    whole = taken[-1]  # behind the last layer there is no cut
    return *fitted, MeasuredBytes(
        any_part.units,
        any_part.weight_bytes + max(0, process[0] - whole.weight_bytes),
        any_part.state_bytes + max(0, process[1] - whole.state_bytes),
    )


def _asked(
    session: Session, costs: CostModel, device: str, parts: dict[str, str]
) -> dict[str, tuple[int, int]]:
    """Measure in a process of its own."""
    assert costs.scenario is not None
    request = MeasureMemory(
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


def _fitted(
    blocks: Sequence[int], n_blocks: int, taken: Sequence[MeasuredBytes]
) -> list[MeasuredBytes]:
    """Fit the memory of ends, layers and any part, the last raised so that it covers every part.

    ``blocks`` has the block of each unit, -1 and ``n_blocks`` at the ends.
    """
    layers = [(unit,) for unit, block in enumerate(blocks) if 0 <= block < n_blocks]
    ends = [tuple(u for u, b in enumerate(blocks) if b == end) for end in (-1, n_blocks)]
    ends = [units for units in ends if units]
    sets = [set(part.units) for part in taken]
    matrix = np.array(
        [[*(has >= {*u} for u in ends), sum(has >= {*u} for u in layers), 1] for has in sets],
        dtype=float,
    )
    fitted = []
    for n_bytes in np.array([[p.weight_bytes, p.state_bytes] for p in taken], dtype=float).T:
        x, _ = nnls(matrix, n_bytes)
        x[-1] += max(0.0, float((n_bytes - matrix @ x).max()))
        fitted.append(np.ceil(x).astype(int).tolist())
    *of_ends, of_layer, of_any = zip(*fitted, strict=True)
    found = [MeasuredBytes(units, *n_bytes) for units, n_bytes in zip(ends, of_ends, strict=True)]
    found += [MeasuredBytes(units, *of_layer) for units in layers]
    return [*found, MeasuredBytes(tuple(range(len(blocks))), *of_any)]


# -- in a worker, whose memory it is -------------------------------------------------------------


def _private_bytes() -> int:
    """Return the private memory, free memory given back; MeasurementError if it is unknown."""
    if status_bytes(_PRIVATE) is None:
        raise MeasurementError(
            "Only Linux reports the private memory of a process. Measure there, or plan with the "
            "memory that is counted."
        )
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return status_bytes(_PRIVATE) or 0


def start_runtime(device: str, properties: Mapping[str, Any], core: ov.Core) -> None:
    """Run a small model, so that a plugin allocates the memory that it needs for any model."""
    x = ov.opset13.parameter([4, 4], np.float32)
    product = ov.opset13.matmul(x, np.ones((4, 4), np.float32), False, False)
    model = build_model([ov.opset13.result(product)], [], [x], "small")
    core.compile_model(model, device, dict(properties))([np.ones((4, 4), np.float32)])


def bytes_by_part(
    bound: BoundModel,
    parts: Mapping[str, str],
    device: str,
    properties: Mapping[str, Any],
    scenario: Scenario,
) -> dict[str, tuple[int, int]]:
    """Measure the memory of each part of a language model, all compiled for one device.

    ``parts`` maps each op to the name of its part; without, HETERO runs the whole model as one.
    Returns, for each part, its bytes once it is compiled and has run a token, and the bytes added
    by the end of the scenario. A small model runs first, so that the memory of the plugin itself
    does not count.
    """
    if not parts:
        whole = Placement(Affinity.on_one(bound.graph, device), "memory", {device: properties})
        return {"": bytes_of_process(BoundPlacement(bound, whole), scenario)}
    partition = predict(bound.graph, Affinity.from_graph(bound.graph, parts))
    check_states(bound.graph, partition)
    submodels = valid_submodels(bound, partition) or cut(bound, partition)
    start_runtime(device, properties, bound.core)
    language = language_model(bound.model)
    chain = _Chain(language.logits)
    for submodel in submodels:
        chain.compile(submodel, device, dict(properties), bound.core)
    return _grown(chain, language, scenario, lambda: dict(chain.n_bytes))


def bytes_of_process(placed: BoundPlacement, scenario: Scenario) -> tuple[int, int]:
    """Do as :func:`bytes_by_part` for all parts together on HETERO, with copies of the nodes."""
    for device, properties in placed.properties.items():
        start_runtime(device, properties, placed.core)
    before = _private_bytes()
    language = language_model(placed.bound.model)
    session = CompiledSession(compile_placed(placed))
    return _grown(session, language, scenario, lambda: {"": _private_bytes() - before})[""]


def _grown(
    session: TokenSession,
    language: LanguageModel,
    scenario: Scenario,
    taken: Callable[[], dict[str, int]],
) -> dict[str, tuple[int, int]]:
    """Return the bytes that each part has taken after one token, and the bytes added at the end."""
    seen = []
    for n_prompt, n_new in ((1, 1), (scenario.prompt_tokens, scenario.new_tokens)):
        prompt = np.ones((scenario.batch, n_prompt), np.int64)
        for _ in steps(session, language, prompt, n_new):
            pass
        seen.append(taken())
    first, whole = seen
    return {part: (first[part], whole[part] - first[part]) for part in whole}


class _Chain:
    """A session of submodels in order; ``n_bytes`` is the memory that each part has taken."""

    def __init__(self, logits: int):
        self.n_bytes: Counter[str] = Counter()
        self._logits = logits
        self._parts: list[tuple[Submodel, ov.CompiledModel, ov.InferRequest]] = []
        self._inputs: dict[int, list[ov.Tensor]] = {}  # a request keeps no tensor alive

    def compile(
        self, submodel: Submodel, device: str, properties: dict[str, Any], core: ov.Core
    ) -> None:
        """Compile the next submodel for a device; its own ``device`` is the name of its part."""
        with self._counted(submodel):
            here = replace(submodel, device=device)
            (model,) = compile_submodels((here,), {device: properties}, core)
            self._parts.append((submodel, model, model.create_infer_request()))

    def reset(self) -> None:
        for _, _, request in self._parts:
            request.reset_state()

    def step(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        made: dict[tuple[str | int, ...], ov.Tensor] = {}
        for submodel, compiled, request in self._parts:
            tensors = self._inputs[submodel.index] = [
                to_tensor(arrays[int(entry[1])], port.get_element_type())
                if entry[0] == "model"
                else made[entry]
                for entry, port in zip(submodel.inputs, compiled.inputs, strict=True)
            ]
            with self._counted(submodel), inference_errors(submodel.device):
                for number, tensor in enumerate(tensors):
                    request.set_input_tensor(number, tensor)
                request.infer()
            for number, entry in enumerate(submodel.outputs):
                made[entry] = request.get_output_tensor(number)
        return made["model", self._logits].data

    @contextlib.contextmanager
    def _counted(self, submodel: Submodel) -> Iterator[None]:
        before = _private_bytes()
        yield
        self.n_bytes[submodel.device] += _private_bytes() - before
