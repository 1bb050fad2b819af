"""Results → plotly figures. A view builds a figure and returns it; it never shows it itself."""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING, Any

from hetero_lab import facade
from hetero_lab.extensions import VIEWS, Extension, found

if TYPE_CHECKING:
    from hetero_lab.views.accuracy import (
        accuracy_front as accuracy_front,
        errors_along_model as errors_along_model,
        sensitivity as sensitivity,
    )
    from hetero_lab.views.graph.drawing import placement_graph as placement_graph
    from hetero_lab.views.op_types import (
        op_types_by_device as op_types_by_device,
        time_by_op_type as time_by_op_type,
    )
    from hetero_lab.views.predictions import (
        block_curve as block_curve,
        difference as difference,
        predicted_measured as predicted_measured,
    )
    from hetero_lab.views.result_views import gallery as gallery, page as page
    from hetero_lab.views.sweeps import (
        hosts as hosts,
        latency_ranking as latency_ranking,
        placement_latency as placement_latency,
    )
    from hetero_lab.views.times import (
        latency_samples as latency_samples,
        schedule as schedule,
        time_by_subgraph as time_by_subgraph,
        timeline as timeline,
        where_time_goes as where_time_goes,
    )

__all__, _built_in, _listed = facade.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    extension = None if name in __all__ or name.startswith("_") else extensions().get(name)
    return (extension and extension.function) or _built_in(name)


def extensions() -> dict[str, Extension]:
    """Return the views of other packages by name; the names in this package are taken."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return found(VIEWS, frozenset({*__all__, *modules}))


def __dir__() -> list[str]:
    return sorted({*_listed(), *extensions()})
