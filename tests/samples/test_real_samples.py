"""The real sample models, fetched with pip: they load, and are as accurate as they are known to be.

Run with ``-m network``; needs the extra ``samples``. What is fetched stays in the user's cache.
"""

from __future__ import annotations

import io
import math
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

import hetero_lab as hl
from hetero_lab.fetch import Wheel
from hetero_lab.model.language import language_model
from hetero_lab.samples import catalogue as samples
from hetero_lab.samples.datasets import dataset

pytestmark = pytest.mark.network

N_OUTPUT_VALUES = {
    "digits_inception": {"digit": [1, 10], "parity": [1, 2]},
    "magika": {"target_label": [1, 214]},
    "ppocr_det": {"sigmoid_0.tmp_0": [1, 1, 320, 320]},
    "ppocr_rec": {"softmax_11.tmp_0": [1, 40, 6625]},
    "ppocr_cls": {"save_infer_model/scale_0.tmp_1": [1, 2]},
    "page_orientation": {"fetch_name_0": [1, 4]},
    "blazeface": {"regressors": [1, 896, 16], "classificators": [1, 896, 1]},
    "minilm_int8": {"last_hidden_state": [1, 64, 384]},
    "googlenet_graph": {"prob_1": [1, 1000]},
    "efficientnet_lite0": {"logits": [1, 1000]},
}
# Share of right answers in f32, seen before on other examples of the same kind.
ACCURACY = {
    "digits": 0.99,
    "magika": 0.980,
    "page_orientation": 1.0,
    "blazeface": 0.925,
    "ppocr_cls": 0.975,
    "ppocr_rec": 0.73,
}

Predict = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def core() -> ov.Core:
    return ov.Core()


def read(core: ov.Core, name: str) -> ov.Model:
    model = core.read_model(samples.sample_path(name))
    model.reshape(dict(samples.sample(name).shapes))
    return model


def in_f32(core: ov.Core, model: ov.Model) -> Predict:
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def predict(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {port.get_any_name(): value.copy() for port, value in compiled(inputs).items()}

    return predict


def test_all_samples_are_looked_at() -> None:
    language_models = {name for name in samples.sample_names() if not samples.sample(name).shapes}
    assert language_models == {"smollm2_135m"}
    assert set(N_OUTPUT_VALUES) == set(samples.sample_names()) - language_models
    assert {samples.sample(name).dataset for name in samples.sample_names()} == {None, *ACCURACY}


@pytest.mark.parametrize("name", N_OUTPUT_VALUES)
def test_sample_loads_with_static_shapes_and_runs(core: ov.Core, name: str) -> None:
    shapes = samples.sample(name).shapes
    model = read(core, name)
    assert [i.get_any_name() for i in model.inputs] == list(shapes)
    assert {o.get_any_name(): list(o.shape) for o in model.outputs} == N_OUTPUT_VALUES[name]
    rng = np.random.default_rng(0)
    inputs = {}
    for i in model.inputs:
        name, shape, dtype = i.get_any_name(), shapes[i.get_any_name()], i.element_type.to_dtype()
        is_whole = np.issubdtype(dtype, np.integer)
        values = rng.integers(0, 2, shape) if is_whole else rng.normal(size=shape)
        inputs[name] = values.astype(dtype)
    for values in in_f32(core, model)(inputs).values():
        assert np.isfinite(values).all()
        assert values.std() > 0


def test_smollm2_is_a_language_model_of_30_layers():
    model = hl.load("smollm2_135m")
    known = language_model(model)
    assert (known.vocabulary, len(known.states), known.context_tokens) == (49152, 60, 8192)
    types = [node.get_type_name() for node in model.get_ordered_ops()]
    assert types.count("ScaledDotProductAttention") == 30
    assert hl.samples().set_index("name").loc["smollm2_135m", "cached"]


def test_class_names() -> None:
    assert len(samples.sample_labels("magika") or ()) == 214
    characters = samples.sample_labels("ppocr_rec") or ()
    assert len(characters) == 6623  # with blank and space: the 6625 classes
    assert set("0123456789azAZ") < set(characters)
    classes = samples.sample_labels("efficientnet_lite0") or ()
    assert len(classes) == 1000
    assert classes[0] == "tench, Tinca tinca"
    assert classes[985] == "daisy"
    assert samples.sample_labels("minilm_int8") is None


@pytest.mark.parametrize("name", ACCURACY)
def test_accuracy_is_the_known_one_within_sampling_error(core: ov.Core, name: str) -> None:
    data = dataset(name)
    model = next(n for n in samples.sample_names() if samples.sample(n).dataset == name)
    predict = in_f32(core, read(core, model))
    answers = [(predict(inputs), label) for inputs, label in data.evaluation]
    accuracy = data.metric([outputs for outputs, _ in answers], [label for _, label in answers])
    n, known = len(answers), ACCURACY[name]
    print(f"{name}: {accuracy:.4f} on {n} examples, known: {known}")
    assert abs(accuracy - known) <= max(3 * math.sqrt(known * (1 - known) / n), 1 / n)


def test_googlenet_keeps_the_size_of_its_activations(core: ov.Core) -> None:
    model = read(core, "googlenet_graph")
    layers = [node for node in model.get_ordered_ops() if node.get_type_name() == "Relu"]
    watched = ov.Model([layer.output(0) for layer in layers], model.get_parameters(), "watched")
    compiled = core.compile_model(watched, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    rng = np.random.default_rng(0)
    values = compiled(rng.normal(size=(1, 3, 224, 224)).astype(np.float32))
    assert len(layers) == 57
    for i in range(len(layers)):
        assert 0.2 < values[i].std() < 5
        assert (values[i] > 0).mean() > 0.1


def test_efficientnet_recognises_photographs(core: ov.Core, tmp_path: Path) -> None:
    """18 of the 20 ImageNet pictures in foolbox: the weights were put where they belong."""
    image = pytest.importorskip("PIL.Image")
    name = "foolbox-3.3.4-py3-none-any.whl"
    arguments = Wheel("foolbox", "3.3.4", name, 0, ()).pip_arguments
    command = [sys.executable, "-m", "pip", *arguments, "--dest", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    predict = in_f32(core, read(core, "efficientnet_lite0"))
    n_right, n = 0, 0
    with zipfile.ZipFile(tmp_path / name) as archive:
        for member in archive.namelist():
            if "data/imagenet_" in member:
                photo = image.open(io.BytesIO(archive.read(member))).convert("RGB")
                pixels = (np.asarray(centre(photo), np.float32) - 127) / 128
                logits = predict({"image": pixels.transpose(2, 0, 1)[np.newaxis].copy()})["logits"]
                n_right += int(logits.argmax()) == int(Path(member).stem.split("_")[-1])
                n += 1
    assert n == 20
    assert n_right >= 17


def centre(photo):
    """Return the middle 7/8 of a photograph, 224 x 224."""
    width, height = photo.size
    side = min(photo.size) * 224 / 256
    box = ((width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2)
    return photo.resize((224, 224), box=box)  # bicubic by default
