"""Results → plotly figures. A view builds a figure and returns it; it never shows it itself."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from hetero_lab.arguments import checked
from hetero_lab.extensions import VIEWS, Extension, found

if TYPE_CHECKING:
    from hetero_lab.views.accuracy import (
        accuracy_front as accuracy_front,
        errors_along_model as errors_along_model,
        sensitivity as sensitivity,
    )
    from hetero_lab.views.block_curves import block_curve as block_curve
    from hetero_lab.views.graph.drawing import (
        placement_graph as placement_graph,
        placement_graph_of as placement_graph_of,
    )
    from hetero_lab.views.html_report import page as page
    from hetero_lab.views.op_types import (
        op_types_by_device as op_types_by_device,
        time_by_op_type as time_by_op_type,
    )
    from hetero_lab.views.predictions import (
        difference as difference,
        predicted_measured as predicted_measured,
    )
    from hetero_lab.views.result_views import gallery as gallery
    from hetero_lab.views.subgraph_lanes import schedule as schedule, timeline as timeline
    from hetero_lab.views.sweeps import (
        hosts as hosts,
        latency_ranking as latency_ranking,
        placement_latency as placement_latency,
    )
    from hetero_lab.views.times import (
        latency_samples as latency_samples,
        time_by_subgraph as time_by_subgraph,
        where_time_goes as where_time_goes,
    )

_WHERE = {
    "accuracy_front": "accuracy",
    "block_curve": "block_curves",
    "difference": "predictions",
    "errors_along_model": "accuracy",
    "gallery": "result_views",
    "hosts": "sweeps",
    "latency_ranking": "sweeps",
    "latency_samples": "times",
    "op_types_by_device": "op_types",
    "page": "html_report",
    "placement_graph": "graph.drawing",
    "placement_graph_of": "graph.drawing",
    "placement_latency": "sweeps",
    "predicted_measured": "predictions",
    "time_by_op_type": "op_types",
    "time_by_subgraph": "times",
    "schedule": "subgraph_lanes",
    "sensitivity": "accuracy",
    "timeline": "subgraph_lanes",
    "where_time_goes": "times",
}

__all__ = sorted(_WHERE)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        extension = None if name.startswith("_") else extensions().get(name)
        view = extension.function if extension else None
        if view is None:
            raise AttributeError(f"module 'hetero_lab.views' has no attribute {name!r}")
        return view
    view = checked(getattr(importlib.import_module(f"hetero_lab.views.{_WHERE[name]}"), name))
    globals()[name] = view
    return view


def extensions() -> dict[str, Extension]:
    """Return the views of other packages by name; the names in this package are taken."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return found(VIEWS, frozenset({*__all__, *modules}))


def __dir__() -> list[str]:
    public = {*__all__, *extensions()}
    return sorted({*public, *(name for name in globals() if name.startswith("__"))})
