"""Results → plotly figures. A view builds a figure and returns it; it never shows it itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hetero_lab import lookup

if TYPE_CHECKING:
    from hetero_lab.accuracy.accuracy_figures import (
        accuracy_front as accuracy_front,
        sensitivity as sensitivity,
    )
    from hetero_lab.debug.debug_figures import errors_along_model as errors_along_model
    from hetero_lab.llm.llm_figures import block_curve as block_curve
    from hetero_lab.machine.machine_figures import (
        machine_shares as machine_shares,
        mutual_slowdown as mutual_slowdown,
    )
    from hetero_lab.views.cost_figures import (
        difference as difference,
        op_types_by_device as op_types_by_device,
        predicted_measured as predicted_measured,
        time_by_op_type as time_by_op_type,
    )
    from hetero_lab.views.graph_drawing import placement_graph as placement_graph
    from hetero_lab.views.result_views import gallery as gallery, page as page
    from hetero_lab.views.sweep_figures import (
        hosts as hosts,
        latency_ranking as latency_ranking,
        placement_latency as placement_latency,
    )
    from hetero_lab.views.time_figures import (
        latency_samples as latency_samples,
        schedule as schedule,
        time_by_subgraph as time_by_subgraph,
        timeline as timeline,
        where_time_goes as where_time_goes,
    )

lookup.attach(__name__)
