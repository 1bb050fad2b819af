"""Classify: pictures become what the model was trained on; what cannot be meant says so."""

from __future__ import annotations

import json
import random
import struct
import zlib
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as op
import pandas as pd
import pytest
from PIL import Image

import hetero_lab as hl
from hetero_lab.accuracy import classify as classifying
from hetero_lab.accuracy.classify import picture_input
from hetero_lab.cli import main as cli
from hetero_lab.errors import HeteroLabWarning, InputError, ModelError, SampleError
from hetero_lab.model.read import prepare
from hetero_lab.samples import drawn_text
from hetero_lab.samples.pictures import (
    Preprocessing,
    read_picture,
    sample_preprocessing,
    sides,
)

EMULATE = "CLSACC:unsupported=Softmax,Sigmoid"


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> list[tuple[Path, np.ndarray, int]]:
    """Pictures of digits beside the arrays that they were made of and their labels."""
    directory = tmp_path_factory.mktemp("digits")
    made = []
    for i, (inputs, label) in enumerate(hl.dataset("digits").evaluation[:6]):
        grey = np.rint(inputs["image"][0, 0] * 255 / 16).astype(np.uint8)
        picture = Image.fromarray(grey).resize((64, 64), Image.Resampling.NEAREST)
        picture.save(directory / f"{i}.png")
        made.append((directory / f"{i}.png", inputs["image"], label))
    return made


def test_digits_are_recognised(digits):
    hits, compiled = 0, hl.compile("digits_inception", "CPU")
    for path, array, label in digits:
        found = hl.classify("digits_inception", path, "CPU", top=3)
        table = found.table.query("output == 'digit'")
        assert list(table["rank"]) == [1, 2, 3]
        assert list(table["score"]) == sorted(table["score"], reverse=True)
        assert list(table["label"]) == [str(i) for i in table["class_index"]]
        raw = compiled([array])["digit"][0]
        assert table["score"].iloc[0] == pytest.approx(raw[table["class_index"].iloc[0]], abs=0.05)
        hits += int(table["class_index"].iloc[0]) == label
    assert hits >= 5
    # The other head has two classes without names.
    assert set(found.table.query("output == 'parity'")["label"]) == {""}
    assert len(found.table) == 5
    assert found.table["class_index"].iloc[0] == int(repr(found).split("'")[3])


def test_names_that_cannot_be_fetched_cost_no_answer(digits, monkeypatch):
    # Models whose names of classes are fetched are fetched themselves: this one needs no network.
    def gone(name):
        raise SampleError(f"no network for {name}")

    path, _, _ = digits[0]
    named = hl.classify("digits_inception", path, "CPU").table
    monkeypatch.setattr(classifying, "sample_labels", gone)
    with pytest.warns(HeteroLabWarning, match="numbers only: no network for digits_inception"):
        numbered = hl.classify("digits_inception", path, "CPU").table
    assert set(numbered["label"]) == {""}
    assert list(numbered["class_index"]) == list(named["class_index"])


def test_on_the_command_line(digits, capsys, tmp_path):
    path, _, label = digits[0]
    arguments = ["classify", "digits_inception", str(path), "-d", "HETERO:CLSACC,CPU"]
    arguments += ["--emulate", EMULATE, "-k", "2", "--csv", f"{tmp_path}/classes.csv"]
    assert cli.main([*arguments, "-pc"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    head, digit, parity, *counts = out.rstrip().split("\n\n")
    assert "3 subgraphs" in head
    assert digit.splitlines()[0] == "Output digit"
    assert digit.splitlines()[2].split()[::2] == [str(label), str(label)]
    assert len(parity.splitlines()) == 4
    assert [text.splitlines()[0].split(",")[0] for text in counts] == [
        "Performance counts of subgraph 0 on CLSACC (emulated on CPU)",
        "Performance counts of subgraph 1 on CPU",
        "Performance counts of subgraph 2 on CPU",
    ]
    assert all("Total time: " in text for text in counts)
    assert "stem/conv " in counts[0]
    assert "softmax" in counts[1] + counts[2]
    frame = pd.read_csv(tmp_path / "classes.csv")
    assert len(frame) == 4
    assert frame.loc[0, "label"] == label
    assert cli.main([*arguments, "-q"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_placement_by_hand(digits, capsys, tmp_path):
    path, _, label = digits[1]
    hl.emulate("CLSACC", unsupported={"Softmax", "Sigmoid"})
    fixed = hl.Affinity.automatic("digits_inception", "HETERO:CLSACC,CPU").fix(
        patterns={"^head_": "CPU"}
    )
    fixed.to_json(tmp_path / "fixed.json")
    arguments = ["classify", "digits_inception", str(path), "--affinity", f"{tmp_path}/fixed.json"]
    assert cli.main([*arguments, "--property", "CPU.INFERENCE_PRECISION_HINT=f32"]) == 0
    out = capsys.readouterr().out
    assert f"{hl.partition('digits_inception', fixed).n_subgraphs} subgraphs" in out
    found = hl.classify(hl.load("digits_inception"), path, fixed, sample="digits_inception")
    assert found.classes[0].class_index == label


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_each_pixel_goes_where_the_model_expects_it(tmp_path, last, dtype):
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (6, 5, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "p.png")
    x = op.parameter([1, 6, 5, 3] if last else [1, 3, 6, 5], dtype, name="x")
    model = ov.Model([op.relu(op.convert(x, "f32"))], [x], "m")
    shape, element_type = picture_input(prepare(model).graph)
    assert sides(shape) == (6, 5, 3, last)

    def read(how: Preprocessing) -> np.ndarray:
        array = read_picture(tmp_path / "p.png", shape, how, element_type)
        assert array.dtype == dtype
        assert array.flags.c_contiguous
        return array[0] if last else array[0].transpose(1, 2, 0)

    assert np.array_equal(read(Preprocessing()), pixels)
    assert np.array_equal(read(Preprocessing(bgr=True)), pixels[..., ::-1])
    if dtype == np.float32:
        how = Preprocessing(mean=(1.0, 2.0, 3.0), scale=(2.0, 4.0, 8.0), bgr=True)
        expected = (pixels[..., ::-1] - np.array([1, 2, 3])) / np.array([2, 4, 8])
        assert read(how) == pytest.approx(expected)
    else:
        assert np.array_equal(read(Preprocessing(mean=(300.0,))), np.zeros_like(pixels))


def test_pictures_of_every_kind(tmp_path):
    grey = np.arange(48, dtype=np.uint8).reshape(6, 8) * 5
    shape = (1, 1, 6, 8)
    image = Image.fromarray(grey)
    for name in ("p.png", "p.bmp", "p.gif", "p.pgm", "p.tiff"):
        image.save(tmp_path / name)
        assert np.array_equal(read_picture(tmp_path / name, shape, Preprocessing())[0, 0], grey)
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    deep = read_picture(tmp_path / "deep.png", shape, Preprocessing())[0, 0]
    assert np.array_equal(deep, grey)
    # A camera that was held upright: stored on its side, with a note to turn it.
    exif = Image.Exif()
    exif[0x0112] = 6
    image.rotate(90, expand=True).save(tmp_path / "turned.png", exif=exif)
    turned = read_picture(tmp_path / "turned.png", shape, Preprocessing())[0, 0]
    assert np.array_equal(turned, grey)


def test_the_ways_to_fit(tmp_path):
    wide = np.zeros((32, 64), np.uint8)
    wide[:, 32:] = 255
    Image.fromarray(wide).save(tmp_path / "wide.png")

    def read(fit: str, shape: tuple[int, ...] = (1, 28, 28, 1)) -> np.ndarray:
        return read_picture(tmp_path / "wide.png", shape, Preprocessing(fit=fit))[0, :, :, 0]

    assert read("stretch")[:, [0, -1]].tolist() == [[0, 255]] * 28
    # A thin picture costs no more than its result; the middle is what is left.
    cropped = read("crop")
    assert cropped[:, :13].max() == 0
    assert cropped[:, 15:].min() == 255
    line = read("line", (1, 16, 100, 1))
    assert line[:, 31].min() == 255
    assert line[:, 32:].max() == 0


def huge_png(width: int, height: int) -> bytes:
    """A PNG whose header promises many pixels and that has none."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def bad(tmp_path_factory, digits) -> Path:
    directory = tmp_path_factory.mktemp("bad")
    (directory / "good.png").write_bytes(digits[0][0].read_bytes())
    (directory / "empty.png").write_bytes(b"")
    (directory / "script.eps").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    (directory / "huge.png").write_bytes(huge_png(10_000, 10_000))
    (directory / "bomb.png").write_bytes(huge_png(60_000, 60_000))
    x = op.parameter([1, 3, 8, 8], np.float32, name="x")
    ov.save_model(ov.Model([op.relu(x)], [x], "no_classes"), directory / "no_classes.xml")
    x = op.parameter([4, 1, 8, 8], np.float32, name="x")
    ov.save_model(ov.Model([op.reduce_mean(x, [1, 2])], [x], "four"), directory / "four.xml")
    x, y = (op.parameter([1, 1, 8, 8], np.float32, name=name) for name in "xy")
    ov.save_model(ov.Model([op.add(x, y)], [x, y], "two"), directory / "two.xml")
    return directory


@pytest.mark.parametrize(
    ("model", "image", "kind", "fact"),
    [
        ("digits_inception", ".", InputError, "is not a file"),
        ("digits_inception", "empty.png", InputError, "is not a picture"),
        ("digits_inception", "script.eps", InputError, "is not a picture"),
        ("digits_inception", "huge.png", InputError, "is too large: Image size"),
        ("digits_inception", "bomb.png", InputError, "Make it smaller"),
        ("no_classes.xml", "good.png", ModelError, "is not a classifier"),
        ("four.xml", "good.png", ModelError, "4 pictures at once"),
        ("two.xml", "good.png", ModelError, "has 2: 'x' 1x1x8x8"),
    ],
)
def test_what_cannot_be_classified_says_so(bad, monkeypatch, model, image, kind, fact):
    monkeypatch.setattr(classifying, "compile_placed", pytest.fail)
    source = bad / model if model.endswith(".xml") else model
    with pytest.raises(kind, match=fact):
        hl.classify(source, bad / image, "CPU")


@pytest.mark.network
def test_pages_that_are_turned(tmp_path):
    for i in range(4):
        seed = f"classify/{i}"
        arrays, label = drawn_text.page_example(seed)
        rng = random.Random(seed)
        rng.randrange(4)
        page = drawn_text.draw_page(rng).rotate(-90 * label, expand=True)
        page.save(tmp_path / "page.png")
        found = hl.classify("page_orientation", tmp_path / "page.png", "CPU")
        assert found.classes[0].label == str(90 * label)
        shape, _ = picture_input(prepare("page_orientation").graph)
        read = read_picture(tmp_path / "page.png", shape, sample_preprocessing("page_orientation"))
        assert read == pytest.approx(arrays["x"], abs=0.05)  # rounded once more or less


@pytest.mark.network
def test_a_cat_and_a_cup():
    data = pytest.importorskip("skimage.data")
    directory = Path(data.__file__).parent
    top = {
        name: {c.label for c in hl.classify("efficientnet_lite0", directory / name, "CPU").classes}
        for name in ("chelsea.png", "coffee.png")
        if (directory / name).is_file()
    }
    assert top, json.dumps(sorted(p.name for p in directory.iterdir()))
    cats, cups = (
        {"tabby, tabby cat", "tiger cat", "Egyptian cat"},
        {"espresso", "cup", "coffee mug"},
    )
    assert top.get("chelsea.png", cats) & cats
    assert top.get("coffee.png", cups) & cups
