"""Static pictures beside the figures of a notebook, for readers that run no scripts."""

from __future__ import annotations

import atexit
import base64
import importlib
import importlib.util
import warnings
from typing import Any

import plotly.io
from plotly.io.base_renderers import MimetypeRenderer

from hetero_lab.errors import last_line, warn

NAME = "hetero_lab_picture"
_WIDTH, _HEIGHT, _SCALE = 1000, 450, 1.5


class PictureRenderer(MimetypeRenderer):
    """Draws a figure as PNG, with one Chromium for all figures of a session."""

    def __init__(self) -> None:
        self.is_running = False

    def activate(self) -> None:
        """Start the Chromium that draws."""
        kaleido = importlib.import_module("kaleido")
        kaleido.start_sync_server(silence_warnings=True)
        atexit.register(kaleido.stop_sync_server, silence_warnings=True)
        self.is_running = True

    def to_mimebundle(self, fig_dict: dict[str, Any]) -> dict[str, str]:
        """Return the picture; none where it cannot be drawn, which a warning says once."""
        layout = fig_dict.get("layout", {})
        try:
            if not self.is_running:
                self.activate()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # options are ignored by a server
                picture = plotly.io.to_image(
                    fig_dict,
                    "png",
                    width=layout.get("width") or _WIDTH,
                    height=layout.get("height") or _HEIGHT,
                    scale=_SCALE,
                    validate=False,
                )
        except Exception as error:  # kaleido's own, of the browser, of the system
            remove_static_pictures()
            warn(f"No static pictures of figures: {last_line(error)}")
            return {}
        return {"image/png": base64.b64encode(picture).decode()}


def add_static_pictures() -> bool:
    """Let every plotly figure bring a PNG along, if kaleido is installed.

    Jupyter and VS Code show the figure itself; GitHub and nbconvert the picture.
    """
    if importlib.util.find_spec("kaleido") is None:
        return False
    if NAME not in plotly.io.renderers:
        plotly.io.renderers[NAME] = PictureRenderer()
    others = _others()
    plotly.io.renderers.default = "+".join([*others, NAME])
    return True


def remove_static_pictures() -> None:
    """Show figures as plotly does by itself."""
    plotly.io.renderers.default = "+".join(_others())


def _others() -> list[str]:
    return [n for n in (plotly.io.renderers.default or "").split("+") if n not in ("", NAME)]
