"""SmolLM2-135M cut between layers: are its tokens those of one device in f32?

    python -m tests.proof.generated_tokens --new-tokens 48

Cut behind layers 5, 15 and 25, both directions of two devices, prompts of 1, 7 and 64 tokens, both
executors. Prints a row a generation, and exits with 1 if a token differs.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product

import hetero_lab as hl
from hetero_lab.backend.bound import bind
from hetero_lab.model.language import language_model
from hetero_lab.placement.placement import resolve
from hetero_lab.runtime.compiled import compile_placed
from hetero_lab.runtime.generation import CompiledSession, ExecutorSession, generate

# By default the CPU plugin keeps the cache in 8 bits and quantises what is multiplied with
# weights of few bits: neither is f32.
F32 = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}
CUTS = (5, 15, 25)
PROMPTS = (1, 7, 64)


def cut_behind(model, layer: int, first: str, second: str) -> hl.Placement:
    """Put layers 0 to ``layer`` on one device and the rest on another."""
    affinity = hl.Affinity.by_block(model, {f"0-{layer}": first, f"{layer + 1}-29": second})
    return hl.Placement(affinity, f"{first} to {layer}, {second}", {first: F32, second: F32})


def main() -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--cuts", type=int, nargs="+", default=list(CUTS))
    given = parser.parse_args()
    hl.emulate("ACC")
    bound = bind(hl.load("smollm2_135m"))
    known = language_model(bound.model)
    scenarios = [hl.Scenario(n, given.new_tokens) for n in PROMPTS]
    prompts = [known.prompt(scenario, 0) for scenario in scenarios]

    def tokens(session) -> list[list[int]]:
        return [
            generate(session, known, prompt, given.new_tokens).token_ids[0].tolist()
            for prompt in prompts
        ]

    alone = hl.Placement(hl.Affinity.uniform(bound.model, "CPU"), "CPU", {"CPU": F32}, True)
    expected = tokens(CompiledSession(compile_placed(resolve(bound, alone))))
    n_wrong = n_rows = 0
    print(f"{'placement':<24}{'executor':<10}{'prompt':>7}{'equal':>7} of {given.new_tokens}")
    devices = (("ACC", "CPU"), ("CPU", "ACC"))
    for layer, (first, second), executor in product(given.cuts, devices, ("hetero", "parallel")):
        placed = resolve(bound, cut_behind(bound.model, layer, first, second))
        if executor == "hetero":
            made = tokens(CompiledSession(compile_placed(placed)))
        else:
            with hl.ParallelExecutor.of(placed) as running:
                made = tokens(ExecutorSession(running, known))
        for scenario, own, wanted in zip(scenarios, made, expected, strict=True):
            n_equal = sum(a == b for a, b in zip(own, wanted, strict=True))
            n_rows, n_wrong = n_rows + 1, n_wrong + (own != wanted)
            print(
                f"{placed.label:<24}{executor:<10}{scenario.prompt_tokens:>7}{n_equal:>7}",
                flush=True,
            )
    print(f"{n_rows - n_wrong} of {n_rows} generations have the tokens of one device in f32.")
    return int(n_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
