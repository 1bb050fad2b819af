"""Replay one report: ``python -m tests.proof.replays.one NAME DIRECTORY``, beside any release."""

from __future__ import annotations

import json
import sys

import hetero_lab as hl
from hetero_lab.model.opgraph import NOT_OPS
from tests.proof.replays.reports import REPORTS
from tests.scripts import alone


def main(name: str, directory: str) -> None:
    """Investigate the model of a report, export what was found, and print figures of it."""
    (report,) = (each for each in REPORTS if each.name == name)
    model, inputs = report.build()
    # In f16, which is the default of a GPU, other ops would differ as well.
    placement = "CPU" if report.device == "CPU" else alone(model, report.device)
    found = hl.investigate(model, placement, inputs, progress=False)
    found.export(directory)
    figures = {
        "symptom": found.symptom.value,
        "ops": found.ops,
        "n_ops": sum(node.get_type_name() not in NOT_OPS for node in hl.load(model).get_ops()),
        "elapsed_s": found.elapsed_s,
        "verdict": found.verdict,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
