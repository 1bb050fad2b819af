"""How far tables of support can be believed: ``python -m tests.proof.support_agreement``.

The tables of CPU in PyPI's winml-cli beside the CPU plugin itself. Of every sample model that is
bundled or in the cache, each distinct use of an op; and random ONNX models of one operator
(``--models``), each compiled for CPU and run once. An op is right where the tables call supported
what ran, or unsupported what did not. Models that OpenVINO cannot read are left out: an op of one
can never be asked about. Each op is looked up twice: put in terms of ONNX from what OpenVINO made
of it, and as the node of the ONNX file that it comes from. Prints agreement, wrong yes and wrong
no with their 95 % intervals (Wilson 1927), and by element type; with ``--wrong`` each wrong answer.
The sum of the second is what ``hetero_lab/backend/evidence.py`` holds. The tables are fetched with
pip.
"""

from __future__ import annotations

import argparse
import collections
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import hetero_lab as hl
from hetero_lab.backend.bound import BoundModel, bind
from hetero_lab.backend.core import runtime_version
from hetero_lab.backend.devices import supported_ops
from hetero_lab.backend.evidence import TableAgreement
from hetero_lab.backend.onnx_uses import onnx_uses
from hetero_lab.backend.support_tables import SUPPORTED, UNKNOWN, UNSUPPORTED, tables_of, verdicts
from hetero_lab.model.onnx_nodes import forget_onnx_nodes
from hetero_lab.statistics import wilson_interval
from tests.proof.single_ops import SingleOp, draw

LIKE = "winml-cli:CPU"
MODELS = 600


@dataclass(frozen=True)
class Comparison:
    """What tables say of an op, and whether it ran."""

    what: str
    element_type: str
    answer: str
    ran: bool
    reason: str


def of_samples(from_file: bool) -> list[Comparison]:
    """Compare each distinct use of an op in the samples that are here."""
    listed = hl.samples()
    operators = tables_of(LIKE).operators
    found: dict[object, Comparison] = {}
    for name in listed.loc[listed["bundled"] | listed["cached"], "name"]:
        bound = _bound(name, from_file)
        claimed = supported_ops(bound, "CPU")
        runs = _runs(bound)
        uses, graph = onnx_uses(bound), bound.graph
        for op, verdict in verdicts(bound, LIKE).items():
            use, kind = uses[op].best(operators), graph.ops[graph.index_of[op]]
            facts = kind.type if use is None else (
                use.operator, *sorted((k, str(sorted(map(str, v)))) for k, v in use.facts.items())
            )  # fmt: skip
            found[facts] = Comparison(
                f"{name}: {op}", kind.outputs[0].element_type, verdict.answer,
                runs and op in claimed, str(verdict),
            )  # fmt: skip
    return list(found.values())


def of_generated(n: int, seed: int, from_file: bool) -> tuple[list[Comparison], int]:
    """Compare random models of one operator; return also how many could not be read."""
    found, unread = [], 0
    for number in range(n):
        single = draw(seed + number)
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as directory:
            warnings.simplefilter("ignore")
            file = Path(directory) / "single.onnx"
            file.write_bytes(single.onnx())
            try:
                bound = _bound(file, from_file)
            except Exception:  # what OpenVINO cannot read has no ops to ask about
                unread += 1
                continue
        answers = verdicts(bound, LIKE)
        if not answers:
            unread += 1  # folded away
            continue
        kinds = {verdict.answer for verdict in answers.values()}
        answer = next(a for a in (UNSUPPORTED, UNKNOWN, SUPPORTED) if a in kinds)
        reason = next(str(v) for v in answers.values() if v.answer == answer)
        runs = supported_ops(bound, "CPU") >= answers.keys() and _runs(bound)
        given = next(g for g in single.inputs if g is not None)
        found.append(Comparison(_said(single), given.type, answer, runs, reason))
    return found, unread


def _bound(source: str | Path, from_file: bool) -> BoundModel:
    """Load a model; without what its file says of its ops, if so asked."""
    model = hl.load(source)
    if not from_file:
        forget_onnx_nodes(model)
    return bind(model)


def _said(single: SingleOp) -> str:
    shapes = [f"{g.type}{list(g.shape)}" for g in single.inputs if g is not None]
    return f"{single.operator}({', '.join(shapes)}) {dict(single.attributes)}"


def _runs(bound: BoundModel) -> bool:
    """Return whether a model is compiled and runs on CPU."""
    try:
        request = bound.core.compile_model(bound.model, "CPU").create_infer_request()
        inputs = {}
        for port in request.model_inputs:
            dtype, shape = port.get_element_type().to_dtype(), port.get_partial_shape()
            # Zeros for dynamic inputs: an index into an axis of one item is 0.
            value = 0 if shape.is_dynamic else 1
            sizes = [1 if size.is_dynamic else size.get_length() for size in shape]
            inputs[port] = np.full(sizes, value, dtype)
        request.infer(inputs)
    except Exception:
        return False
    return True


def counted(found: list[Comparison]) -> TableAgreement:
    """Count right and wrong answers."""
    count = collections.Counter((c.answer, c.ran) for c in found)
    return TableAgreement(
        yes_right=count[SUPPORTED, True],
        false_yes=count[SUPPORTED, False],
        no_right=count[UNSUPPORTED, False],
        false_no=count[UNSUPPORTED, True],
        unknown=count[UNKNOWN, True] + count[UNKNOWN, False],
        openvino_version=runtime_version().split("-")[0],
    )


def line(label: str, found: list[Comparison]) -> str:
    """Say in a line how often tables were right."""
    got = counted(found)
    if not got.n_answered:
        return f"{label:<28} nothing answered, {got.unknown} unknown"
    parts = []
    for name, right, n in (
        ("agree", got.n_agreed, got.n_answered),
        ("wrong yes", got.false_yes, got.yes_right + got.false_yes),
        ("wrong no", got.false_no, got.no_right + got.false_no),
    ):
        if n:
            low, high = wilson_interval(right, n)
            parts.append(f"{name} {right} of {n} ({right / n:.1%}, {low:.1%} to {high:.1%})")
    ran = sum(c.ran for c in found if c.answer == UNKNOWN)
    return f"{label:<28} {'; '.join(parts)}; unknown {got.unknown}, of which {ran} ran"


def main() -> int:
    """Compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=MODELS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wrong", action="store_true", help="print each wrong answer")
    options = parser.parse_args()
    for title, from_file in (
        ("Each op as OpenVINO made it, put in terms of ONNX:", False),
        ("Each op as the node of the ONNX file that it comes from, where there is one:", True),
    ):
        print(title)
        samples = of_samples(from_file)
        generated, unread = of_generated(options.models, options.seed, from_file)
        every = [*samples, *generated]
        print(line("samples, distinct uses", samples))
        print(line("generated", generated))
        for kind in sorted({c.element_type for c in generated}) if from_file else ():
            print(line(f"  {kind}", [c for c in generated if c.element_type == kind]))
        print(line("all", every), flush=True)
    print(f"{unread} of {options.models} generated models could not be read, or were folded away.")
    print(counted(every))
    print(counted(every).sentence())
    if options.wrong:
        for c in every:
            if (c.answer, c.ran) in ((SUPPORTED, False), (UNSUPPORTED, True)):
                print(f"  {c.answer}, {'ran' if c.ran else 'did not run'}: {c.what}: {c.reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
