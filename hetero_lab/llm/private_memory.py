"""The private memory that parts of a language model take, as a worker process sees its own.

A worker imports it in each process that it measures, so it needs no more than such a worker has.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov

from hetero_lab.devices.core import BoundModel
from hetero_lab.devices.devices import status_bytes
from hetero_lab.errors import MeasurementError
from hetero_lab.llm.generation import TokenSession, steps
from hetero_lab.model.language import LanguageModel, Scenario, language_model
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import predict
from hetero_lab.placement.placement import BoundPlacement, Placement
from hetero_lab.runtime.compiled import (
    check_states,
    compile_placed,
    inference_errors,
    valid_submodels,
)
from hetero_lab.runtime.executors import CompiledSession
from hetero_lab.runtime.pieces import Submodel, build_model, compile_submodels, cut
from hetero_lab.runtime.tensors import to_tensor

_PRIVATE = "RssAnon:"  # in /proc/self/status


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
    return _growth(chain, language, scenario, lambda: dict(chain.n_bytes))


def bytes_of_process(bound_placement: BoundPlacement, scenario: Scenario) -> tuple[int, int]:
    """Do as :func:`bytes_by_part` for all parts together on HETERO, with copies of the nodes."""
    for device, properties in bound_placement.properties.items():
        start_runtime(device, properties, bound_placement.core)
    before = _private_bytes()
    language = language_model(bound_placement.bound.model)
    session = CompiledSession(compile_placed(bound_placement))
    return _growth(session, language, scenario, lambda: {"": _private_bytes() - before})[""]


def _growth(
    session: TokenSession,
    language: LanguageModel,
    scenario: Scenario,
    measure: Callable[[], dict[str, int]],
) -> dict[str, tuple[int, int]]:
    """Return the bytes that each part has taken after one token, and the bytes added at the end."""
    sizes = []
    for n_prompt, n_new in ((1, 1), (scenario.prompt_tokens, scenario.new_tokens)):
        prompt = np.ones((scenario.batch, n_prompt), np.int64)
        for _ in steps(session, language, prompt, n_new):
            pass
        sizes.append(measure())
    first, whole = sizes
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
        with self._counting(submodel):
            here = replace(submodel, device=device)
            (model,) = compile_submodels((here,), {device: properties}, core)
            self._parts.append((submodel, model, model.create_infer_request()))

    def reset(self) -> None:
        for _, _, request in self._parts:
            request.reset_state()

    def step(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        outputs: dict[tuple[str | int, ...], ov.Tensor] = {}
        for submodel, compiled, request in self._parts:
            tensors = self._inputs[submodel.index] = [
                to_tensor(arrays[int(entry[1])], port.get_element_type())
                if entry[0] == "model"
                else outputs[entry]
                for entry, port in zip(submodel.inputs, compiled.inputs, strict=True)
            ]
            with self._counting(submodel), inference_errors(submodel.device):
                for number, tensor in enumerate(tensors):
                    request.set_input_tensor(number, tensor)
                request.infer()
            for number, entry in enumerate(submodel.outputs):
                outputs[entry] = request.get_output_tensor(number)
        return outputs["model", self._logits].data

    @contextlib.contextmanager
    def _counting(self, submodel: Submodel) -> Iterator[None]:
        before = _private_bytes()
        yield
        self.n_bytes[submodel.device] += _private_bytes() - before
