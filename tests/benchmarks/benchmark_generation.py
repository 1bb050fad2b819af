"""Time per further token on one device: the lab against OpenVINO GenAI's own pipeline.

    python -m tests.benchmarks.benchmark_generation

The two generate in turn, so that a drift of the machine hits both alike. Needs the extra ``llm``,
and a quiet machine.
"""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino_genai

import hetero_lab as hl
from hetero_lab.backend.bound import bind
from hetero_lab.model.language import language_model
from hetero_lab.placement.placement import resolve
from hetero_lab.runtime.compiled import compile_placed
from hetero_lab.runtime.generation import CompiledSession, generate
from hetero_lab.samples.catalogue import sample_path
from tests.scripts import F32, alone, options


def main() -> None:
    """Print both times of each round, and the median of the ratios."""
    given = options(__doc__, rounds=10, prompt_tokens=64, new_tokens=32)
    scenario = hl.Scenario(given.prompt_tokens, given.new_tokens)
    pipeline = openvino_genai.LLMPipeline(str(sample_path("smollm2_135m").parent), "CPU", **F32)
    wanted = openvino_genai.GenerationConfig()
    wanted.max_new_tokens, wanted.ignore_eos, wanted.do_sample = scenario.new_tokens, True, False
    bound = bind(hl.load("smollm2_135m"))
    known = language_model(bound.model)
    prompt = known.prompt(scenario, 0)
    session = CompiledSession(compile_placed(resolve(bound, alone(bound.model, "CPU"))))

    def genai_ms() -> float:
        tokens = openvino_genai.TokenizedInputs(ov.Tensor(prompt), ov.Tensor(np.ones_like(prompt)))
        made = pipeline.generate(tokens, wanted)
        return float(np.median(made.perf_metrics.raw_metrics.m_durations[1:])) / 1e3

    def lab_ms() -> float:
        made = generate(session, known, prompt, scenario.new_tokens)
        return float(np.median(made.step_us[1:])) / 1e3

    genai_ms(), lab_ms()  # warm
    ratios = []
    for _ in range(given.rounds):
        theirs, ours = genai_ms(), lab_ms()
        ratios.append(ours / theirs)
        print(f"GenAI {theirs:8.2f} ms, lab {ours:8.2f} ms a further token: {ratios[-1]:.3f}")
    low, high = np.percentile(ratios, [25, 75])
    print(f"lab / GenAI: median {np.median(ratios):.3f}, quartiles [{low:.3f}, {high:.3f}]")


if __name__ == "__main__":
    main()
