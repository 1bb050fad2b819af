"""An example of a package that extends hetero_lab with a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hetero_lab as hl

if TYPE_CHECKING:
    import openvino as ov


def register_accelerator(core: ov.Core) -> None:
    """Register an emulated accelerator that has no Softmax."""
    hl.emulate("ACCELERATOR", unsupported={"Softmax"}, core=core)
