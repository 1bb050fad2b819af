"""Labelled data for the sample models: examples to calibrate with and to measure accuracy on.

The data is drawn, or comes with installed packages. It stays the same as long as those do, and no
example is in both parts of a set.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from PIL import Image

from hetero_lab.arguments import checked
from hetero_lab.errors import ArgumentError, SampleError, did_you_mean, names_at_hand, shorten
from hetero_lab.result import Displayed
from hetero_lab.samples import drawn_text
from hetero_lab.samples.catalogue import datasets_dir, sample_labels

Inputs: TypeAlias = dict[str, np.ndarray]
Outputs: TypeAlias = Mapping[str, np.ndarray]
Example: TypeAlias = tuple[Inputs, Any]
Correct: TypeAlias = Callable[[Outputs, Any], bool]

N_DRAWN_CALIBRATION, N_DRAWN_EVALUATION = 100, 200  # each is drawn when it is read
N_FILES = 600  # before those of types that the network does not know are left out
N_FACES = 100  # the first of scikit-image's patches; the others show no face
PICTURE, PATCH = 128, 48  # pixels: the side of the network's input, and of the face in it
# MediaPipe's graphs for this network accept faces from this score on.
LEAST_SCORE = 0.75

# As magika 1.0.3 has it in models/standard_v3_3/config.min.json.
N_BEGIN = N_END = 1024
BLOCK, PADDING = 4096, 256  # bytes read at either end; the value where a file has no more
N_LEAST = 8  # magika recognises shorter files without the network

# Extensions that nearly always mean one type, and magika's name of that type: often the same.
_NAMED_ALIKE = """
    bmp c cmake cpp css csv gif html ico ini ipynb json npy npz onnx pem png po proto rst svg tar
    tiff toml ttf wav woff woff2 xml xz yaml zip
"""
FILE_TYPES = {name: name for name in _NAMED_ALIKE.split()} | {
    "bat": "batch", "bz2": "bzip", "cc": "cpp", "exe": "pebin", "f": "fortran", "f90": "fortran",
    "gz": "gzip", "hpp": "cpp", "jpg": "jpeg", "js": "javascript", "md": "markdown",
    "pkl": "pickle", "ps1": "powershell", "py": "python", "pyi": "python", "sh": "shell",
    "ts": "typescript", "yml": "yaml",
}  # fmt: skip

# Files of tests and templates are often broken on purpose, or half of one type and half of
# another; packages are roots of their own; byte code comes and goes with each import.
LEFT_OUT_DIRECTORIES = {
    *("test", "tests", "testing", "test_data", "templates"),
    *("site-packages", "dist-packages"),
    "__pycache__",
}
LEFT_OUT_NAMES = {"license", "licence", "copying", "notice"}


@dataclass(frozen=True)
class Examples(Sequence[Example]):
    """A sequence of examples, each made on demand: fresh input arrays by name, and the label."""

    keys: tuple[Any, ...]
    make: Callable[[Any], Example]

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Examples(self.keys[index], self.make)
        return self.make(self.keys[index])

    def __repr__(self) -> str:
        return f"<{len(self)} examples>"


@checked
@dataclass(frozen=True)
class Metric:
    """The share of right answers.

    Attributes
    ----------
    name
        The name of the measure, for tables.
    correct
        Takes the model's outputs and the label; returns whether the answer is right.
    """

    name: str
    correct: Correct

    def __call__(self, outputs: Sequence[Outputs], labels: Sequence[Any]) -> float:
        """Return the share of right answers; ArgumentError without any, or if numbers differ."""
        if not len(outputs) or len(outputs) != len(labels):
            raise ArgumentError(
                f"A share of right answers needs as many outputs as labels, at least one of "
                f"each. Given: {len(outputs)} outputs, {len(labels)} labels."
            )
        right = [self.correct(o, label) for o, label in zip(outputs, labels, strict=True)]
        return sum(right) / len(right)


@checked
@dataclass(frozen=True)
class Dataset(Displayed):
    """Labelled data that goes with a sample model.

    Attributes
    ----------
    name
        The name for :func:`dataset`.
    calibration, evaluation
        Examples to quantize with and to measure accuracy on; they do not overlap.
    metric
        Maps outputs and labels to the share of right answers.
    output
        The model output that is evaluated.
    """

    name: str
    calibration: Examples
    evaluation: Examples
    metric: Metric
    output: str

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}: {len(self.calibration)} examples to calibrate with, "
            f"{len(self.evaluation)} to evaluate; {self.metric.name} of output {self.output!r})"
        )


def dataset(name: str) -> Dataset:
    """Return a labelled data set.

    Parameters
    ----------
    name
        A name in the column ``dataset`` of :func:`hetero_lab.samples`.

    Raises
    ------
    ArgumentError
        There is no such data set.
    SampleError
        A package or file that it needs is missing; the message says how to get it.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> hl.dataset("digits")
    Dataset('digits': 200 examples to calibrate with, 597 to evaluate; accuracy of output 'digit')
    """
    if name not in DATASETS:
        raise ArgumentError(
            f"{shorten(str(name))} is not a data set.{did_you_mean(str(name), DATASETS)} "
            f"Data sets: {names_at_hand(DATASETS, len(DATASETS))}."
        )
    return DATASETS[name]()


class ReadData(NamedTuple):
    """Examples, the criterion for a right answer, its name, and the output that it looks at."""

    examples: Sequence[Any]
    correct: Correct | None
    metric: str
    output: str


def read_optional_data(data: Any, metric: Metric | Correct | None) -> ReadData | None:
    """Read the arguments ``data=`` and ``metric=``; ``None`` if neither is given."""
    if metric is not None and data is None:
        raise ArgumentError("metric= says how answers to data= are judged: give data=, too")
    return None if data is None else read_data(data, metric)


def read_data(data: Any, metric: Metric | Correct | None = None) -> ReadData:
    """Read the arguments ``data=`` and ``metric=``; ArgumentError if they make no sense."""
    output = ""
    if isinstance(data, Dataset):
        metric, output, data = metric or data.metric, data.output, data.evaluation
    if isinstance(data, str | bytes | dict) or not isinstance(data, Iterable):
        raise ArgumentError(
            "data= is a labelled data set (hetero_lab.dataset('digits')), a list of (inputs, "
            f"label) with metric=, or a list of inputs, not {type(data).__name__}."
        )
    examples = data if isinstance(data, Sequence) else list(data)
    if not len(examples):
        raise ArgumentError("data= has no examples. Give at least one; hundreds are better.")
    if metric is None:
        return ReadData(examples, None, "", output)
    if isinstance(metric, Metric):
        return ReadData(examples, metric.correct, metric.name, output)
    if not callable(metric):
        raise ArgumentError(
            "metric= is a function from outputs by name and a label to a bool, not "
            f"{type(metric).__name__}."
        )
    return ReadData(examples, metric, getattr(metric, "__name__", "accuracy"), output)


def _digits() -> Dataset:
    """Handwritten digits of scikit-learn, split as they were to train `digits_inception`."""
    path = datasets_dir() / "digits_split.json"
    try:
        split = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SampleError(f"The file {path} is missing. Reinstall hetero_lab.") from error
    calibration, evaluation = (
        Examples(tuple(split[part]), _digit) for part in ("calibration", "evaluation")
    )
    return _classes("digits", calibration, evaluation, "digit")


@functools.lru_cache(maxsize=1)
def digit_images() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    return digits.images.astype(np.float32), digits.target


def _digit(index: int) -> Example:
    images, labels = digit_images()
    return {"image": images[index][np.newaxis, np.newaxis].copy()}, int(labels[index])


def _magika() -> Dataset:
    """Files of the Python installation, labelled with the type that their extension stands for."""
    classes = sample_labels("magika") or ()
    files = tuple(
        (path, classes.index(kind)) for path, kind in find_files(N_FILES) if kind in classes
    )
    return _classes("magika", *_every_sixth(files, _file), "target_label")


def _file(key: tuple[Path, int]) -> Example:
    path, label = key
    return {"bytes": read_features(path)}, label


def features(begin: bytes, end: bytes) -> np.ndarray:
    """Return the network's input for a file, [1, 2048] i32, given its first and last 4096 bytes.

    It has the first 1024 bytes after leading white space and the last 1024 before trailing white
    space, one number per byte, padded with 256 after the beginning and before the end.
    """
    first, last = begin[:BLOCK].lstrip()[:N_BEGIN], end[-BLOCK:].rstrip()[-N_END:]
    values = np.full((1, N_BEGIN + N_END), PADDING, np.int32)
    values[0, : len(first)] = np.frombuffer(first, np.uint8)
    values[0, N_BEGIN + N_END - len(last) :] = np.frombuffer(last, np.uint8)
    return values


def read_features(path: Path) -> np.ndarray:
    """Return the network's input for the file at a path."""
    with path.open("rb") as file:
        begin = file.read(BLOCK)
        file.seek(0, os.SEEK_END)
        file.seek(max(file.tell() - BLOCK, 0))
        return features(begin, file.read(BLOCK))


def find_files(n: int) -> list[tuple[Path, str]]:
    """Choose up to ``n`` files of the Python installation, as many of each type as there are.

    Returns their paths and magika's names of their types. The choice stays the same as long as the
    installation does. No two files give the network the same input.
    """
    by_type: dict[str, list[tuple[str, Path]]] = {}
    for path, relative in _installed_files(roots()):
        kind = FILE_TYPES.get(path.suffix[1:].lower())
        if kind and path.stem.lower() not in LEFT_OUT_NAMES:
            order = hashlib.sha256(relative.encode("utf-8", "surrogateescape")).hexdigest()
            by_type.setdefault(kind, []).append((order, path))
    queues = [[(path, kind) for _, path in sorted(by_type[kind])] for kind in sorted(by_type)]
    files: dict[bytes, tuple[Path, str]] = {}
    for path, kind in filter(None, chain.from_iterable(zip_longest(*queues))):
        if len(files) == n:
            break
        content = _looked_at(path)
        if content is not None:
            files.setdefault(content, (path, kind))
    return [*files.values()]


def roots() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    names = ("stdlib", "platstdlib", "purelib", "platlib", "include")
    return tuple(dict.fromkeys(Path(paths[name]).resolve() for name in names))


@functools.lru_cache(maxsize=1)
def _installed_files(roots: Sequence[Path]) -> list[tuple[Path, str]]:
    """Return the files below some directories and their paths relative to them."""
    files = []
    for root in roots:
        for parent, directories, names in os.walk(root):
            directories[:] = [d for d in directories if d.lower() not in LEFT_OUT_DIRECTORIES]
            relative = os.path.relpath(parent, root)
            files += [(Path(parent, name), f"{relative}/{name}") for name in names]
    return files


def _looked_at(path: Path) -> bytes | None:
    """Return the network's input as bytes; None for a file that is too short or unreadable."""
    if path.is_symlink() or not path.is_file():
        return None
    try:
        values = read_features(path)
    except OSError:
        return None
    # Only leading white space is stripped, so the eighth value is padding only for a short file.
    return None if values[0, N_LEAST - 1] == PADDING else values.tobytes()


def _blazeface() -> Dataset:
    """scikit-image's ``lfw_subset``: 100 faces and 100 patches without one, 25 x 25 pixels, grey.

    The network looks for faces in pictures, so each patch is put in the middle of a black one.
    """
    output = "classificators"
    parts = _every_sixth(tuple(range(len(face_patches()))), face_example)
    metric = Metric("accuracy", functools.partial(_face_correct, output=output))
    return Dataset("blazeface", *parts, metric, output)


def face_example(index: int) -> tuple[dict[str, np.ndarray], bool]:
    """Return a patch, ``{"input": [1, 128, 128, 3] f32}`` from -1 to 1; whether it is a face."""
    patch = Image.fromarray(face_patches()[index].astype(np.float32))
    enlarged = patch.resize((PATCH, PATCH), Image.Resampling.BILINEAR)
    picture, begin = Image.new("F", (PICTURE, PICTURE)), (PICTURE - PATCH) // 2
    picture.paste(enlarged, (begin, begin))
    pixels = np.repeat((np.asarray(picture) * 2 - 1)[np.newaxis, :, :, np.newaxis], 3, axis=3)
    return {"input": pixels}, index < N_FACES


def is_face(logits: np.ndarray) -> bool:
    """Return whether the score of any anchor, given as logits, is high enough."""
    return bool(logits.max() > np.log(LEAST_SCORE / (1 - LEAST_SCORE)))


@functools.lru_cache(maxsize=1)
def face_patches() -> np.ndarray:
    """Return the patches, grey; the first 100 are faces."""
    try:
        from skimage.data import lfw_subset  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise SampleError(
            "The data set 'blazeface' is scikit-image's lfw_subset. "
            "Install it: python -m pip install scikit-image"
        ) from error
    patches = np.asarray(lfw_subset(), np.float64)
    patches.flags.writeable = False
    return patches


def _ppocr_rec() -> Dataset:
    parts = _drawn("ppocr_rec", drawn_text.line_example)
    output = "softmax_11.tmp_0"
    characters = sample_labels("ppocr_rec") or ()
    correct = functools.partial(_text_correct, output=output, characters=characters)
    metric = Metric("share of lines read without error", correct)
    return Dataset("ppocr_rec", *parts, metric, output)


def _drawn(name: str, make: Callable[[str], Example]) -> tuple[Examples, Examples]:
    sizes = {"calibration": N_DRAWN_CALIBRATION, "evaluation": N_DRAWN_EVALUATION}
    seeds = [tuple(f"{name}/{part}/{i}" for i in range(n)) for part, n in sizes.items()]
    return Examples(seeds[0], make), Examples(seeds[1], make)


def _every_sixth(
    keys: tuple[Any, ...], make: Callable[[Any], Example]
) -> tuple[Examples, Examples]:
    """Return the examples of every sixth key, to calibrate with, and of the others."""
    return Examples(keys[::6], make), Examples(tuple(k for i, k in enumerate(keys) if i % 6), make)


def _classes(name: str, calibration: Examples, evaluation: Examples, output: str) -> Dataset:
    metric = Metric("accuracy", functools.partial(_class_correct, output=output))
    return Dataset(name, calibration, evaluation, metric, output)


def _class_correct(outputs: Outputs, label: int, output: str) -> bool:
    scores = _choice(outputs, output)
    fits = isinstance(label, int | np.integer) and 0 <= label < scores.size
    _check_label(fits, label, f"a class of the output {output!r}, 0 to {scores.size - 1}")
    return int(np.argmax(scores)) == label


def _face_correct(outputs: Outputs, label: bool, output: str) -> bool:
    _check_label(isinstance(label, bool | np.bool_), label, "True (a face) or False")
    return is_face(_choice(outputs, output)) == label


def _text_correct(outputs: Outputs, label: str, output: str, characters: tuple[str, ...]) -> bool:
    _check_label(isinstance(label, str), label, "the text of a line")
    # Drawn lines neither begin nor end with a space; one that is read there is the margin.
    return drawn_text.read_ctc(_choice(outputs, output), characters).strip() == label


def _check_label(fits: bool, label: Any, what: str) -> None:
    if not fits:
        raise ArgumentError(f"The label {shorten(str(label), 60)} does not fit: it must be {what}.")


def _choice(outputs: Outputs, output: str) -> np.ndarray:
    if output not in outputs:
        raise ArgumentError(
            f"The data set evaluates the output {output!r}, which is missing. "
            f"Outputs: {names_at_hand(outputs)}. Does it belong to another model?"
        )
    return outputs[output]


DATASETS: dict[str, Callable[[], Dataset]] = {
    "digits": _digits,
    "magika": _magika,
    "page_orientation": lambda: _classes(
        "page_orientation", *_drawn("page_orientation", drawn_text.page_example), "fetch_name_0"
    ),
    "blazeface": _blazeface,
    "ppocr_cls": lambda: _classes(
        "ppocr_cls",
        *_drawn("ppocr_cls", drawn_text.direction_example),
        "save_infer_model/scale_0.tmp_1",
    ),
    "ppocr_rec": _ppocr_rec,
}
