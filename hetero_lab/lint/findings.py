"""Apply the rules, try the remedies, and group the findings by cause."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from hetero_lab.errors import names_at_hand, shorten
from hetero_lab.lint import quantized_blocks, rules
from hetero_lab.lint.context import ERROR, INFO, SUBGRAPHS, WARNING, Draft, Finding, LintContext
from hetero_lab.model.opgraph import OpGraph, grouped
from hetero_lab.placement.affinity import Affinity
from hetero_lab.terminal import count_of, first_of

if TYPE_CHECKING:
    import pandas as pd

    from hetero_lab.costs.cost_model import CostModel

RULES: dict[str, Callable[[LintContext], Iterable[Draft]]] = {
    "torn-state": rules.torn_state,
    "cut-fusion": rules.cut_fusions,
    "tiny-subgraph": rules.small_subgraphs,  # and PING_PONG
    "copy-only": rules.copy_only,
    "cut-quantization": quantized_blocks.cut_quantization,
    rules.SLOW_DEVICE: rules.slow_devices,  # only with costs, as the next one
    "dear-boundary": rules.expensive_boundaries,
}

_RANK = {ERROR: 0, WARNING: 1, INFO: 2}
_NODES_TRIED = 15_000  # nodes times remedies: a trial takes 1 to 4 µs a node
_LEAST, _MOST = 8, 200  # remedies tried in a large and in a small model


def most_remedies(n_nodes: int) -> int:
    """Return how many remedies are tried on a model: 8 if it has 1,800 nodes."""
    return max(_LEAST, min(_MOST, _NODES_TRIED // max(1, n_nodes)))


Tried: TypeAlias = dict[frozenset[tuple[str, str]], LintContext]  # what each remedy leads to


def _try(context: LintContext, tried: Tried, remedy: Mapping[str, str]) -> LintContext | None:
    """Return what a remedy leads to, tried once; None if no trial is left."""
    key = frozenset(remedy.items())
    if key not in tried and len(tried) < most_remedies(len(context.graph)):
        tried[key] = context.after(remedy)
    return tried.get(key)


def find_problems(
    graph: OpGraph,
    affinity: Affinity,
    able: Mapping[str, frozenset[str]],
    costs: CostModel | None = None,
) -> list[Finding]:
    """Apply every rule to a placement; findings with errors first, then by time saved or severity.

    ``able`` has, for each device that a remedy may use, the placeable ops that it can run. Raises
    AffinityError or PlanError if the affinity or the costs are of another model.
    """
    affinity.check_model(graph)
    if costs:
        costs.check_graph(graph)
    context = LintContext(graph, affinity, able, costs)
    drafts = [
        replace(draft, rule=draft.rule or name)
        for name, rule in RULES.items()
        for draft in rule(context)
    ]
    certain = {draft.nodes for draft in drafts if not draft.must_save}
    drafts = [draft for draft in drafts if not (draft.must_save and draft.nodes in certain)]
    drafts.sort(key=lambda draft: (_RANK[draft.severity], -draft.weight))
    tried: Tried = {}
    findings = [finding for draft in drafts if (finding := _finding(context, tried, draft))]
    findings.sort(key=lambda f: (f.severity != ERROR, -(f.cost_us or 0.0), _RANK[f.severity]))
    return with_causes(context, findings)


def _finding(context: LintContext, tried: Tried, draft: Draft) -> Finding | None:
    predicted = context.predictor
    names = tuple(context.graph.ops[index].name for index in draft.nodes)
    result = Finding(draft.rule, draft.severity, names, draft.finding, "")
    good, untried = list[tuple[float, dict[str, str], LintContext | None]](), False
    for remedy in draft.options:
        trial = _try(context, tried, remedy)
        if trial is None:
            untried = True
            if draft.gone is None and not context.costs:
                good.append((0.0, remedy, None))
                break
        elif draft.gone is None or draft.gone(trial.ids):
            if predicted is not None and trial.predictor is not None:
                saved = predicted.predicted_us - trial.predictor.predicted_us
                good.append((saved, remedy, trial))
            elif draft.slack is None or sum(trial.counts) <= sum(context.counts) + draft.slack:
                good.append((0.0, remedy, trial))
                break
    saved, remedy, trial = max(good, key=lambda entry: entry[0], default=(0.0, {}, context))
    if draft.must_save and saved <= 0.0:
        return None
    if predicted is not None:
        other = trial.predictor if trial else None
        margin_us = predicted.margin_us(other) if other else 0.0
        result = replace(result, cost_us=saved, margin_us=margin_us)
    if not remedy:
        meets = _meets_another(context, names)
        return replace(result, **_without_remedy(draft, untried, meets))
    advice, severity = _advice(remedy, context, trial), draft.severity
    if context.costs and saved > 0.0:
        sure = f" (± {result.margin_us:.1f})" if (result.margin_us or math.inf) < math.inf else ""
        advice += f" Predicted to save {saved:.1f} µs of the whole{sure}."
    elif context.costs and draft.severity == ERROR:
        advice += f" Predicted to take {-saved:.1f} µs longer."
    elif context.costs:
        severity = INFO
        advice = f"Leave it: the prediction is {-saved:.1f} µs higher after this. {advice}"
    return replace(result, severity=severity, advice=advice, remedy=remedy)


def _without_remedy(draft: Draft, untried: bool, meets_another: bool) -> dict[str, str]:
    why = "No remedy: all neighbours are on the same device."
    if draft.stuck:
        why = draft.stuck
    elif untried:
        why = "Not worked out: other findings come first. Follow their advice, then lint again."
    elif draft.options:
        why = "No remedy: on a neighbour's device they would stay separate, or separate others."
    elif meets_another:
        why = "No remedy: no other device here supports all of these ops."
    keep = draft.severity == ERROR or untried
    return {"advice": why, "severity": draft.severity if keep else INFO}


def _advice(remedy: Mapping[str, str], before: LintContext, after: LintContext | None) -> str:
    (device,) = set(remedy.values())
    changes = ", ".join(f"{shorten(name, 60)}: {device!r}" for name in remedy)
    move = f"Move {names_at_hand(remedy, 3)} to {device}"
    how = f"affinity.fix(ops={f'{{{changes}}}' if len(remedy) <= 3 else '…'})"
    if after is None:
        return f"{move}, {how}. The effect on the rest was not tried."
    subgraphs, boundaries = (f"{n} → {m}" for n, m in zip(before.counts, after.counts, strict=True))
    return f"{move}, {how}: subgraphs {subgraphs}, boundaries {boundaries}."


CHOICE = "a choice: a neighbour's device can run these ops"
CYCLE = "a cycle: HETERO cuts connected ops of one device"
TOGETHER = "not apart: all neighbours are on the same device"
_MOST_TYPES = 4  # of ops in a sentence


def with_causes(context: LintContext, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings with their causes.

    A cause names the devices that cannot run ops of the finding, or ops next to them on another
    device. Findings with the same such devices share a cause, whatever the types of their ops. Ops
    without a neighbour on another device, but with one in another subgraph, are cut by a cycle;
    without either, they are not apart.
    """
    lacking_pairs = [_lacking(context, finding.ops) for finding in findings]
    # Sorted, as the order of a set differs between processes.
    types = grouped(pair for each in lacking_pairs for pair in sorted(each))
    by_number = {d: [t for t, _ in Counter(values).most_common()] for d, values in types.items()}
    lacking = {d: f"{d} cannot run {first_of(t, _MOST_TYPES)}" for d, t in by_number.items()}
    caused = []
    for finding, each in zip(findings, lacking_pairs, strict=True):
        cause = "; ".join(lacking[device] for device in sorted({device for device, _ in each}))
        if not cause and _meets_another(context, finding.ops):
            cause = CHOICE
        elif not cause:
            cause = CYCLE if _is_cut(context, finding.ops) else TOGETHER
        caused.append(replace(finding, cause=cause))
    return caused


def _meets_another(context: LintContext, ops: Sequence[str]) -> bool:
    """Return whether some op has a neighbour on another device."""
    nodes = [context.graph.index_of[name] for name in ops]
    devices = {context.device_of[n] for i in nodes for n in (i, *context.graph.neighbours(i))}
    return len(devices) > 1


def _is_cut(context: LintContext, ops: Sequence[str]) -> bool:
    """Return whether HETERO parts some op from another one, not from who reads the same input."""
    graph, home = context.graph, context.partition.home
    nodes = [graph.index_of[name] for name in ops]
    edges = ((i, n) for i in nodes for n in graph.neighbours(i) if context.is_placeable[n])
    return any(home[i] != home[n] for i, n in edges)


def _lacking(context: LintContext, ops: Sequence[str]) -> set[tuple[str, str]]:
    """Return the devices on the other side and the op types that they do not support."""
    graph, affinity = context.graph, context.affinity
    pairs = set()
    for name in ops:
        index = graph.index_of[name]
        for other in graph.neighbours(index):
            if context.device_of[index] == context.device_of[other]:
                continue
            for here, there in ((index, other), (other, index)):
                op, device = graph.ops[here], affinity[graph.ops[there].name]
                able = context.able.get(device)
                if able is not None and context.is_placeable[here] and op.name not in able:
                    pairs.add((device, op.type))
    return pairs


def summary_lines(findings: pd.DataFrame, most: int) -> list[str]:
    """Summarise the result of :func:`hetero_lab.lint`, one line for each of the first causes."""
    if not len(findings):
        return ["No findings."]
    lines, other = [], ""
    if findings["rule"].iloc[0] == SUBGRAPHS:
        lines = [f"{findings['finding'].iloc[0]} {findings['advice'].iloc[0]}"]
        if findings["remedy"].iloc[0] and len(findings) > 1:
            lines.append("The change above may remove the findings below.")
            other = "other "
        findings = findings.iloc[1:]
    groups = list(findings.groupby("cause", sort=False))
    for cause, group in groups[:most]:
        rules = ", ".join(f"{n} {rule}" for rule, n in group["rule"].value_counts().items())
        lines.append(
            f"{count_of(len(group), 'finding')} ({rules}): {cause}. "
            f"{_best_remedy(group.to_dict('records')) or f'No {other}remedy is worth it.'}"
        )
    if len(groups) > most:
        lines.append(f"… {count_of(len(groups) - most, 'more cause')}.")
    return lines


def _best_remedy(findings: list[dict[Any, Any]]) -> str:
    for each in findings:  # worst first
        saved_us, remedy = each.get("cost_us"), each["remedy"]
        if each["severity"] != "info" and remedy and (saved_us is None or saved_us > 0):
            saving = "" if saved_us is None else f", predicted to save {saved_us:,.0f} µs"
            (device,) = set(remedy.values())
            return f"Best remedy: {names_at_hand(list(remedy), 2)} to {device}{saving}."
    return ""
