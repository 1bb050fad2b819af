"""The check of a placement for awkward topologies and known wrong ops, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hetero_lab.devices.core import BoundModel, bind
from hetero_lab.devices.devices import supported_ops
from hetero_lab.lint.context import (
    EMPTY_DEVICE,
    ERROR,
    INFO,
    SUBGRAPHS,
    WARNING,
    Finding,
    KnownFaults,
)
from hetero_lab.lint.findings import find_problems
from hetero_lab.lint.rules import SLOW_DEVICE
from hetero_lab.model.opgraph import NOT_OPS
from hetero_lab.model.read import Source
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import affinity_and_partition
from hetero_lab.placement.placement import POLICY, Placement, PlacementLike
from hetero_lab.planning.simplify import FEW, Simplified, simplify_graph
from hetero_lab.tables import frame_of

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd

    from hetero_lab.costs.cost_model import CostModel


def lint(
    model: Source,
    placement: PlacementLike,
    costs: CostModel | None = None,
    *,
    wrong: KnownFaults | None = None,
    core: ov.Core | None = None,
) -> pd.DataFrame:
    """Look for awkward topologies in a placement and for their remedies.

    Nothing is run, so wrong numbers are known only from :func:`hetero_lab.find_wrong`. Search with
    it if a profile or a sweep says that outputs are ``different`` or ``not a number``.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    placement
        An Affinity, a Placement, ``"HETERO:ACC,CPU"`` or ``"CPU"``.
    costs
        A cost model of the same model. Findings are then priced, two more rules apply, and a
        remedy may use any of its devices; without costs, any device of the affinity. A placement
        may use devices that are not here if the costs know them.
    wrong
        The result of :func:`hetero_lab.find_wrong` for the same model.

    Returns
    -------
    pandas.DataFrame
        One row per finding, no rows if there is none. After errors comes why there are more
        than two subgraphs, as :func:`hetero_lab.simplify` says; then all others by ``cost_us``
        or severity:

        - ``rule``: ``many-subgraphs`` (their cause, and the change that leaves the fewest),
          ``torn-state`` (a stateful path in several subgraphs: cannot be compiled), ``cut-fusion``,
          ``cut-quantization`` (apart from its quantiser an op loses its int8 kernel),
          ``ping-pong`` (A → B → A for little), ``tiny-subgraph``, ``copy-only``,
          ``empty-device`` (HETERO's policy or a ratio leaves it nothing); with costs also
          ``slow-device`` and ``dear-boundary``; with ``wrong`` also ``wrong-numbers``, for
          ops that are still together on the device that computes them wrongly
        - ``severity``: ``error``, ``warning``, or ``info`` where nothing can or should be done
        - ``ops``: list of names
        - ``finding``, ``advice``: sentences
        - ``remedy``: dict for ``affinity.fix(ops=remedy)``, empty if there is none; it removes
          this finding (others may come instead)
        - ``cause``: why the ops are apart: the op types that a device cannot run, or a choice.
          Findings with one cause belong together.
        - ``n_ops``
        - ``cost_us``, with costs: predicted latency now minus that after the remedy, in µs. 0
          without a remedy; negative where the remedy is not worth it.

    Raises
    ------
    AffinityError, DeviceError, PlanError
        The affinity or the costs are of another model, or a device cannot run what is placed
        on it.

    Notes
    -----
    Each remedy is tried on the predicted partition, which takes up to 5 µs a node. So that an
    answer takes about 0.1 s, 15,000 divided by the number of nodes are tried, at least 8 and at
    most 200, those that affect most bytes (with costs: µs) first. Findings whose turn does not come
    have no remedy, and their advice says so; a ``dear-boundary`` is then not listed. The search for
    few subgraphs takes about a second more.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
    >>> hl.lint(model, "HETERO:ACC,CPU")[["rule", "severity"]]
                rule severity
    0  tiny-subgraph     info
    """
    bound = bind(model, core)
    if costs is not None:
        costs.check_graph(bound.graph)
    affinity, partition = affinity_and_partition(bound, placement, costs)
    if costs is None:
        supported = {device: supported_ops(bound, device) for device in affinity.devices}
        able = {device: able_ops(bound, device) for device in affinity.devices}
    else:
        supported = able = {device: costs.supports(device) for device in costs.devices}
    if wrong is not None:
        wrong.given.affinity.check_model(bound.graph)
    findings = find_problems(bound.graph, affinity, able, costs)
    if not partition.wiring:
        # Compiled as a whole, so no finding about a partition applies.
        findings = [finding for finding in findings if finding.rule == SLOW_DEVICE]
    if wrong is not None:
        findings = [*wrong._findings(partition, affinity, costs), *findings]
    if isinstance(placement, Placement):
        findings += empty_devices(placement, priced=costs is not None)
    if partition.wiring and partition.n_subgraphs > FEW:
        few = simplify_graph(bound.graph, affinity, supported, costs=costs)
        n_errors = sum(finding.severity == ERROR for finding in findings)
        findings.insert(n_errors, subgraphs_finding(few, affinity, costs))
    return to_frame(findings, priced=costs is not None)


def subgraphs_finding(few: Simplified, affinity: Affinity, costs: CostModel | None) -> Finding:
    """Return the finding about a partition as a whole: its cause, and the best change."""
    remedy = {} if few.best is None else {op: few.affinity[op] for op in few.best.moved}
    saved_us = margin_us = None
    if costs is not None:
        now, after = costs.predictor(affinity), costs.predictor(few.affinity)
        saved_us, margin_us = now.predicted_us - after.predicted_us, now.margin_us(after)
    return Finding(
        rule=SUBGRAPHS,
        severity=WARNING if remedy and (saved_us is None or saved_us > 0) else INFO,
        ops=few.cause.ops,
        finding=few.cause.text,
        advice=few.way_out,
        remedy=remedy,
        cost_us=saved_us,
        cause=few.cause.reason,
        margin_us=margin_us,
    )


def empty_devices(placement: Placement, *, priced: bool) -> list[Finding]:
    """Return a finding for each device that gets nothing where HETERO divides a model by itself."""
    policy = placement.device_properties.get("HETERO", {}).get(POLICY)
    why = f"by {policy}, whoever has room for all weights takes them" if policy else "by its ratios"
    return [
        Finding(
            rule=EMPTY_DEVICE,
            severity=WARNING,
            ops=(),
            finding=f"{device} stays empty {why}.",
            advice="Give shares: hetero_lab.Placement.balanced(model, devices, shares). "
            "hetero_lab.distribution(model, placement) shows the sizes.",
            cause="HETERO divides the model by itself",
            cost_us=0.0 if priced else None,
            margin_us=0.0 if priced else None,
        )
        for device in placement.priorities
        if device not in placement.affinity.devices
    ]


def able_ops(bound: BoundModel, device: str) -> frozenset[str]:
    """Return the ops that can go to a device together with their followers."""
    graph, supported = bound.graph, supported_ops(bound, device)
    refused = {
        graph.leader[op.index]
        for op in graph
        if op.type not in NOT_OPS and op.name not in supported
    }
    return frozenset(graph.ops[i].name for i in graph.placeable if graph.leader[i] not in refused)


def to_frame(findings: list[Finding], *, priced: bool) -> pd.DataFrame:
    rows = [
        {**vars(f), "ops": list(f.ops), "remedy": dict(f.remedy), "n_ops": len(f.ops)}
        for f in findings
    ]
    columns = ["rule", "severity", "ops", "finding", "advice", "remedy", "cause", "n_ops"]
    texts = dict.fromkeys(("rule", "severity", "finding", "advice", "cause"), "str")
    priced_by = ["cost_us", "margin_us"] if priced else []
    frame = frame_of(rows, [*columns, *priced_by])
    return frame.astype({**texts, "n_ops": "int64", **dict.fromkeys(priced_by, float)})
