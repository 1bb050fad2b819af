"""Names as text, and the colours of devices."""

from __future__ import annotations

import re

import pandas as pd
import pytest
from planning.test_difference import chain_difference
from views.hand_made import NASTY, small_profile

import hetero_lab as hl
from hetero_lab.tables import bytes_text
from hetero_lab.views.theme import TEXT, device_styles, ink_on, plain, squeeze, time_text


def test_a_device_has_one_colour_whatever_else_is_there():
    alone = device_styles(["ACC"])["ACC"].colour
    among = device_styles(["CPU", "GPU", "ACC", "NPU"])
    assert among["ACC"].colour == alone == "#E69F00"
    assert among["CPU"].colour == "#0072B2"
    assert among["GPU"].colour == device_styles(["GPU.0"])["GPU.0"].colour == "#009E73"
    assert among["NPU"].colour == "#CC79A7"


def test_order_does_not_matter():
    names = ["ACC", "FAST", "SLOW", "DSP", "CPU"]
    assert device_styles(names) == device_styles(names[::-1])


def test_devices_of_one_figure_differ():
    # FAST, SLOW, ACC and TPU would like some of the same colours.
    styles = device_styles(["CPU", "GPU", "GPU.1", "NPU", "ACC", "FAST", "SLOW", "TPU"])
    assert len({style.colour for style in styles.values()}) == len(styles)


def test_emulated_devices_are_marked():
    styles = device_styles(["ACC", "CPU"], {"ACC": "CPU"})
    assert styles["ACC"].label == "ACC (emulated on CPU)"
    assert (styles["ACC"].dash, styles["ACC"].pattern) == ("dash", "/")
    assert (styles["CPU"].label, styles["CPU"].dash, styles["CPU"].pattern) == ("CPU", "solid", "")


def test_device_names_are_no_markup():
    assert device_styles(["<b>A</b>"])["<b>A</b>"].label == "&lt;b&gt;A&lt;/b&gt;"


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_text_is_readable_on_light_and_dark_pages():
    assert contrast(TEXT, "#ffffff") > 4.2
    assert contrast(TEXT, "#111111") > 4.2


def test_ink_is_readable_on_every_colour():
    for name in ("CPU", "GPU", "NPU", "ACC", "FAST", "SLOW", "TPU"):
        colour = device_styles([name])[name].colour
        assert contrast(ink_on(colour), colour) >= 4.5
    assert (ink_on("#000000"), ink_on("#ffffff")) == ("#ffffff", "#000000")


def test_fixed_colours_stand_out_on_light_and_dark_pages():
    for style in device_styles(["CPU", "GPU", "NPU", "ACC"]).values():
        assert contrast(style.colour, "#ffffff") > 2
        assert contrast(style.colour, "#111111") > 3


def test_fixed_colours_are_those_of_okabe_and_ito():
    safe = {"#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"}
    assert {style.colour for style in device_styles(["CPU", "GPU", "NPU", "ACC"]).values()} <= safe


def test_faded():
    assert device_styles(["CPU"])["CPU"].faded(0.4) == "rgba(0, 114, 178, 0.4)"


@pytest.mark.parametrize("name", NASTY, ids=range(len(NASTY)))
def test_no_name_is_markup_or_more_than_one_short_line(name):
    text = plain(name)
    assert "<" not in text
    assert ">" not in text
    assert "$" not in text  # MathJax would take what is between two of them
    assert text.replace("&#36;", "$").isprintable()
    assert len(squeeze(name, 80)) <= 80


def test_what_is_harmless_stays_as_it_is():
    assert plain("block1/conv 3x3, \"a\" + 'b' = c") == "block1/conv 3x3, \"a\" + 'b' = c"
    assert plain("a<b") == "a&lt;b"
    assert plain("two\n lines") == "two lines"


def test_long_names_keep_both_ends():
    assert squeeze("abcdefghij", 7) == "abc…hij"
    assert squeeze("abcdefghij", 6) == "ab…hij"
    assert squeeze("abcdef", 6) == "abcdef"
    assert squeeze("a" * 5000 + "b" * 5000, 9) == "aaaa…bbbb"


def test_lone_surrogates_can_be_written():
    plain("a\ud800b").encode("utf-8")


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(None, "size not known"), (0, "0 B"), (999, "999 B"), (1000, "1 KB"), (2_460_000, "2.46 MB")],
)
def test_bytes(n_bytes, text):
    assert bytes_text(n_bytes) == text


@pytest.mark.parametrize(
    ("time_us", "text"),
    [(0.0, "≈ 0 µs"), (0.25, "0.25 µs"), (12.0, "12 µs"), (99.6, "100 µs"), (12345.6, "12,346 µs")],
)
def test_times(time_us, text):
    assert time_text(time_us) == text


TAG = re.compile(r"</?([a-zA-Z]+)[^>]*>")


def shown_texts(figure) -> list[str]:
    texts = [figure.layout.title.text, figure.layout.title.subtitle.text or ""]
    texts += [annotation.text for annotation in figure.layout.annotations]
    for trace in figure.data:
        texts.append(trace.name or "")
        for field in ("text", "hovertext"):
            value = getattr(trace, field, None)
            if value is not None:
                texts += [value] if isinstance(value, str) else list(value)
    for axis in (figure.layout.xaxis, figure.layout.yaxis):
        texts += list(axis.ticktext or ())
    return [str(text) for text in texts]


@pytest.mark.parametrize("name", NASTY, ids=range(len(NASTY)))
def test_names_are_text_in_every_figure(name):
    profile = small_profile(relu=name, label=name)
    results = (profile, chain_difference(name), chain_difference(name, priced=False))
    figures = [figure for result in results for figure in hl.views.gallery(result).values()]
    table = pd.DataFrame([("a", name, True)], columns=["op", "op_type", "CPU"])
    figures += [hl.views.op_types_by_device(table), hl.views.where_time_goes(profile)]
    assert len(figures) == 9
    for figure in figures:
        for text in shown_texts(figure):
            assert set(TAG.findall(text)) <= {"b", "br", "span"}
            assert "<img" not in text
            assert len(text) < 1000
        # Templates would be filled in; no name is in one.
        assert "hovertemplate" not in figure.to_json()
