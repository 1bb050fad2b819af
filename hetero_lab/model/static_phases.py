"""A language model as two static ones without states: one for the prompt, one for further tokens.

Devices without dynamic shapes need this form. The key-value cache is an input of a fixed length,
and the mask says how much of it is filled; the entries that a step adds are an output. A dynamic
model's graph at a given context length is made here as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as op

from hetero_lab.errors import InputError, ModelError, shorten
from hetero_lab.model.language import (
    BEAM,
    IDS,
    MASK,
    POSITIONS,
    LanguageModel,
    Scenario,
    language_model,
)
from hetero_lab.model.opgraph import Op, OpGraph, Tensor
from hetero_lab.model.read import PreparedModel, Source, prepare


@dataclass(frozen=True)
class StaticPhases:
    """Two static models of one language model; see :func:`static_phases`.

    Attributes
    ----------
    prefill
        Reads ``prompt_tokens`` tokens at once, with nothing before them. Outputs are the logits
        of each token, and ``present.…``: the entries that they add to each state.
    decode
        Reads one token. Inputs ``past.…`` hold the tokens before it: ``context_tokens - 1``
        places, and the mask says which are filled.
    scenario
        The lengths that the two were made for.
    language
        The model that the two were made of; ``past.3`` and ``present.3`` are of its state 3.
    axes
        The dimension of each state that counts tokens.
    """

    prefill: ov.Model
    decode: ov.Model
    scenario: Scenario
    language: LanguageModel
    axes: tuple[int, ...]

    def feed(self, ids: np.ndarray, past: int) -> dict[str, np.ndarray]:
        """Return the inputs by name, without the cache, that append tokens to sequences.

        ``ids`` has the shape ``[batch, n]``; ``past`` places of the cache are filled. The first
        tokens go to ``prefill``, padded at the end with tokens that none of them sees.
        """
        batch, n = ids.shape
        width = 1 if past else self.scenario.prompt_tokens
        n_places = self.scenario.context_tokens - 1 if past else 0
        if batch != self.scenario.batch or n > width or past > n_places:
            raise InputError(
                f"{batch} × {n} tokens after {past}: the static models were made for a batch of "
                f"{self.scenario.batch}, prompts of at most {self.scenario.prompt_tokens} tokens, "
                f"then one at a time, {self.scenario.context_tokens} in all."
            )
        arrays = {MASK: np.zeros((batch, n_places + width))}
        arrays[MASK][:, :past] = 1
        arrays[MASK][:, n_places : n_places + n] = 1
        for name, values in ((IDS, ids), (POSITIONS, np.arange(past, past + n)[None])):
            arrays[name] = np.zeros((batch, width))
            arrays[name][:, :n] = values
        types = zip(self.language.inputs, self.language.types, strict=True)
        return {name: arrays[name].astype(dtype) for name, dtype in types if name in arrays}


def static_phases(model: Source, scenario: Scenario) -> StaticPhases:
    """Make two static models without states of a language model, which is not changed.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes: a language model.
    scenario
        The longest prompt and context that the two take.

    Raises
    ------
    ModelError
        The model is not a language model, has no mask to say which places are filled, does not
        give logits of every token, or has a state without one dimension for the batch and one
        that counts tokens.
    ArgumentError
        ``scenario`` is not a scenario, or does not fit into the model's context.

    Examples
    --------
    Needs the extra ``llm``, so that it is not run here::

        phases = hl.llm.static_phases(hl.load("smollm2_135m"), hl.Scenario(64, 32))
        hl.profile(phases.decode, "CPU")
    """
    model = prepare(model).model
    language = language_model(model)
    language.check(scenario)
    if MASK not in language.inputs:
        raise ModelError(
            f"{shorten(model.get_friendly_name())} has no input {MASK}, so that nothing could "
            "tell which places of a cache of fixed length are filled. Export it with one."
        )
    axes = tuple(_axis(variable.get_info()) for variable in model.get_variables())
    n, past = scenario.prompt_tokens, scenario.context_tokens - 1
    prefill = _phase(model, language, axes, scenario.batch, n, 0)
    n_rows = prefill.outputs[0].shape[1]
    if n_rows != n:  # a shorter prompt is padded, and the last logits would be those of the padding
        raise ModelError(
            f"{shorten(model.get_friendly_name())} gives logits of {n_rows} of {n} tokens of a "
            "prompt, so that a static model could not read a shorter one. Export it with the "
            "logits of every token."
        )
    decode = _phase(model, language, axes, scenario.batch, 1, past)
    return StaticPhases(prefill, decode, scenario, language, axes)


def _axis(info: Any) -> int:
    dynamic = [at for at, size in enumerate(info.data_shape) if size.is_dynamic]
    if len(dynamic) != 2 or dynamic[0] != 0:
        raise ModelError(
            f"The state {shorten(info.variable_id)} has the shape {info.data_shape}: a key-value "
            "cache has a batch, which comes first, and one dimension that counts tokens."
        )
    return dynamic[1]


def _phase(
    model: ov.Model, language: LanguageModel, axes: tuple[int, ...], batch: int, n: int, past: int
) -> ov.Model:
    """Return a prepared model that reads ``n`` tokens after ``past`` places of a cache."""
    copy = model.clone()
    inputs = dict(zip(language.inputs, copy.get_parameters(), strict=True))
    sizes = {MASK: [batch, past + n], BEAM: [batch]}
    for name, parameter in inputs.items():
        parameter.set_partial_shape(ov.PartialShape(sizes.get(name, [batch, n])))
    if BEAM in inputs:  # each sequence goes on with its own cache
        _keep_order(inputs.pop(BEAM), batch)
    parameters, results = [*inputs.values()], [copy.get_results()[language.logits]]
    reads = {node.get_variable_id(): node for node in copy.get_ops() if _is(node, "ReadValue")}
    writes = {node.get_variable_id(): node for node in copy.get_sinks() if _is(node, "Assign")}
    for number, (variable, axis) in enumerate(zip(copy.get_variables(), axes, strict=True)):
        info = variable.get_info()
        shape = [batch if size.is_dynamic else size.get_length() for size in info.data_shape]
        shape[axis] = past
        reader, write = reads[info.variable_id], writes[info.variable_id]
        if past:
            cache = _with_name(op.parameter(shape, info.data_type), f"past.{number}")
            parameters.append(cache)
            reader.output(0).replace(cache.output(0))
            ends = [op.constant([value]) for value in (past, past + n, 1, axis)]
            new = op.slice(write.input_value(0), *ends)
        else:
            _leave_out(reader.output(0), shape, info.data_type)
            new = write.input_value(0).get_node()
        results.append(_with_name(op.result(new), f"present.{number}"))
    phase = "prefill" if not past else "decode"
    build: Any = ov.Model  # its stubs do not know Results made in Python
    static = build(results, parameters, f"{model.get_friendly_name()}_{phase}")
    static.validate_nodes_and_infer_types()
    return prepare(static).model


def _keep_order(beam: ov.Node, batch: int) -> None:
    """Remove the reordering of sequences by beam: here each sequence keeps its place."""
    for use in beam.output(0).get_target_inputs():
        node = use.get_node()
        if _is(node, "Gather") and use.get_index() == 1:
            node.output(0).replace(node.input_value(0))
        else:
            use.replace_source_output(
                op.constant(np.arange(batch), beam.get_element_type()).output(0)
            )


def _leave_out(empty: ov.Output, shape: list[int], data_type: ov.Type) -> None:
    """Remove concatenations with an empty tensor: few devices support empty tensors."""
    for use in empty.get_target_inputs():
        node = use.get_node()
        others = [v for at, v in enumerate(node.input_values()) if at != use.get_index()]
        if _is(node, "Concat") and len(others) == 1:
            node.output(0).replace(others[0])
        else:
            constant = op.constant(np.zeros(shape, data_type.to_dtype()), data_type)
            use.replace_source_output(constant.output(0))


def _with_name(node: ov.Node, name: str) -> ov.Node:
    node.set_friendly_name(name)
    port = node.output(0) if _is(node, "Parameter") else node.input_value(0)
    port.set_names({name})
    return node


def _is(node: ov.Node, type_name: str) -> bool:
    return node.get_type_name() == type_name


def graph_at_context(prepared: PreparedModel, context_tokens: int, batch: int = 1) -> OpGraph:
    """Return a model's graph with the shapes that its tensors have for a number of tokens at once.

    A dynamic first dimension is the batch, all other dynamic ones are the length of the context:
    the largest that tensors become. Static shapes stay.
    """
    graph = prepared.graph
    nodes = {node.get_friendly_name(): node for node in prepared.model.get_ordered_ops()}

    def sized(tensor: Tensor, op: Op, port: int) -> Tensor:
        output = nodes[op.name].output(port)
        partial, bits = output.get_partial_shape(), output.get_element_type().bitwidth
        if tensor.shape is not None or partial.rank.is_dynamic or not bits:
            return tensor
        shape = tuple(
            dimension.get_length() if dimension.is_static else context_tokens if at else batch
            for at, dimension in enumerate(partial)
        )
        return Tensor(shape, tensor.element_type, -(-prod(shape) * bits // 8), tensor.name)

    ops = (
        replace(op, outputs=tuple(sized(t, op, port) for port, t in enumerate(op.outputs)))
        for op in graph
    )
    return replace(graph, ops=tuple(ops))
