"""Quantised variants of a model, made by NNCF, whose own output is silenced.

A variant is a prepared model like any other: it can be placed, swept and frozen.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, TypeAlias

import numpy as np
import openvino as ov
from openvino import passes

from hetero_lab.arguments import check_whole
from hetero_lab.errors import (
    ArgumentError,
    HeteroLabError,
    InputError,
    QuantizationError,
    did_you_mean,
    names_at_hand,
    shorten,
)
from hetero_lab.lint.quantized_blocks import FAKE_QUANTIZE, has_small_weights, is_small
from hetero_lab.lint.rules import HEAVY
from hetero_lab.model.opgraph import CONSTANT, OpGraph
from hetero_lab.model.read import PreparedModel, Source, prepare
from hetero_lab.progress import Progress
from hetero_lab.runtime.inputs import bind_inputs

SUBSET_SIZE = 300  # NNCF's own default
# NNCF's modes, without codebooks, which need parameters of their own.
Mode: TypeAlias = Literal[
    "int8_sym",
    "int8_asym",
    "int4_sym",
    "int4_asym",
    "nf4",
    "mxfp4",
    "mxfp8_e4m3",
    "fp8_e4m3",
]
_lock = threading.Lock()  # NNCF's logger and progress bars are global


def quantize(
    model: Source,
    calibration: Iterable[Any],
    *,
    preset: Literal["mixed", "performance"] = "mixed",
    target_device: Literal["ANY", "CPU", "GPU", "NPU"] = "ANY",
    ignored: str | Sequence[str] = (),
    subset_size: int = SUBSET_SIZE,
    fast_bias_correction: bool = True,
    progress: bool = True,
) -> ov.Model:
    """Quantise weights and activations to int8, after training, with NNCF.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes; it is not changed.
    calibration
        Examples that resemble the real inputs: ``hl.dataset(name).calibration``, or any sequence
        of inputs or of pairs (inputs, label), whose labels are ignored. Inputs are a dict by
        name, a list, or an array, as for :func:`hetero_lab.compile`.
    preset
        ``"mixed"`` quantises activations asymmetrically, which is more accurate where they are
        not centred; ``"performance"`` quantises everything symmetrically.
    target_device
        The device whose int8 kernels to quantise for: ``"CPU"``, ``"GPU"``, ``"NPU"``, or
        ``"ANY"`` for kernels that all of them have.
    ignored
        Ops to leave unchanged: names, types, or regular expressions (``re.search`` in the name).
    subset_size
        The largest number of examples to use.
    fast_bias_correction
        ``False`` corrects each bias from the quantised outputs before it: slower, sometimes more
        accurate.
    progress
        Show NNCF's progress.

    Returns
    -------
    openvino.Model
        A prepared model with FakeQuantize ops in front of the ops that run in int8.

    Raises
    ------
    ArgumentError
        An unknown preset or target device, or an entry of ``ignored`` that matches no op.
    InputError
        There are no examples, or one does not fit the inputs or contains NaN or infinity.
    ModelError
        The model cannot be read.
    QuantizationError
        The model is already quantised, or NNCF refused it or found nothing to quantise.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> small = hl.quantize(model, hl.dataset("digits").calibration[:20], progress=False)
    >>> "FakeQuantize" in {op.get_type_name() for op in small.get_ops()}
    True
    """
    check_whole("subset_size", subset_size, least=1)
    prepared = prepare(model)
    names = _ignored_ops(prepared.graph, ignored)
    _check_not_quantized(prepared.graph)
    examples = calibration_inputs(prepared, calibration, subset_size)

    def run(nncf: Any) -> ov.Model:
        return nncf.quantize(
            _with_plain_weights(prepared.model),
            nncf.Dataset(examples),
            preset=nncf.QuantizationPreset(preset),
            target_device=nncf.TargetDevice(target_device),
            subset_size=len(examples),
            fast_bias_correction=fast_bias_correction,
            ignored_scope=nncf.IgnoredScope(names=names, validate=False),
        )

    return _run(run, prepared, names, "quantise", "no op that it can quantise", progress)


def quantize_prepared(
    prepared: PreparedModel, calibration: Iterable[Any], *, progress: bool
) -> PreparedModel:
    """Quantise a prepared model as :func:`quantize` does, and prepare the result."""
    return prepare(quantize(prepared, calibration, progress=progress))


def compress_weights(
    model: Source,
    mode: Mode = "int8_sym",
    *,
    ignored: str | Sequence[str] = (),
    ratio: float | None = None,
    group_size: int | None = None,
    progress: bool = True,
) -> ov.Model:
    """Store weights in few bits with NNCF; activations and arithmetic keep their precision.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes; it is not changed.
    mode
        ``"int8_sym"`` or ``"int8_asym"``; for large matmuls also ``"int4_sym"``,
        ``"int4_asym"``, ``"nf4"``, ``"mxfp4"``, ``"mxfp8_e4m3"`` and ``"fp8_e4m3"``.
    ignored
        Ops to leave unchanged, as for :func:`quantize`.
    ratio, group_size
        For modes of fewer than 8 bits: the share of weights in that mode (the others are int8),
        and the number of weights that share a scale.
    progress
        Show NNCF's progress.

    Returns
    -------
    openvino.Model
        A prepared model with compressed weights, each decompressed by the op that reads it.

    Raises
    ------
    ArgumentError
        An unknown mode, or an entry of ``ignored`` that matches no op.
    ModelError
        The model cannot be read.
    QuantizationError
        NNCF refused the model or found no weights to compress.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> small = hl.compress_weights(model, progress=False)
    >>> "i8" in {op.get_element_type().get_type_name() for op in small.get_ops()}
    True
    """
    prepared = prepare(model)
    names = _ignored_ops(prepared.graph, ignored)

    def run(nncf: Any) -> ov.Model:
        return nncf.compress_weights(
            _with_plain_weights(prepared.model),
            mode=nncf.CompressWeightsMode(mode),
            ratio=ratio,
            group_size=group_size,
            ignored_scope=nncf.IgnoredScope(names=names, validate=False),
        )

    verb, nothing = "compress the weights of", "no weights to compress"
    return _run(run, prepared, names, verb, nothing, progress)


def _run(
    run: Callable[[Any], ov.Model],
    prepared: PreparedModel,
    ignored: list[str],
    verb: str,
    nothing: str,
    progress: bool,
) -> ov.Model:
    """Run NNCF, prepare its model; QuantizationError if it fails or has quantised ``nothing``."""
    name = shorten(prepared.graph.name or "the model")
    with _lock, Progress(f"{verb} {name}", show=progress) as bar, _quiet_nncf(bar) as nncf:
        try:
            variant = prepare(run(nncf))
        except HeteroLabError:
            raise
        except Exception as error:
            why = (str(error).strip().splitlines() or [""])[0][:300].rstrip(".")
            raise QuantizationError(
                f"NNCF cannot {verb} {name}: {type(error).__name__}: {why}. Leave out the ops "
                "that it cannot take with ignored=, or use the model as it is."
            ) from error
    if _n_quantized(variant.graph) <= _n_quantized(prepared.graph):
        without = f" outside the {len(ignored)} ignored ops" if ignored else ""
        raise QuantizationError(
            f"NNCF found {nothing} in {name}{without}. It quantises convolutions, matmuls and the "
            "ops around them."
        )
    return variant.model


@contextlib.contextmanager
def _quiet_nncf(bar: Progress) -> Iterator[Any]:
    """Import NNCF, silence its output, and show its progress in ``bar``."""
    import nncf
    from nncf.common.logging import nncf_logger, track_progress

    track = track_progress.track
    start, steps = track.__init__, track.__iter__
    level, filters = nncf_logger.level, list(nncf_logger.filters)

    def silent_start(self: Any, *args: Any, **options: Any) -> None:
        silent = {"disable": True, "console": track_progress.Console(quiet=True)}
        start(self, *args, **{**options, **silent})

    def shown_steps(self: Any) -> Iterator[Any]:
        total = self.total
        if self.weights is not None or total is None:
            total = len(self.sequence) if hasattr(self.sequence, "__len__") else None
        bar.step(self.description, total)
        for step in steps(self):
            yield step
            bar.advance()

    track.__init__, track.__iter__ = silent_start, shown_steps
    nncf_logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield nncf
    finally:
        track.__init__, track.__iter__ = start, steps
        nncf_logger.setLevel(level)
        nncf_logger.filters = filters


def _with_plain_weights(model: ov.Model) -> ov.Model:
    """Return a copy whose f16 weights are f32.

    If more than a Convert lies between f16 weights and their op, as in TFLite models, NNCF
    inserts FakeQuantize in f32 but does not store int8 weights.
    """
    copy = model.clone()
    halves = (ov.Type.f16, ov.Type.bf16)
    for node in copy.get_ordered_ops():
        if node.get_type_name() != CONSTANT or node.get_element_type() not in halves:
            continue
        for use in node.output(0).get_target_inputs():
            convert = use.get_node()
            if convert.get_type_name() == "Convert" and (
                convert.get_output_element_type(0) == ov.Type.f32
            ):
                plain = ov.opset13.constant(node.get_data(dtype=np.float32))
                plain.set_friendly_name(convert.get_friendly_name())
                convert.output(0).replace(plain.output(0))
    manager = passes.Manager()
    manager.register_pass(passes.ConstantFolding())
    manager.run_passes(copy)
    return copy


def calibration_inputs(
    prepared: PreparedModel, calibration: Iterable[Any], most: int = SUBSET_SIZE
) -> list[list[np.ndarray]]:
    """Return the checked inputs of the first examples; :func:`quantize` accepts them too."""
    form = (
        "Calibration data are a sequence of inputs or of pairs (inputs, label), for instance "
        "hetero_lab.dataset('digits').calibration"
    )
    if hasattr(calibration, "calibration"):
        raise ArgumentError(f"{form}; this is a whole data set: pass its .calibration.")
    if isinstance(calibration, str | bytes | Mapping) or not isinstance(calibration, Iterable):
        raise ArgumentError(f"{form}, not {type(calibration).__name__}.")
    bound: list[list[np.ndarray]] = []
    for number, example in enumerate(islice(iter(calibration), most)):
        inputs = _without_label(example, len(prepared.model.inputs))
        try:
            arrays = bind_inputs(prepared, inputs)
        except InputError as error:
            raise InputError(f"Calibration example {number}: {error}") from error
        for port, array in zip(prepared.graph.parameters, arrays, strict=True):
            if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
                name = prepared.graph.ops[port].outputs[0].name or prepared.graph.ops[port].name
                raise InputError(
                    f"Calibration example {number}: input {shorten(name)} holds NaN or infinity. "
                    "The ranges of int8 cannot be found from that; leave the example out."
                )
        bound.append(arrays)
    if not bound:
        raise InputError(f"There are no examples to calibrate with. {form}.")
    return bound


def _without_label(example: Any, n_inputs: int) -> Any:
    """Return the inputs of an example, without its label if it can be a pair (inputs, label)."""
    if not isinstance(example, tuple) or len(example) != 2:
        return example
    is_pair = n_inputs == 1 or isinstance(example[0], Mapping | list | tuple)
    return example[0] if is_pair else example


def _ignored_ops(graph: OpGraph, ignored: str | Sequence[str]) -> list[str]:
    """Return the names of the ops that match names, types or patterns."""
    selectors = [ignored] if isinstance(ignored, str) else ignored
    ops = [graph.ops[index] for index in graph.placeable]
    names, types = {op.name for op in ops}, {op.type for op in ops}
    selection: dict[str, None] = {}
    for text in selectors:
        matches = [text] if text in names else [op.name for op in ops if op.type == text]
        try:
            matches = matches or [op.name for op in ops if text and re.search(text, op.name)]
        except re.error as error:
            raise ArgumentError(
                f"{shorten(text)} in ignored= is not an op, a type or a regular expression: "
                f"{error}."
            ) from error
        if not matches:
            raise ArgumentError(
                f"{shorten(text)} in ignored= matches no op."
                f"{did_you_mean(text, [*types, *names])} Types: "
                f"{names_at_hand(sorted(types), 40)}. Ops: {names_at_hand(op.name for op in ops)}."
            )
        selection.update(dict.fromkeys(matches))
    return list(selection)


def _check_not_quantized(graph: OpGraph) -> None:
    for op in graph:
        weights = op.inputs[1][0] if op.type in HEAVY else None
        small = weights in graph.constant_side and has_small_weights(graph, weights)
        if op.type == FAKE_QUANTIZE or small:
            raise QuantizationError(
                f"The model is quantised already (see {shorten(op.name)}). "
                "Start from the original model, in f32 or f16."
            )


def _n_quantized(graph: OpGraph) -> int:
    """Count FakeQuantize ops and constants of at most 8 bits."""
    return sum(
        op.type == FAKE_QUANTIZE or (op.type == CONSTANT and is_small(graph, op.index))
        for op in graph
    )
