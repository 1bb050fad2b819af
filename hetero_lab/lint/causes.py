"""Causes: the findings of a placement, grouped by the reason why their ops are apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hetero_lab.errors import names_at_hand
from hetero_lab.terminal import count_of

if TYPE_CHECKING:
    import pandas as pd

    from hetero_lab.lint.context import Finding, LintContext

CHOICE = "a choice: a neighbour's device can run these ops"
_MOST_TYPES = 4


def with_causes(context: LintContext, findings: Sequence[Finding]) -> list[Finding]:
    """Return findings with their causes.

    A cause names the devices that cannot run ops of the finding, or ops next to them on another
    device. Findings with the same such devices share a cause, whatever the types of their ops.
    """
    refused = [_refused(context, finding.ops) for finding in findings]
    types: dict[str, Counter[str]] = {}
    for device, op_type in (found for each in refused for found in each):
        types.setdefault(device, Counter())[op_type] += 1
    causes = []
    for each in refused:
        texts = [
            f"{device} cannot run {_listed([t for t, _ in types[device].most_common()])}"
            for device in sorted({device for device, _ in each})
        ]
        causes.append("; ".join(texts) or CHOICE)
    return [replace(f, cause=cause) for f, cause in zip(findings, causes, strict=True)]


def _refused(context: LintContext, ops: Sequence[str]) -> set[tuple[str, str]]:
    """Return the devices on the other side and the op types that they do not support."""
    graph, affinity = context.graph, context.affinity
    found = set()
    for name in ops:
        index = graph.index_of[name]
        neighbours = [producer for producer, _ in graph.ops[index].inputs]
        neighbours += [use.index for use in graph.consumers[index]]
        for other in neighbours:
            sides = ((index, other), (other, index))
            if context.device_of[index] == context.device_of[other]:
                continue
            for here, there in sides:
                op, device = graph.ops[here], affinity[graph.ops[there].name]
                able = context.able.get(device)
                if able is not None and context.is_placeable[here] and op.name not in able:
                    found.add((device, op.type))
    return found


def _listed(op_types: Sequence[str]) -> str:
    more = f" and {len(op_types) - _MOST_TYPES} more" if len(op_types) > _MOST_TYPES else ""
    return ", ".join(op_types[:_MOST_TYPES]) + more


def summary_lines(findings: pd.DataFrame, most: int = 4) -> list[str]:
    """Say in a few lines what :func:`hetero_lab.lint` found, one line per cause.

    Parameters
    ----------
    findings
        The result of lint.
    most
        The number of causes to show.
    """
    if not len(findings):
        return ["No findings."]
    lines = []
    groups = list(findings.groupby("cause", sort=False))
    for cause, group in groups[:most]:
        rules = ", ".join(f"{n} {rule}" for rule, n in group["rule"].value_counts().items())
        line = f"{count_of(len(group), 'finding')} ({rules}): {cause}."
        worth = group.loc[group["severity"] != "info"]
        if "cost_us" in group:
            worth = worth.loc[worth["cost_us"] > 0]
        worth = worth.loc[[bool(remedy) for remedy in worth["remedy"]]]
        if len(worth):
            best = worth.iloc[0]
            saving = f", predicted to save {best['cost_us']:,.0f} µs" if "cost_us" in best else ""
            ops, device = list(best["remedy"]), next(iter(best["remedy"].values()))
            line += f" Best remedy: {names_at_hand(ops, 2)} to {device}{saving}."
        else:
            line += " No remedy is worth it."
        lines.append(line)
    if len(groups) > most:
        lines.append(f"… {count_of(len(groups) - most, 'more cause')}.")
    return lines
