"""Good things of each kind, for calls with one wrong argument."""

from __future__ import annotations

from types import SimpleNamespace

import pytest


@pytest.fixture(scope="session")
def good() -> SimpleNamespace:
    """Good things of each kind, of one small model; ACC cannot run Sigmoid."""
    from counting_core import core_with_acc, in_f32
    from hand_costs import flat_costs
    from small_models import convolutions, diamond

    import hetero_lab as hl

    core = core_with_acc(unsupported=["Sigmoid"])
    model = hl.load(diamond())
    affinity = hl.Affinity.automatic(model, "HETERO:ACC,CPU", core=core)
    placement = in_f32(affinity, "affinity")
    compiled = hl.compile(model, placement, core=core)
    quick = {"progress": False, "core": core}
    return SimpleNamespace(
        core=core,
        model=model,
        affinity=affinity,
        compiled=compiled,
        costs=flat_costs(
            compiled.prepared.graph, lacks={"Sigmoid"},
            environment={"host": "here", "openvino_version": "2026.4"},
        ),
        profile=hl.profile(model, placement, counters=False, iterations=10, **quick),
        counted=hl.profile(convolutions(), "CPU", iterations=10, **quick),
        sweep=hl.sweep(model, [placement], turns=2, counters=False, isolate=False, **quick),
    )  # fmt: skip
