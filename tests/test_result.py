"""What results derive from their sentences and tables: escaped HTML, CSV and Parquet."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pandas as pd
import pytest

from hetero_lab.errors import ArgumentError
from hetero_lab.result import Framed, Result
from hetero_lab.tables import read_csv

EVIL = "<script>alert(1)</script>"


@dataclass(frozen=True)
class Found(Result):
    _TABLES = ("summary", "front")

    text: str

    def __repr__(self) -> str:
        return self.text

    @property
    def summary(self) -> pd.DataFrame:
        return pd.DataFrame({"label": [f"={self.text}"], "median_us": [1.5]})

    @property
    def front(self) -> pd.DataFrame:
        return pd.DataFrame({"label": []})


class Row(Framed):
    def to_frame(self) -> pd.DataFrame:
        return pd.DataFrame({"op": [EVIL]})


def test_html_escapes_sentences_and_tables():
    assert "<td>&lt;script&gt;" in Row()._repr_html_()
    page = Found(EVIL)._repr_html_()
    assert EVIL not in page
    assert page.count("&lt;script&gt;") == 2
    assert re.findall(r"<(p|pre|table)\b", page) == ["p", "table"]
    assert Found("a\nb")._repr_html_().startswith('<pre style="word-break: normal">a\nb</pre>')


def test_tables_are_written_as_csv_and_parquet(tmp_path):
    found = Found("a")
    found.to_csv(tmp_path / "main.csv")
    assert read_csv(tmp_path / "main.csv").equals(found.summary)
    for form in ("csv", "parquet"):
        found.export(tmp_path / form, format=form)
        names = {path.name for path in (tmp_path / form).iterdir()}
        assert names == {f"summary.{form}", f"front.{form}"}
    with pytest.raises(ArgumentError, match="'csv' or 'parquet'"):
        found.export(tmp_path / "other", format="xml")
    assert not (tmp_path / "other").exists()
