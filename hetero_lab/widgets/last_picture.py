"""What a widget shows where it cannot live: without a kernel, and where there are no widgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ipywidgets

from hetero_lab.terminal import plain_text

_LIVE = "The live widget needs a kernel, and JupyterLab or another front end with widgets."
# A style of its own, since no scripts but those of ipywidgets are sure to be there.
_WITHOUT_KERNEL = (
    "<style>.hl-no-kernel:not(.jupyter-widgets-disconnected) {{ display: none }}</style>"
    '<p role="status">No kernel is connected: this is the last picture. '
    "{} need one: run the notebook.</p>"
)


class LastPicture(ipywidgets.VBox):
    """A box that leaves a picture of itself, and says without a kernel what needs one."""

    def __init__(self, children: Sequence[ipywidgets.Widget], needs_kernel: str):
        note = ipywidgets.HTML(_WITHOUT_KERNEL.format(needs_kernel))
        super().__init__([note.add_class("hl-no-kernel"), *children])

    def _picture(self) -> tuple[str, str]:
        """Return what it shows now, as a sentence and as HTML that runs no scripts."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return plain_text(f"{type(self).__name__}({self._picture()[0].removesuffix('.')})")

    def _repr_html_(self) -> str:
        return f"{self._picture()[1]}<p>{_LIVE}</p>"

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        text = plain_text(f"{self._picture()[0]} {_LIVE}")
        bundle = super()._repr_mimebundle_(**options) or {}
        return {**bundle, "text/plain": text, "text/html": self._repr_html_()}
