"""What other tools read and write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hetero_lab import lookup

if TYPE_CHECKING:
    from hetero_lab.interop.benchmark_app import read_benchmark_app as read_benchmark_app
    from hetero_lab.interop.dot_dumps import hetero_dumps as hetero_dumps
    from hetero_lab.interop.nearest_recipe import recipe as recipe
    from hetero_lab.interop.npuw_plan import npuw as npuw, read_npuw_plan as read_npuw_plan
    from hetero_lab.interop.recording import (
        read_recording as read_recording,
        recordings as recordings,
    )

lookup.attach(__name__)
