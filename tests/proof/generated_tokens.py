"""SmolLM2-135M cut between layers: are its tokens those of one device in f32?

    python -m tests.proof.generated_tokens --new-tokens 48

Cut behind layers 5, 15 and 25, one at a time and all at once, both directions of two devices,
prompts of 1, 7 and 64 tokens, both executors, and as two static models without states (which
HETERO can cut anywhere). HETERO cannot cut the dynamic model at all three places at once, and
refuses that before it compiles. Prints a row a generation, and exits with 1 if a token differs or
what HETERO cannot do is not refused.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product

import hetero_lab as hl
from hetero_lab.devices.core import bind
from hetero_lab.errors import AffinityError
from hetero_lab.llm.generation import generate
from hetero_lab.model.language import language_model
from hetero_lab.model.static_phases import static_phases
from hetero_lab.parallel.executor import ExecutorSession
from hetero_lab.placement.placement import BoundPlacement, resolve
from hetero_lab.runtime.compiled import compile_placed
from hetero_lab.runtime.executors import CompiledSession
from tests.scripts import EXACT, alone, options
from tests.small_language_models import StaticSession

CUTS = (5, 15, 25)
PROMPTS = (1, 7, 64)
EXECUTORS = ("hetero", "parallel", "static")


def cut_behind(model, layers: Sequence[int], first: str, second: str) -> hl.Placement:
    """Let two devices take turns, changing behind each of some layers."""
    ranges = zip([0, *(layer + 1 for layer in layers)], [*layers, 29], strict=True)
    by_block = {
        f"{begin}-{end}": (first, second)[turn % 2] for turn, (begin, end) in enumerate(ranges)
    }
    label = f"{first} to {', '.join(map(str, layers))}, {second}"
    affinity = hl.Affinity.by_block(model, by_block)
    return hl.Placement(affinity, label, {first: EXACT, second: EXACT})


def refused(placed: BoundPlacement) -> str:
    """Return why HETERO is not asked to compile a placement, empty if it is."""
    try:
        compile_placed(placed)
    except AffinityError as error:
        return f"refused: {str(error)[:60]}…"
    return ""


def main() -> int:
    """Print the table; return the exit code."""
    given = options(__doc__, new_tokens=48, cuts=CUTS, executors=EXECUTORS)
    hl.emulate("ACC")
    bound = bind(hl.load("smollm2_135m"))
    known = language_model(bound.model)
    scenarios = [hl.Scenario(n, given.new_tokens) for n in PROMPTS]
    prompts = [known.prompt(scenario, 0) for scenario in scenarios]

    def tokens(session) -> list[list[int]]:
        return [
            generate(session, known, prompt, given.new_tokens)[0]["token_ids"][0].tolist()
            for prompt in prompts
        ]

    on_cpu = resolve(bound, alone(bound.model, "CPU", EXACT))
    expected = tokens(CompiledSession(compile_placed(on_cpu)))
    n_wrong = n_rows = n_missed = 0
    print(f"{'placement':<28}{'executor':<10}{'prompt':>7}{'equal':>7} of {given.new_tokens}")
    devices = (("ACC", "CPU"), ("CPU", "ACC"))
    cuts = [(layer,) for layer in given.cuts] + [tuple(given.cuts)] * (len(given.cuts) > 1)
    phases = static_phases(bound.model, hl.Scenario(max(PROMPTS), given.new_tokens))
    static = [bind(phases.prefill), bind(phases.decode)]
    for layers, (first, second), executor in product(cuts, devices, given.executors):
        placed = resolve(bound, cut_behind(bound.model, layers, first, second))
        if executor == "hetero" and len(layers) > 1:
            why = refused(placed)
            n_missed += not why
            print(f"{placed.label:<28}{executor:<10}{why or 'WAS NOT REFUSED'}", flush=True)
            continue
        if executor == "static":
            parts = [resolve(b, cut_behind(b.model, layers, first, second)) for b in static]
            made = tokens(StaticSession(phases, *map(compile_placed, parts)))
        elif executor == "hetero":
            made = tokens(CompiledSession(compile_placed(placed)))
        else:
            with hl.ParallelExecutor.of(placed) as running:
                made = tokens(ExecutorSession(running))
        for scenario, own, wanted in zip(scenarios, made, expected, strict=True):
            n_equal = sum(a == b for a, b in zip(own, wanted, strict=True))
            n_rows, n_wrong = n_rows + 1, n_wrong + (own != wanted)
            print(
                f"{placed.label:<28}{executor:<10}{scenario.prompt_tokens:>7}{n_equal:>7}",
                flush=True,
            )
    print(f"{n_rows - n_wrong} of {n_rows} generations have the tokens of one device in f32.")
    return int(n_wrong + n_missed > 0)


if __name__ == "__main__":
    sys.exit(main())
