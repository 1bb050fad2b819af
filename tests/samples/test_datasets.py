"""The labelled data sets: disjoint, the same every time, and right about what is right."""

from __future__ import annotations

import html
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from hetero_lab.errors import ArgumentError, SampleError
from hetero_lab.samples import catalogue as samples, datasets as labelled_data, drawn_text
from hetero_lab.samples.catalogue import datasets_dir
from hetero_lab.samples.datasets import Dataset, dataset

SIZES = {
    "digits": (200, 597),
    "magika": (100, 500),
    "page_orientation": (100, 200),
    "blazeface": (34, 166),
    "ppocr_cls": (100, 200),
    "ppocr_rec": (100, 200),
}


@pytest.fixture
def data(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """A data set, without what would need the model's files."""
    if request.param == "blazeface":
        pytest.importorskip("skimage")
    classes = {
        "magika": tuple(sorted(set(labelled_data.FILE_TYPES.values()))),
        "ppocr_rec": ("a", "b"),
    }
    monkeypatch.setattr(labelled_data, "sample_labels", classes.get)
    return dataset(request.param)


def content(examples: labelled_data.Examples) -> list[bytes]:
    return [b"".join(array.tobytes() for array in inputs.values()) for inputs, _ in examples]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name == "page_orientation"))
        for name in labelled_data.DATASETS
    ],
    indirect=True,
)
def test_parts_are_disjoint_and_have_the_shapes_of_the_model(data: Dataset) -> None:
    calibration, evaluation = content(data.calibration), content(data.evaluation)
    assert not set(calibration) & set(evaluation)
    assert (len(calibration), len(evaluation)) == SIZES[data.name]
    model = next(n for n in samples.sample_names() if samples.sample(n).dataset == data.name)
    for inputs, _ in [*data.calibration[:3], *data.evaluation[-3:]]:
        assert {name: array.shape for name, array in inputs.items()} == dict(
            samples.sample(model).shapes
        )
        assert all(array.dtype in (np.float32, np.int32) for array in inputs.values())
    labels = Counter(label for _, label in data.evaluation)
    assert len(labels) > 1
    if data.name != "magika":  # the files depend on the installed packages
        assert max(labels.values()) / len(data.evaluation) < 0.62
    # Each example is the same every time, in fresh arrays.
    again = dataset(data.name)
    for part, other in ((data.calibration, again.calibration), (data.evaluation, again.evaluation)):
        assert len(part) == len(other)
        for i in (0, 1, -1):
            (inputs, label), (same_inputs, same_label) = part[i], other[i]
            assert label == same_label
            for name, array in inputs.items():
                np.testing.assert_array_equal(array, same_inputs[name])
                array[:] = 0  # the next one must not notice
                assert part[i][0][name].any()
    with pytest.raises(IndexError):
        data.evaluation[len(data.evaluation)]
    assert len(data.evaluation[2:5]) == 3


def test_digits_are_those_that_the_model_was_not_trained_on() -> None:
    split = json.loads((datasets_dir() / "digits_split.json").read_text("utf-8"))
    data = dataset("digits")
    assert not set(data.evaluation.keys) & {*split["train"], *split["calibration"]}
    inputs, label = data.evaluation[0]
    assert 0 <= label <= 9
    assert inputs["image"].max() <= 16


def test_metric_of_classes() -> None:
    data = dataset("digits")
    assert data.metric.name == "accuracy"
    outputs = [{"digit": np.eye(10, dtype=np.float32)[[i]]} for i in (3, 1, 4, 1)]
    assert data.metric(outputs, [3, 1, 4, 9]) == 0.75
    assert [data.metric.correct(o, 1) for o in outputs] == [False, True, False, True]
    with pytest.raises(ArgumentError, match="0 outputs, 0 labels"):
        data.metric([], [])
    with pytest.raises(ArgumentError, match="4 outputs, 1 labels"):
        data.metric(outputs, [3])
    with pytest.raises(ArgumentError, match=r"output 'digit', which is missing\. Outputs: 'x'"):
        data.metric([{"x": np.zeros(1)}], [0])


def test_unknown_data_set_and_text() -> None:
    with pytest.raises(ArgumentError, match=r"'digit' is not a data set\. Did you mean 'digits'"):
        dataset("digit")
    data = dataset("digits")
    assert repr(data) == (
        "Dataset('digits': 200 examples to calibrate with, 597 to evaluate; "
        "accuracy of output 'digit')"
    )
    assert "'digits'" in html.unescape(data._repr_html_())


def test_a_missing_package(monkeypatch) -> None:
    labelled_data.face_patches.cache_clear()
    monkeypatch.setitem(sys.modules, "skimage.data", None)
    with pytest.raises(SampleError, match=r"python -m pip install scikit-image"):
        dataset("blazeface")


# Files ------------------------------------------------------------------------------------------

_PIECES = st.lists(st.sampled_from([b" ", b"\n\t", b"a", b"\x00", b"xyz" * 500]), max_size=12)


@given(_PIECES.map(b"".join))
def test_features_are_the_ends_without_white_space(content: bytes) -> None:
    values = labelled_data.features(content, content)
    assert values.shape == (1, 2048)
    assert values.dtype == np.int32
    begin = [*content[:4096].lstrip()[:1024]]
    end = [*content[-4096:].rstrip()[-1024:]]
    assert values[0, :1024].tolist() == begin + [256] * (1024 - len(begin))
    assert values[0, 1024:].tolist() == [256] * (1024 - len(end)) + end


@pytest.mark.parametrize("n", [0, 3, 1024, 4095, 4096, 4097, 9000])
def test_features_of_a_file_are_those_of_its_content(tmp_path: Path, n: int) -> None:
    content = np.random.default_rng(n).integers(0, 256, n).astype(np.uint8).tobytes()
    (tmp_path / "f").write_bytes(content)
    expected = labelled_data.features(content[:4096], content[-4096:] if n else b"")
    np.testing.assert_array_equal(labelled_data.read_features(tmp_path / "f"), expected)


def test_files_are_spread_over_the_types(tmp_path: Path, monkeypatch) -> None:
    root = tmp_path / "root"
    for directory in ("a", "tests", "__pycache__", "site-packages"):
        (root / directory).mkdir(parents=True)
        for i in range(20):
            (root / directory / f"m{i}.py").write_text(f"value = {i} # {directory}")
    for i in range(3):
        (root / "a" / f"t{i}.json").write_text(f'{{"value": {i}}}')
    (root / "a" / "same.json").write_text('{"value": 0}')
    (root / "a" / "short.json").write_text("{}")
    (root / "a" / "LICENSE.md").write_text("# All rights, none reserved")
    (root / "a" / "link.css").symlink_to(root / "a" / "m0.py")
    monkeypatch.setattr(labelled_data, "roots", lambda: (root,))
    chosen = labelled_data.find_files(10)
    assert Counter(kind for _, kind in chosen) == {"python": 7, "json": 3}
    assert {path.parent.name for path, _ in chosen} == {"a"}
    assert labelled_data.find_files(10) == chosen
    assert len(labelled_data.find_files(1000)) == 23


# Text and faces ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([0, 0, 0], ""),
        ([1, 1, 0, 1, 2, 2], "aab"),
        ([2, 3, 3, 1], "b a"),
        ([1], "a"),
    ],
)
def test_ctc(steps: list[int], text: str) -> None:
    scores = np.eye(4, dtype=np.float32)[steps][np.newaxis]
    assert drawn_text.read_ctc(scores, ("a", "b")) == text


@pytest.mark.parametrize("data", ["page_orientation"], indirect=True)
def test_pages_are_turned_clockwise(data: Dataset) -> None:
    """Dark ink: the heading, larger than the text, is at the top, right, bottom or left."""
    for i in range(8):
        inputs, label = data.evaluation[i]
        upright = np.rot90(inputs["x"][0].mean(axis=0), label)  # rot90 turns anticlockwise
        ink = upright < upright.max() - 1
        assert ink[:, :60].sum() > ink[:, -60:].sum()  # lines begin at the left margin


def test_face_scores() -> None:
    logits = np.full((1, 896, 1), -5.0, np.float32)
    for score, is_face in ((0.01, False), (0.74, False), (0.76, True)):
        logits[0, 7] = np.log(score / (1 - score))
        assert labelled_data.is_face(logits) == is_face
