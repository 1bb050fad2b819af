"""Static pictures beside the figures of a notebook, for readers that do not run scripts.

Only a notebook imports it: plotly's renderers bring IPython, and kaleido where it is installed.
"""

from __future__ import annotations

import asyncio
import atexit
import base64
import contextlib
import importlib
import importlib.util
import threading
from collections.abc import Coroutine
from typing import Any

import plotly.io
from plotly.io.base_renderers import MimetypeRenderer

from hetero_lab.errors import last_line, warn

PICTURES = "hetero_lab_picture"
_PATIENCE_S = 60.0  # for one picture


class PictureRenderer(MimetypeRenderer):
    """Draws a figure as PNG, with one Chromium for all figures of a session.

    The browser has a separate event loop, because kaleido's own server waits forever when its
    browser is missing or has ended.
    """

    def __init__(self) -> None:
        self._browser: Any = None
        self._loop: Any = None

    def to_mimebundle(self, fig_dict: dict[str, Any]) -> dict[str, str]:
        """Return the picture, or nothing and a single warning if it cannot be drawn."""
        layout = fig_dict.get("layout", {})
        options = {
            "format": "png",
            "width": layout.get("width") or 1000,
            "height": layout.get("height") or 450,
            "scale": 1.5,
        }
        try:
            browser = self._browser or self._start()
            picture = self._wait_for(browser.calc_fig(fig_dict, options))
        except Exception as error:  # kaleido's own, of the browser, of the system
            self._browser = None
            plotly.io.renderers.default = "+".join(_others())
            warn(f"No static pictures of figures: {last_line(error)}")
            return {}
        return {"image/png": base64.b64encode(picture).decode()}

    def _start(self) -> Any:
        kaleido = importlib.import_module("kaleido")

        async def opened() -> Any:
            browser = kaleido.Kaleido(timeout=_PATIENCE_S)
            await browser.open()
            return browser

        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._browser = self._wait_for(opened())
        atexit.register(self._stop)
        return self._browser

    def _stop(self) -> None:
        if self._browser is not None:
            with contextlib.suppress(Exception):  # it may have ended by itself
                self._wait_for(self._browser.close())

    def _wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(2 * _PATIENCE_S)


def add_static_pictures() -> bool:
    """Let every plotly figure bring a PNG for GitHub and nbconvert, if kaleido is installed."""
    if importlib.util.find_spec("kaleido") is None:
        return False
    if PICTURES not in plotly.io.renderers:
        plotly.io.renderers[PICTURES] = PictureRenderer()
    plotly.io.renderers.default = "+".join([*_others(), PICTURES])
    return True


def _others() -> list[str]:
    """Return the renderers that show figures without static pictures."""
    return [n for n in (plotly.io.renderers.default or "").split("+") if n not in ("", PICTURES)]
