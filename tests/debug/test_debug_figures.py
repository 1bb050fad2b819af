"""The data behind the errors along a model."""

from __future__ import annotations

import pytest

import hetero_lab as hl
from tests.debug.cases import chain_case
from tests.proof import injected_faults as injected
from tests.proof.faults import Fault


def test_errors_are_drawn_in_order_and_culprits_are_shaded():
    wrong = injected.search(chain_case(Fault(frozenset({"tanh"}), "tanh")))
    figure = hl.views.errors_along_model(wrong)
    lines = {trace["name"]: trace for trace in figure.data}
    errors = wrong.errors
    assert list(lines["isolated"]["x"]) == list(range(1, len(errors) + 1))
    at = list(errors["op"]).index("tanh")
    assert lines["isolated"]["y"][at] == pytest.approx(errors["isolated_error"][at])
    assert lines["accumulated"]["y"][-1] == pytest.approx(wrong.before, rel=1e-3)
    assert list(lines["jumps"]["x"]) == [at + 1]
    assert list(lines["jumps"]["text"]) == ["tanh"]
    assert lines["jumps"]["y"][0] == pytest.approx(errors["accumulated_error"][at])
    (shade,) = figure.layout.shapes
    assert (shade["x0"], shade["x1"]) == (at + 0.5, at + 1.5)
