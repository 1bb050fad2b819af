from __future__ import annotations

import pytest
from views.hand_made import NASTY

from hetero_lab.tables import bytes_text
from hetero_lab.views.text import plain, squeeze, time_text


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
