"""Private memory that the submodels of a language model take in this process, on Linux."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from hetero_lab.backend.bound import BoundModel
from hetero_lab.errors import MeasurementError
from hetero_lab.model.language import LanguageModel, Scenario, language_model
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import predict
from hetero_lab.placement.placement import BoundPlacement
from hetero_lab.runtime.compiled import (
    check_states,
    compile_placed,
    inference_errors,
    valid_submodels,
)
from hetero_lab.runtime.generation import CompiledSession, TokenSession, steps
from hetero_lab.runtime.pieces import build_model
from hetero_lab.runtime.submodels import Submodel, compile_submodels, cut
from hetero_lab.runtime.tensors import to_tensor

_STATUS = Path("/proc/self/status")
_PRIVATE = "RssAnon:"


def private_bytes() -> int:
    """Return the private memory that is in use; a mapped model file is not part of it.

    Free memory that the C library holds is returned to the system first, where possible.

    Raises
    ------
    MeasurementError
        The system does not report it.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    lines = _STATUS.read_text().splitlines() if _STATUS.exists() else []
    kib = next((line.split()[1] for line in lines if line.startswith(_PRIVATE)), None)
    if kib is None:
        raise MeasurementError(
            "Only Linux tells how much private memory a process has. Measure there, or plan with "
            "the memory that is counted."
        )
    return int(kib) * 1024


def start_runtime(device: str, properties: Mapping[str, Any], core: ov.Core) -> None:
    """Run a small model, so that the memory that a plugin needs for any model is allocated."""
    x = ov.opset13.parameter([4, 4], np.float32)
    product = ov.opset13.matmul(x, np.ones((4, 4), np.float32), False, False)
    model = build_model([ov.opset13.result(product)], [], [x], "small")
    core.compile_model(model, device, dict(properties))([np.ones((4, 4), np.float32)])


def bytes_by_part(
    bound: BoundModel,
    parts: Affinity,
    device: str,
    properties: Mapping[str, Any],
    scenario: Scenario,
) -> dict[str, tuple[int, int]]:
    """Measure the memory of each part of a language model, all compiled for one device.

    A small model runs first, so that memory that the plugin needs for any model is
    not counted.

    Parameters
    ----------
    parts
        In place of a device, the name of the part that each op is in.

    Returns
    -------
    dict
        For each part: its bytes once it is compiled and has run a token, and the bytes added by
        the end of the scenario.

    Raises
    ------
    MeasurementError
        The system does not tell.
    AffinityError, CompileError, InferenceError
        The model cannot be cut there, or its parts cannot be compiled or run.
    """
    partition = predict(bound.graph, parts)
    check_states(bound.graph, partition)
    submodels = valid_submodels(bound, partition) or cut(bound, partition)
    start_runtime(device, properties, bound.core)
    compiled = []
    for submodel in submodels:
        before = private_bytes()
        here = (replace(submodel, device=device),)
        (model,) = compile_submodels(here, {device: dict(properties)}, bound.core)
        compiled.append(_MeasuredModel(submodel, model, model.create_infer_request()))
        compiled[-1].n_bytes += private_bytes() - before
    language = language_model(bound.model)
    chain = _Chain(language, compiled)
    _run(chain, language, 1, scenario.batch, 1)
    first = _by_part(compiled)
    _run(chain, language, scenario.prompt_tokens, scenario.batch, scenario.new_tokens)
    return {part: (first[part], whole - first[part]) for part, whole in _by_part(compiled).items()}


def bytes_of_process(placed: BoundPlacement, scenario: Scenario) -> tuple[int, int]:
    """Measure the memory of this process for a language model that runs on HETERO.

    Besides the memory of the parts on their devices, it holds the model's own nodes, since the
    runtime keeps copies of them. Returns and raises as :func:`bytes_by_part`, for all parts
    together.
    """
    for device, properties in placed.properties.items():
        start_runtime(device, properties, placed.core)
    before = private_bytes()
    language = language_model(placed.bound.model)
    session = CompiledSession(compile_placed(placed))
    _run(session, language, 1, scenario.batch, 1)
    first = private_bytes() - before
    _run(session, language, scenario.prompt_tokens, scenario.batch, scenario.new_tokens)
    return first, private_bytes() - before - first


def _by_part(compiled: Sequence[_MeasuredModel]) -> Counter[str]:
    n_bytes: Counter[str] = Counter()
    for part in compiled:
        n_bytes[part.submodel.device] += part.n_bytes
    return n_bytes


def _run(
    session: TokenSession, language: LanguageModel, n_prompt: int, batch: int, n_new: int
) -> None:
    for _ in steps(session, language, np.ones((batch, n_prompt), np.int64), n_new):
        pass


@dataclass
class _MeasuredModel:
    """A compiled submodel, and the memory that it has taken so far."""

    submodel: Submodel
    compiled: ov.CompiledModel
    request: ov.InferRequest
    n_bytes: int = 0
    inputs: list[ov.Tensor] = field(default_factory=list)  # a request keeps none alive


class _Chain:
    """A session that runs subgraphs one after another and looks at the memory around each."""

    def __init__(self, language: LanguageModel, parts: list[_MeasuredModel]):
        self._parts = parts
        self._logits = language.logits

    def reset(self) -> None:
        """Forget what was seen."""
        for part in self._parts:
            part.request.reset_state()

    def step(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Infer once; return the logits."""
        made: dict[tuple[str | int, ...], ov.Tensor] = {}
        for part in self._parts:
            ports = zip(part.submodel.inputs, part.compiled.inputs, strict=True)
            part.inputs = [
                to_tensor(arrays[int(entry[1])], port.get_element_type())
                if entry[0] == "model"
                else made[entry]
                for entry, port in ports
            ]
            before = private_bytes()
            with inference_errors(part.submodel.device):
                for number, tensor in enumerate(part.inputs):
                    part.request.set_input_tensor(number, tensor)
                part.request.infer()
            part.n_bytes += private_bytes() - before
            for number, entry in enumerate(part.submodel.outputs):
                made[entry] = part.request.get_output_tensor(number)
        return made["model", self._logits].data
