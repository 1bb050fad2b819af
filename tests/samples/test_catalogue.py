"""The manifest, and the models that are made out of what is fetched. No network is needed."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import os
import pickle
import struct
import xml.etree.ElementTree as ElementTree
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, strategies as st
from slow_index import only_from

from hetero_lab.errors import ArgumentError, HeteroLabError, SampleError
from hetero_lab.samples import catalogue as samples, made_models, onnx_wire
from hetero_lab.samples.catalogue import datasets_dir
from hetero_lab.samples.datasets import DATASETS

LIGHT_MODEL = "onnx/backend/test/data/light/light_inception_v1.onnx"


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and a pip that finds nothing."""
    only_from(monkeypatch, None)
    monkeypatch.setenv("HETERO_LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def light_model() -> bytes:
    try:
        path = importlib.metadata.distribution("onnx").locate_file(LIGHT_MODEL)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package onnx is not installed")
    return Path(str(path)).read_bytes()


@pytest.mark.parametrize("name", samples.sample_names())
def test_manifest(name: str) -> None:
    chosen = samples.sample(name)
    assert name.isidentifier()
    assert chosen.task
    assert chosen.licence in ("Apache-2.0", "MIT")
    assert all(n > 0 for shape in chosen.shapes.values() for n in shape)
    assert chosen.dataset in (None, *DATASETS)
    assert (chosen.bundled is None) != (chosen.wheel is None)
    if chosen.wheel is not None:
        stem = f"{chosen.wheel.package.replace('-', '_')}-{chosen.wheel.version}-"
        assert chosen.wheel.file_name.startswith(stem)
        for member in chosen.wheel.members:
            assert member.n_bytes > 0
        names = [member.file_name for member in chosen.wheel.members]
        assert len(set(names)) == len(names)  # they share a directory of the cache


def test_table() -> None:
    table = samples.samples()
    assert set(table["dataset"]) - {""} == set(DATASETS)
    assert list(table.columns) == [
        *("name", "task", "licence", "n_bytes", "bundled", "cached", "package", "dataset")
    ]
    listed = json.loads((datasets_dir() / "samples.json").read_text("utf-8"))["samples"]
    assert list(table["name"]) == [entry["name"] for entry in listed]  # none is there twice
    assert not table.isna().any(axis=None)
    assert table["n_bytes"].dtype == np.int64
    assert not table["cached"].any()
    rows = table.set_index("name")[["package", "dataset", "bundled"]]
    assert rows.loc["magika"].tolist() == ["magika==1.0.3", "magika", False]
    assert rows.loc["digits_inception"].tolist() == ["", "digits", True]


def test_unknown_sample() -> None:
    with pytest.raises(
        ArgumentError, match=r"'Magica' is not a sample.*'magika'.*Samples: 'digits"
    ):
        samples.sample_path("Magica")
    with pytest.raises(HeteroLabError):
        samples.sample("")


def test_bundled_model_is_as_the_manifest_says() -> None:
    path = samples.sample_path("digits_inception")
    layers = ElementTree.parse(path).getroot().iterfind("layers/layer[@type='Parameter']/data")
    shapes = [tuple(int(n) for n in data.attrib["shape"].split(",")) for data in layers]
    assert shapes == list(samples.sample("digits_inception").shapes.values())
    n_bytes = sum(path.with_suffix(suffix).stat().st_size for suffix in (".xml", ".bin"))
    assert samples.sample("digits_inception").n_bytes == n_bytes
    assert samples.sample_labels("digits_inception") == tuple("0123456789")


def test_missing_files_of_the_installation(tmp_path: Path, monkeypatch) -> None:
    manifest = (datasets_dir() / "samples.json").read_bytes()
    monkeypatch.setattr(samples, "datasets_dir", lambda: tmp_path)
    with pytest.raises(SampleError, match=r"samples\.json is missing"):
        samples.samples()
    (tmp_path / "samples.json").write_bytes(manifest)
    with pytest.raises(SampleError, match=r"digits_inception\.xml is missing"):
        samples.sample_path("digits_inception")


def test_offline_the_message_names_the_package() -> None:
    with pytest.raises(SampleError, match=r"python -m pip download .* magika==1\.0\.3`; then put"):
        samples.sample_path("magika")
    with pytest.raises(SampleError, match=r"magika==1\.0\.3"):
        samples.sample_labels("magika")


# GoogLeNet --------------------------------------------------------------------------------------


def test_googlenet_is_made_from_the_installed_onnx(light_model: bytes, empty_cache: Path) -> None:
    chosen = samples.sample("googlenet_graph")
    assert chosen.member is not None
    if hashlib.sha256(light_model).hexdigest() != chosen.member.sha256:
        pytest.skip("the installed onnx has another version of the file")
    path = samples.sample_path("googlenet_graph")
    assert path.stat().st_size == chosen.n_bytes
    assert hashlib.sha256(path.read_bytes()).hexdigest() == chosen.made_sha256
    assert set(samples.samples().set_index("name").query("cached").index) == {"googlenet_graph"}
    path.write_bytes(b"")  # a broken file is made again
    assert samples.sample_path("googlenet_graph").stat().st_size == chosen.n_bytes
    assert not list(empty_cache.glob(".fetch-*"))


def test_a_made_model_that_is_not_the_known_one_is_not_kept(
    light_model: bytes, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made_models, "GAIN", 1.0)
    with pytest.raises(SampleError, match="not the expected one"):
        samples.sample_path("googlenet_graph")
    assert not (empty_cache / "googlenet_graph").exists()


def test_googlenet_filters_have_no_mean_and_the_size_for_relu(light_model: bytes) -> None:
    model = made_models.googlenet(light_model)
    graph = onnx_wire.messages(model, 7)[0]
    assert [onnx_wire.strings(i, 1) for i in onnx_wire.messages(graph, 11)] == [["data_0"]]
    names = [onnx_wire.strings(node, 3)[0] for node in onnx_wire.messages(graph, 1)]
    assert len(set(names)) == len(names)
    assert {"conv1/7x7_s2", "inception_3a/pool_proj", "loss3/classifier"} <= set(names)
    n_checked = 0
    for tensor in onnx_wire.messages(graph, 5):
        if onnx_wire.strings(tensor, 8)[0].endswith("_w_0"):
            shape = [v for n, v in onnx_wire.fields(tensor) if n == 1]
            values = np.frombuffer(onnx_wire.messages(tensor, 9)[0], "<f4")
            rows = values.reshape(shape[-2] if shape[0] == 1 else shape[0], -1)
            deviation = made_models.GAIN * np.sqrt(2 / rows.shape[1])
            assert np.abs(rows.mean(axis=1)).max() < 1e-6
            assert rows.std() == pytest.approx(deviation, rel=0.03)
            n_checked += 1
    assert n_checked == 58


# PyTorch's file of weights ----------------------------------------------------------------------


class Global(str):
    """The module and the name of an object of PyTorch, which need not be installed."""


class Tensor(NamedTuple):
    key: str
    values: np.ndarray


class LegacyPickler(pickle._Pickler):
    """Writes tensors as PyTorch did before 1.6."""

    def save(self, obj: object, save_persistent_id: bool = True) -> None:
        if isinstance(obj, Global):
            self.write(pickle.GLOBAL + obj.encode() + b"\n")
        elif isinstance(obj, Tensor):
            values = obj.values
            strides = tuple(n // 4 for n in values.strides)
            storage = ("storage", Global("torch\nFloatStorage"), obj.key, "cpu", values.size, None)
            self.save(Global("torch._utils\n_rebuild_tensor_v2"))
            self.write(pickle.MARK)
            self.save(storage)
            self.write(pickle.BINPERSID)
            for part in (0, values.shape, strides, False, OrderedDict()):
                self.save(part)
            self.write(pickle.TUPLE + pickle.REDUCE)
        else:
            super().save(obj, save_persistent_id)


def legacy_pth(tensors: dict[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}):
        pickle.dump(part, file, protocol=2)
    described = OrderedDict((key, Tensor(key, values)) for key, values in tensors.items())
    LegacyPickler(file, protocol=2).dump(described)
    pickle.dump(list(tensors), file, protocol=2)
    for values in tensors.values():
        file.write(struct.pack("<q", values.size) + values.tobytes(order="A"))
    return file.getvalue()


def test_weights_are_read_in_any_order_of_axes() -> None:
    rng = np.random.default_rng(1)
    tensors = {
        "a": rng.normal(size=(2, 3, 4)).astype(np.float32),
        "transposed": np.asfortranarray(rng.normal(size=(5, 3)).astype(np.float32)),
        "scalar": np.array(2.5, np.float32),
    }
    read = made_models.read_weights(legacy_pth(tensors))
    assert list(read) == list(tensors)
    for name, values in tensors.items():
        np.testing.assert_array_equal(read[name], values)


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path, monkeypatch) -> None:
    target = tmp_path / "made_by_the_pickle"

    class Attack:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(target),)

    file = io.BytesIO()
    for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, Attack()):
        pickle.dump(part, file, protocol=2)
    with pytest.raises(pickle.UnpicklingError, match="mkdir has no place in a file of weights"):
        made_models.read_weights(file.getvalue())
    assert not target.exists()
    pickle.loads(pickle.dumps(Attack()))  # the attack itself does work
    assert target.exists()


# ONNX bytes -------------------------------------------------------------------------------------

_VALUES = st.one_of(st.integers(0, 2**64 - 1), st.binary(max_size=300))


@given(st.lists(st.tuples(st.integers(1, 2**20), _VALUES)))
def test_fields_come_back(parts: list[tuple[int, int | bytes]]) -> None:
    assert list(onnx_wire.fields(onnx_wire.encode(*parts))) == parts


def test_metadata() -> None:
    pairs = [onnx_wire.encode((1, "character"), (2, "a\nb")), onnx_wire.encode((1, "empty"))]
    model = onnx_wire.encode((1, 8), *[(14, pair) for pair in pairs])
    assert onnx_wire.metadata(model) == {"character": "a\nb", "empty": ""}


def test_data_sets_lie_in_the_installed_package_or_beside_it(monkeypatch, tmp_path: Path) -> None:
    package = tmp_path / "hetero_lab"
    monkeypatch.setattr(samples, "__file__", str(package / "samples" / "catalogue.py"))
    assert samples.datasets_dir() == tmp_path / "datasets"
    (package / "datasets").mkdir(parents=True)
    assert samples.datasets_dir() == package / "datasets"


# GGUF -------------------------------------------------------------------------------------------


def test_the_language_model_needs_genai_and_says_so_before_it_fetches(monkeypatch, empty_cache):
    monkeypatch.setattr(made_models.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SampleError, match=r"pip install 'hetero-lab\[llm\]'"):
        samples.sample_path("smollm2_135m")
    assert not empty_cache.exists() or not list(empty_cache.iterdir())


def test_a_file_that_is_no_model_is_told(tmp_path):
    file, target = tmp_path / "broken.gguf", tmp_path / "model"
    file.write_bytes(b"GGUF, but not really")
    target.mkdir()
    with pytest.raises(SampleError, match=r"could not convert broken\.gguf: .+ version\?"):
        made_models.convert_gguf(file, target)
    assert made_models.context_length(file) is None
    assert list(target.iterdir()) == []
    file.write_bytes(b"GGUF..llama.context_length" + struct.pack("<II", 4, 2048))
    assert made_models.context_length(file) == 2048
