"""The result of a search for faults, in sentences."""

from __future__ import annotations

import numpy as np

from hetero_lab.errors import names_at_hand
from hetero_lab.experiments.faults.expected import Expected
from hetero_lab.experiments.faults.ways_around import Way, WaysAround, n_moved
from hetero_lab.experiments.faults.wrong import Kind, doubt
from hetero_lab.experiments.faults.wrong_sets import WrongOps, WrongSetSearch


def verdict(
    kind: Kind,
    way: Way,
    expected: Expected,
    sets: WrongSetSearch,
    around: WaysAround,
    *,
    complete: bool,
    interrupted: bool,
) -> str:
    """Say which ops are wrong, which were tried, and whether the way around is proven."""
    if kind == "none":
        return f"Nothing is wrong: no output is off by more than {expected.before:.2g} (relative)."
    seen = _seen(expected, sets)
    if kind == "rounding" and complete and sets.could_all_run():
        what = "Each op is right" if expected.random else seen
        lost = ""
        if not (way.right or expected.random):
            expected.transparent.before_run = None  # the search is over, but this has to be said
            lost = expected.beyond_precision()
        return f"{what}: no op is wrong, by itself or together with others.{lost}"
    tested = _blame(sets.found) if sets.found else _tested(expected, sets, complete)
    sentences = [f"{seen}.", tested]
    if way.placement is not expected.given:
        sentences += _mended(way, expected, around)
    if not complete:
        cut = "It was interrupted" if interrupted else "The budget ended"
        sentences.append(f"{cut} before the search came to its end.")
    return " ".join(sentences)


def _seen(expected: Expected, sets: WrongSetSearch) -> str:
    if expected.refused:
        return "The placement does not run"
    if np.isnan(expected.before) and expected.random:
        return "The outputs cannot be compared"
    if np.isnan(expected.before):
        return "The outputs were not compared with those of the reference"
    off = f"The outputs are off by {expected.before:.2g} (relative error)"
    if expected.random and expected.before <= expected.equal:
        off = "The outputs that can be compared are right"
    if np.isinf(expected.before):
        off = "Outputs are infinite or no number where the reference is finite, or the reverse"
    if sets.found or expected.random or expected.right is None:
        return off
    how = "by rounding in" if expected.right else "which is more than what comes of rounding in"
    return f"{off}, {how} {expected.narrow}"


def _blame(found: list[WrongOps]) -> str:
    sentences = []
    for verb, refused in (("Wrong", False), ("Refused", True)):
        sets = [each for each in found if bool(each.trial.refusal) is refused]
        singles = [each.ops[0] for each in sets if len(each.ops) == 1]
        blame = []
        if singles:
            selves = "itself" if len(singles) == 1 else "themselves"
            blame = [f"{names_at_hand(singles)} by {selves}"]
        blame += [
            f"{names_at_hand(each.ops)} together{doubt(each.minimal, each.untried)}"
            for each in sets
            if len(each.ops) > 1
        ]
        if blame:
            sentences.append(f"{verb}: {'; '.join(blame)}.")
    return " ".join(sentences)


def _tested(expected: Expected, sets: WrongSetSearch, complete: bool) -> str:
    """Say how much was run by itself, where nothing of it is wrong."""
    if complete and sets.could_all_run():
        return "No op and no subgraph is wrong with the reference's inputs."
    n, n_right = len(expected.suspects), len(expected.suspects) - len(sets.unrun())
    if not n_right:
        return "No op was run by itself."
    rest = "The device refuses other cuts." if complete else "Not all of them were run together."
    return f"{n_right} of {n} ops were run by themselves, and are right. {rest}"


def _mended(way: Way, expected: Expected, around: WaysAround) -> list[str]:
    trusted, given = expected.runs.trusted, expected.given.affinity
    moved = n_moved(way.placement.affinity, given)
    outputs = f"With {_ops(moved)} moved to {trusted}, the outputs"
    if not moved:  # only its precision has changed
        outputs = f"With {trusted} in f32, the outputs"
    if not way.right and np.isnan(way.after):
        why = "they cannot be compared" if expected.random else "it was not run"
        return [f"{outputs} may be right; this was not proven, as {why}."]
    sentences = []
    whole = around.ways.get(around.moves_all()) if around.found else None
    if whole is not None and way.placement is not whole.placement and not whole.right:
        still = f"the outputs are still off by {whole.after:.2g}"
        if np.isnan(whole.after):
            still = "the placement does not run"
        n = n_moved(whole.placement.affinity, given)
        sentences = [f"With {_ops(n)} moved to {trusted}, {still}."]
    if len(way.placement.affinity.devices) == 1:
        outputs = f"With all ops on {trusted}, the outputs"
    if way.right:
        return [*sentences, f"{outputs} are right ({way.after:.2g})."]
    off = f"{outputs} are still off by {way.after:.2g}; no placement was found to be right."
    return [*sentences, off]


def _ops(n: int) -> str:
    return f"{n} op{'s' * (n > 1)}"
