"""Static pictures beside the figures of a notebook."""

import base64
import io

import plotly.graph_objects as go
import plotly.io
import pytest
from PIL import Image

from hetero_lab.errors import HeteroLabWarning
from hetero_lab.views import static_pictures

FIGURE = go.Figure(go.Bar(x=[1, 2], y=[3, 4]), layout={"width": 400, "height": 300})


@pytest.fixture(autouse=True)
def plain_renderers():
    before = plotly.io.renderers.default
    plotly.io.renderers.default = "plotly_mimetype"
    yield
    plotly.io.renderers.default = before


def test_without_kaleido_nothing_changes(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert not static_pictures.add_static_pictures()
    assert plotly.io.renderers.default == "plotly_mimetype"


def test_without_a_browser_only_the_picture_is_missing(monkeypatch):
    pytest.importorskip("kaleido")
    monkeypatch.setenv("BROWSER_PATH", "/nowhere/chromium")
    static_pictures.add_static_pictures()
    assert plotly.io.renderers.default == f"plotly_mimetype+{static_pictures.NAME}"
    with pytest.warns(HeteroLabWarning, match="No static pictures of figures"):
        assert static_pictures.PictureRenderer().to_mimebundle(FIGURE.to_dict()) == {}
    assert plotly.io.renderers.default == "plotly_mimetype"


@pytest.mark.browser
def test_a_figure_brings_its_picture():
    pytest.importorskip("kaleido")
    assert static_pictures.add_static_pictures()
    bundle = FIGURE._repr_mimebundle_(None, None)
    assert set(bundle) >= {"application/vnd.plotly.v1+json", "image/png"}
    with Image.open(io.BytesIO(base64.b64decode(bundle["image/png"]))) as picture:
        assert picture.size == (600, 450)
