"""Names as text, the colours of devices, and static pictures beside the figures of a notebook."""

from __future__ import annotations

import base64
import io
import json
import re

import pandas as pd
import plotly.graph_objects as go
import plotly.io
import pytest
from costs.test_difference import chain_difference
from PIL import Image
from slices import sliced
from views.hand_made import NASTY, contrast, small_profile

import hetero_lab as hl
from hetero_lab.errors import HeteroLabWarning
from hetero_lab.tables import bytes_text, time_text
from hetero_lab.views import static_pictures
from hetero_lab.views.theme import TEXT, device_styles, ink_on, plain, squeeze


def test_devices_of_one_figure_differ_whatever_their_order_or_what_else_is_there():
    among = device_styles(["CPU", "GPU", "ACC", "NPU"])
    assert among["ACC"].colour == device_styles(["ACC"])["ACC"].colour == "#E69F00"
    assert among["CPU"].colour == "#0072B2"
    assert among["GPU"].colour == device_styles(["GPU.0"])["GPU.0"].colour == "#009E73"
    assert among["NPU"].colour == "#CC79A7"
    names = ["ACC", "FAST", "SLOW", "DSP", "CPU"]
    assert device_styles(names) == device_styles(names[::-1])
    # FAST, SLOW, ACC and TPU would like some of the same colours.
    styles = device_styles(["CPU", "GPU", "GPU.1", "NPU", "ACC", "FAST", "SLOW", "TPU"])
    assert len({style.colour for style in styles.values()}) == len(styles)


def test_emulated_devices_are_marked():
    styles = device_styles(["ACC", "CPU"], {"ACC": "CPU"})
    assert styles["ACC"].label == "ACC (emulated on CPU)"
    assert (styles["ACC"].dash, styles["ACC"].pattern) == ("dash", "/")
    assert (styles["CPU"].label, styles["CPU"].dash, styles["CPU"].pattern) == ("CPU", "solid", "")
    assert styles["CPU"].faded(0.4) == "rgba(0, 114, 178, 0.4)"
    assert device_styles(["<b>A</b>"])["<b>A</b>"].label == "&lt;b&gt;A&lt;/b&gt;"


def test_text_and_colours_are_readable_on_light_and_dark_pages():
    assert contrast(TEXT, "#ffffff") > 4.2
    assert contrast(TEXT, "#111111") > 4.2
    for name in ("CPU", "GPU", "NPU", "ACC", "FAST", "SLOW", "TPU"):
        colour = device_styles([name])[name].colour
        assert contrast(ink_on(colour), colour) >= 4.5
    assert (ink_on("#000000"), ink_on("#ffffff")) == ("#ffffff", "#000000")
    okabe_and_ito = {"#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"}
    for style in device_styles(["CPU", "GPU", "NPU", "ACC"]).values():
        assert contrast(style.colour, "#ffffff") > 2
        assert contrast(style.colour, "#111111") > 3
        assert style.colour in okabe_and_ito


@pytest.mark.parametrize("name", NASTY, ids=range(len(NASTY)))
def test_no_name_is_markup_or_more_than_one_short_line(name):
    text = plain(name)
    assert "<" not in text
    assert ">" not in text
    assert "$" not in text  # MathJax would take what is between two of them
    assert text.replace("&#36;", "$").isprintable()
    assert len(squeeze(name, 80)) <= 80


def test_harmless_names_stay_and_long_ones_keep_both_ends():
    assert plain("block1/conv 3x3, \"a\" + 'b' = c") == "block1/conv 3x3, \"a\" + 'b' = c"
    assert plain("a<b") == "a&lt;b"
    assert plain("two\n lines") == "two lines"
    plain("a\ud800b").encode("utf-8")  # a lone surrogate can be written
    assert squeeze("abcdefghij", 7) == "abc…hij"
    assert squeeze("abcdefghij", 6) == "ab…hij"
    assert squeeze("abcdef", 6) == "abcdef"
    assert squeeze("a" * 5000 + "b" * 5000, 9) == "aaaa…bbbb"


def test_bytes_and_times():
    assert [bytes_text(n) for n in (None, 0, 999, 1000, 2_460_000)] == [
        "size not known", "0 B", "999 B", "1 KB", "2.46 MB",
    ]  # fmt: skip
    assert [time_text(us) for us in (0.0, 0.25, 12.0, 99.6, 12345.6, 1.25e6)] == [
        "≈ 0 µs", "0.25 µs", "12 µs", "100 µs", "12.3 ms", "1.25 s",
    ]  # fmt: skip


TAG = re.compile(r"</?([a-zA-Z]+)[^>]*>")


def shown_texts(part, key=""):
    if isinstance(part, dict):
        for name, inner in part.items():
            yield from shown_texts(inner, name)
    elif isinstance(part, list):
        for inner in part:
            yield from shown_texts(inner, key)
    elif key in ("text", "hovertext", "name", "ticktext") and part is not None:
        yield part


@pytest.mark.parametrize("name", sliced(NASTY, quick=3), ids=range(len(NASTY)))
def test_names_are_text_in_every_figure(name):
    profile = small_profile(relu=name, label=name)
    results = (profile, chain_difference(name), chain_difference(name, priced=False))
    figures = [figure for result in results for figure in hl.views.gallery(result).values()]
    table = pd.DataFrame([("a", name, True)], columns=["op", "op_type", "CPU"])
    figures += [hl.views.op_types_by_device(table), hl.views.where_time_goes(profile)]
    assert len(figures) == 9
    for figure in figures:
        for text in shown_texts(json.loads(figure.to_json())):
            assert set(TAG.findall(text)) <= {"b", "br", "span"}
            assert "<img" not in text
            assert len(text) < 1000
        # Templates would be filled in; no name is in one.
        assert "hovertemplate" not in figure.to_json()


FIGURE = go.Figure(go.Bar(x=[1, 2], y=[3, 4]), layout={"width": 400, "height": 300})


@pytest.fixture
def plain_renderers():
    before = plotly.io.renderers.default
    plotly.io.renderers.default = "plotly_mimetype"
    yield
    plotly.io.renderers.default = before


def test_without_kaleido_nothing_changes(plain_renderers, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert not static_pictures.add_static_pictures()
    assert plotly.io.renderers.default == "plotly_mimetype"


def test_without_a_browser_only_the_picture_is_missing(plain_renderers, monkeypatch):
    pytest.importorskip("kaleido")
    monkeypatch.setenv("BROWSER_PATH", "/nowhere/chromium")
    static_pictures.add_static_pictures()
    assert plotly.io.renderers.default == f"plotly_mimetype+{static_pictures.PICTURES}"
    with pytest.warns(HeteroLabWarning, match="No static pictures of figures"):
        assert static_pictures.PictureRenderer().to_mimebundle(FIGURE.to_dict()) == {}
    assert plotly.io.renderers.default == "plotly_mimetype"


@pytest.mark.browser
def test_a_figure_brings_its_picture(plain_renderers):
    pytest.importorskip("kaleido")
    assert static_pictures.add_static_pictures()
    bundle = FIGURE._repr_mimebundle_(None, None)
    assert set(bundle) >= {"application/vnd.plotly.v1+json", "image/png"}
    with Image.open(io.BytesIO(base64.b64decode(bundle["image/png"]))) as picture:
        assert picture.size == (600, 450)
