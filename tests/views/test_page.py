from __future__ import annotations

import inspect

import plotly.graph_objects as go
import pytest
from html_outline import Outline
from slices import sliced
from views.hand_made import NASTY, small_profile

import hetero_lab as hl
from hetero_lab.errors import OutputPathError
from hetero_lab.placement.partition import Partition, Subgraph
from hetero_lab.views.result_views import contents_of


def written(path, *args, **options) -> str:
    assert hl.views.page(*args, path, **options) is None
    return path.read_text(encoding="utf-8")


def test_a_page_holds_plotly_once_and_loads_nothing(tmp_path):
    text = written(tmp_path / "page.html", [small_profile(), small_profile(label="again")])
    assert text.count("* plotly.js v") == 1
    assert Outline(text).loads == []
    assert text.count("Plotly.newPlot(") == 1 + 2 * 5  # side by side, then five each
    assert Outline(text).text["h1"][0] == "hetero_lab · small"
    assert '<a href="#result-1">again</a>' in text
    assert "prefers-color-scheme: dark" in text


def test_one_result_needs_no_list_and_no_comparison(tmp_path):
    text = written(tmp_path / "page.html", small_profile(), title="One")
    assert "Side by side" not in text
    assert Outline(text).text["h1"][0] == "One"
    assert "ACC is emulated on CPU" in text
    assert "interrupted" in written(tmp_path / "page.html", small_profile(interrupted=True))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    directory = tmp_path_factory.mktemp("plain")
    return Outline(written(directory / "plain.html", small_profile(), title="t"))


@pytest.mark.parametrize("name", sliced(NASTY, quick=3), ids=range(len(NASTY)))
def test_names_stay_text(plain, name, tmp_path):
    profile = small_profile(relu=name, label=name)
    nasty = Outline(written(tmp_path / "nasty.html", profile, title=name))
    assert nasty.tags == plain.tags
    assert nasty.loads == []


def test_the_gallery_holds_what_applies():
    names = ["placement_graph", "latency_samples"]
    names += ["time_by_subgraph", "time_by_op_type", "timeline"]
    figures = hl.views.gallery(small_profile())
    assert list(figures) == names
    assert all(isinstance(figure, go.Figure) for figure in figures.values())
    assert list(hl.views.gallery(small_profile(counters=()))) == names[:2]
    whole = Partition((Subgraph("CPU", ("matmul", "relu", "softmax", "add")),), ())
    assert list(hl.views.gallery(small_profile(partition=whole, counters=()))) == names[:2]
    for view in contents_of(small_profile()).figures:  # every view is public
        assert inspect.unwrap(getattr(hl.views, view.__name__)) is view
        assert view.__name__ in dir(hl.views)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        hl.views.nothing  # noqa: B018


def test_a_figure_of_ones_own_is_on_the_page_as_it_is(tmp_path):
    own = go.Figure(layout={"title": {"text": "<b>mine</b>"}, "width": 300})
    text = written(tmp_path / "page.html", [own, small_profile()])
    assert "mine" in Outline(text).text["h2"]
    assert own.layout.width == 300
    assert "Plotly.newPlot(" in written(tmp_path / "one.html", go.Figure())


def test_a_bad_path_is_refused_before_anything_is_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr("plotly.graph_objects.Figure.to_html", lambda *a, **k: 1 / 0)
    with pytest.raises(OutputPathError, match="does not exist"):
        hl.views.page(small_profile(), tmp_path / "nowhere" / "page.html")
