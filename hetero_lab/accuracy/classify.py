"""Classify a picture on any placement, as OpenVINO's samples do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from hetero_lab.arguments import check_whole
from hetero_lab.devices.core import BoundModel, bases_of, bind
from hetero_lab.errors import ArgumentError, ModelError, SampleError, names_at_hand, shorten, warn
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.model.read import Source
from hetero_lab.placement.partition import Partition
from hetero_lab.placement.placement import PlacementLike, resolve
from hetero_lab.result import Result
from hetero_lab.results import profile_report
from hetero_lab.runtime.compiled import compile_placed
from hetero_lab.runtime.counters import Counter
from hetero_lab.runtime.executors import open_runner, read_counted
from hetero_lab.samples.catalogue import sample_labels, sample_names
from hetero_lab.samples.pictures import DTYPES, read_picture, sample_preprocessing, sides
from hetero_lab.tables import frame_of
from hetero_lab.terminal import count_of, one_line

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd


@dataclass(frozen=True)
class ClassScore:
    """One of the best classes of one output.

    ``class_index`` counts from 0; ``label`` is empty if the classes have no known names;
    ``score`` is the model's number, which need not be a probability.
    """

    output: str
    rank: int
    class_index: int
    label: str
    score: float


@dataclass(frozen=True)
class Classification(Result):
    """The best classes of a picture, by an image classifier on a placement.

    Attributes
    ----------
    model, placement, image
        Names of the model, the placement and the file.
    classes
        The best classes of each output that has classes, the best first.
    partition
        The subgraphs that ran, as observed on the runtime.
    counters
        OpenVINO's counters of a second compile; empty unless requested.
    emulated
        The name and base of each emulated device in use.
    """

    _TABLES = ("table",)

    model: str
    placement: str
    image: str
    classes: tuple[ClassScore, ...]
    partition: Partition
    counters: tuple[Counter, ...]
    emulated: tuple[tuple[str, str], ...]

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row a class: image, placement, output, rank, class_index, label, score."""
        run = {"image": self.image, "placement": self.placement}
        return frame_of([{**run, **asdict(found)} for found in self.classes])

    def report(self) -> str:
        """Return the classes as text, and the counters subgraph by subgraph."""
        return "\n".join([*self._class_lines(), *self._counter_lines()]) + "\n"

    def __repr__(self) -> str:
        best = next(iter(self.classes))
        name = best.label or f"class {best.class_index}"
        return f"Classification({shorten(self.image)}: {shorten(name)}, {best.score:.6g})"

    def _sentences(self) -> list[str]:
        return [self.image]

    def _shown(self) -> dict[str, pd.DataFrame]:
        return {"": self.table.drop(columns=["image"])}

    def _class_lines(self) -> Iterator[str]:
        yield f"Model:     {one_line(self.model)}"
        subgraphs = count_of(self.partition.n_subgraphs, "subgraph")
        yield f"Placement: {one_line(self.placement)}, {subgraphs}"
        yield f"Image:     {one_line(self.image)}"
        for output, classes in groupby(self.classes, attrgetter("output")):
            yield from ("", f"Output {one_line(output)}", f"{'class':>7}  {'score':>12}  label")
            for found in classes:
                text = f"{found.class_index:>7}  {found.score:>12.6g}  {one_line(found.label)}"
                yield text.rstrip()

    def _counter_lines(self) -> Iterator[str]:
        emulated = {name: f"{name} (emulated on {base})" for name, base in self.emulated}
        for subgraph in self.partition.subgraphs if self.counters else ():
            device, n_ops = emulated.get(subgraph.device, subgraph.device), len(subgraph.ops)
            yield ""
            yield f"Performance counts of subgraph {subgraph.index} on {device}, {n_ops} ops"
            own = [c for c in self.counters if c.subgraph == subgraph.index]
            yield from profile_report.counter_lines(own, hetero=False)


def classify(
    model: Source,
    image: str | os.PathLike[str],
    placement: PlacementLike,
    *,
    top: int = 5,
    sample: str | None = None,
    mean: float | Sequence[float] | None = None,
    scale: float | Sequence[float] | None = None,
    bgr: bool | None = None,
    counters: bool = False,
    core: ov.Core | None = None,
) -> Classification:
    """Run a picture through an image classifier on a placement.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes, with one input of batch 1 and 1 or 3
        channels, first or last.
    image
        The path of a PNG, JPEG, BMP, GIF, WebP, TIFF or PPM file.
    placement
        A Placement, an Affinity, ``"HETERO:ACC,CPU"`` or ``"CPU"``.
    top
        The number of classes of each output.
    sample
        The name of the sample whose preprocessing and labels are used, if ``model`` is not it.
    mean, scale
        The input is ``(pixel - mean) / scale``, with pixels from 0 to 255: one number, or one a
        channel in the model's order. By default as the sample was trained, else 0 and 1.
    bgr
        Whether the model's first channel is blue; by default as for the sample, else red.
    counters
        Whether to compile once more for OpenVINO's counters.

    Returns
    -------
    Classification
        The best classes of each output that has one score a class, the best first.

    Raises
    ------
    ModelError
        The model does not take a picture, or gives no classes.
    InputError
        The picture cannot be read.
    ArgumentError
        Any other wrong argument.
    CompileError
        The runtime refused the placement.
    """
    check_whole("top", top, least=1)
    known = sample if sample is not None else model if isinstance(model, str) else ""
    how = sample_preprocessing(known)
    given = {"mean": _numbers("mean", mean), "scale": _numbers("scale", scale), "bgr": bgr}
    how = replace(how, **{name: value for name, value in given.items() if value is not None})
    bound = bind(model, core)
    shape, element_type = picture_input(bound.graph)
    outputs = _class_outputs(bound)
    n_given, n_channels = max(len(how.mean), len(how.scale)), sides(shape)[2]
    if n_given > n_channels:
        name = shorten(bound.graph.ops[bound.graph.parameters[0]].name)
        raise ArgumentError(
            f"mean= or scale= has {n_given} values, but the input {name} has one channel: give one."
        )
    pixels = read_picture(image, shape, how, element_type)
    placed = resolve(bound, placement)
    compiled = compile_placed(placed)
    answers = compiled([pixels])
    labels = _labels(known) if known in sample_names() else None
    rows: tuple[Counter, ...] = ()
    if counters:
        rows = read_counted(open_runner(placed, [pixels], counters=True))
    return Classification(
        model=bound.graph.name,
        placement=placed.label,
        image=os.fspath(image),
        classes=tuple(found for name in outputs for found in _best(name, answers, top, labels)),
        partition=compiled.partition,
        counters=rows,
        emulated=tuple(bases_of(placed.affinity.devices, bound.core).items()),
    )


def picture_input(graph: OpGraph) -> tuple[tuple[int, ...], str]:
    """Return shape and element type of the one input; ModelError if it does not take a picture."""
    inputs = [graph.ops[i] for i in graph.parameters]
    found = ", ".join(f"{shorten(op.name)} {_shape(op.outputs[0].shape)}" for op in inputs[:4])
    wanted = "An image classifier has one input, 1x3x224x224 or 1x224x224x3 (or 1 channel)"
    if len(inputs) != 1:
        raise ModelError(f"{wanted}; this model has {len(inputs)}: {found}.")
    tensor = inputs[0].outputs[0]
    shape = tensor.shape
    if shape is None or len(shape) != 4 or not {shape[1], shape[3]} & {1, 3}:
        raise ModelError(f"{wanted}; this model's is {found}.")
    if shape[0] != 1:
        raise ModelError(
            f"{wanted}; this model takes {shape[0]} pictures at once ({found}). Give its input "
            "another shape: --shape INPUT=1,… or hetero_lab.load(model, shapes={…})."
        )
    if tensor.element_type not in DTYPES:
        raise ModelError(
            f"Pictures are made for inputs of {names_at_hand(DTYPES)}; this model's is of "
            f"{tensor.element_type}: {found}."
        )
    return shape, tensor.element_type


def _labels(name: str) -> tuple[str, ...] | None:
    try:
        return sample_labels(name)
    except SampleError as error:
        warn(f"Classes have numbers only: {error}")
        return None


def _class_outputs(bound: BoundModel) -> list[str]:
    """Return the outputs that have one score a class: one axis that is longer than 1."""
    names, graph = bound.output_names, bound.graph
    shapes = [graph.ops[i].outputs[0].shape for i in graph.results]
    found = [
        name
        for name, shape in zip(names, shapes, strict=True)
        if shape is not None and len(shape) >= 1 and sum(size > 1 for size in shape) == 1
    ]
    if not found:
        outputs = names_at_hand(
            f"{name} {_shape(shape)}" for name, shape in zip(names, shapes, strict=True)
        )
        raise ModelError(
            "This model is not a classifier: no output has one score a class (1x1000). "
            f"Outputs: {outputs}."
        )
    return found


def _shape(shape: Sequence[int] | None) -> str:
    return "x".join(map(str, shape)) if shape is not None else "of unknown shape"


def _best(
    output: str, answers: dict[str, np.ndarray], top: int, labels: tuple[str, ...] | None
) -> list[ClassScore]:
    scores = answers[output].ravel().astype(np.float64)
    if labels is None or len(labels) != len(scores):
        labels = ("",) * len(scores)  # the classes of this output have no known names
    order = np.argsort(-scores, kind="stable")[:top]
    return [
        ClassScore(output, rank, int(index), labels[index], float(scores[index]))
        for rank, index in enumerate(order, start=1)
    ]


def _numbers(name: str, given: float | Sequence[float] | None) -> tuple[float, ...] | None:
    if given is None:
        return None
    try:
        return tuple(float(v) for v in (given if isinstance(given, Sequence) else [given]))
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{name}= is one number or three, not {given!r}.") from error
