"""Do quantised models keep their int8 kernels and their accuracy?

Run by hand: ``python -m tests.benchmarks.benchmark_int8 [--models NAME …]
[--preset performance]``.
For each model it prints the kernels that are executed in int8 when NNCF's own result is compiled
by a plain Core, after ``hl.quantize`` on one device, on two devices with a cut in the middle of
quantised blocks, and after the remedies of ``hl.lint``; the accuracy in f32 and int8; and the
paired difference with its 95 % interval (Agresti and Min 2005). It fails where the remedied
placement keeps less than 90 % of the kernels or int8 loses more than a point. Models without
labelled data are calibrated with generated inputs, and only their kernels count.
"""

from __future__ import annotations

import sys

import nncf
import numpy as np
import openvino as ov

import hetero_lab as hl
from hetero_lab.model.read import prepare
from hetero_lab.runtime.inputs import generate_inputs
from hetero_lab.samples.datasets import Dataset
from hetero_lab.statistics import paired_drop
from tests.int8_kernels import COUNTED, int8_kernels
from tests.scripts import alone, options

SUBSET = 100
MODELS = ["digits_inception", "page_orientation", "blazeface", "ppocr_cls", "efficientnet_lite0"]


def main() -> int:
    """Measure each model, print the table, return 1 if one misses its mark."""
    given = options(__doc__, models=MODELS, preset="mixed")
    hl.emulate("ACC", base="CPU")
    print(
        f"{'model':20}{'plain':>6}{'CPU':>6}{'cut':>6}{'mended':>7}{'kept':>7}"
        f"{'KB f32':>8}{'KB int8':>8}{'acc f32':>9}{'acc int8':>9}   drop in points"
    )
    missed = [name for name in given.models if not measure(name, given.preset)]
    if missed:
        print("missed:", ", ".join(missed))
    return 1 if missed else 0


def measure(name: str, preset: str) -> bool:
    """Print one row; return whether kernels and accuracy are kept."""
    model = prepare(hl.load(name))
    labelled = dict(zip(hl.samples()["name"], hl.samples()["dataset"], strict=True))[name]
    data = hl.dataset(labelled) if labelled else None
    if data:
        examples = [data.calibration[i][0] for i in range(min(SUBSET, len(data.calibration)))]
    else:
        examples = [generate_inputs(model, seed) for seed in range(10)]
    theirs = nncf.quantize(
        model.model.clone(),
        nncf.Dataset(examples),
        preset=nncf.QuantizationPreset(preset),
        subset_size=len(examples),
    )
    plain = int8_kernels(ov.Core().compile_model(theirs, "CPU", COUNTED), examples[0])
    int8 = hl.quantize(model, examples, preset=preset, progress=False)
    cpu = hl.Affinity.uniform(int8, "CPU")
    cut = cpu.fix(ops=dict.fromkeys(through_blocks(int8, cpu), "ACC"))
    mended = mend(int8, cut)
    counts = [
        sum(int8_kernels(compiled(int8, p), list(examples[0].values())).values())
        for p in ("CPU", cut, mended)
    ]
    total = sum(plain.values())
    kept = min(counts[0], counts[2]) / total
    sizes = [prepare(m).graph.weight_bytes / 1e3 for m in (model, int8)]
    print(
        f"{name:20}{total:6}{counts[0]:6}{counts[1]:6}{counts[2]:7}{kept:7.0%}"
        f"{sizes[0]:8.0f}{sizes[1]:8.0f}",
        end="",
        flush=True,
    )
    if not data:
        print()
        return kept >= 0.9
    before, after = (right_answers(m, data) for m in (model, int8))
    found = paired_drop(before, after)
    drop, low, high = (100 * share for share in (found.drop, found.low, found.high))
    print(
        f"{before.mean():9.4f}{after.mean():9.4f}   {drop:+.2f} [{low:+.2f}, {high:+.2f}], "
        f"{len(before)} examples"
    )
    return kept >= 0.9 and before.mean() - after.mean() <= 0.01


def compiled(model: ov.Model, placement: object) -> ov.CompiledModel:
    """Compile with counters."""
    return hl.compile(model, placement, counters=True).compiled_model  # type: ignore[arg-type]


def through_blocks(model: ov.Model, affinity: hl.Affinity) -> list[str]:
    """Return the middle ops of a model, from one FakeQuantize to another."""
    graph = prepare(model).graph
    quantizers = [
        place
        for place, name in enumerate(affinity.ops)
        if graph.ops[graph.index_of[name]].type == "FakeQuantize"
    ]
    first, last = (quantizers[len(quantizers) * share // 3] for share in (1, 2))
    return list(affinity.ops[first + 1 : last + 1])


def mend(model: ov.Model, affinity: hl.Affinity) -> hl.Affinity:
    """Follow the remedies until no boundary undoes a quantisation."""
    for _ in range(10):
        found = hl.lint(model, affinity)
        found = found[found["rule"] == "cut-quantization"]
        remedies = [remedy for remedy in found["remedy"] if remedy]
        if not remedies:
            break
        affinity = affinity.fix(ops=remedies[0])
    return affinity


def right_answers(model: object, data: Dataset) -> np.ndarray:
    """Return for each example of the evaluation part whether the model is right, in f32."""
    run = hl.compile(model, alone(model, "CPU"))  # type: ignore[arg-type]
    examples = (data.evaluation[i] for i in range(len(data.evaluation)))
    return np.array([data.metric.correct(run(inputs), label) for inputs, label in examples])


if __name__ == "__main__":
    sys.exit(main())
