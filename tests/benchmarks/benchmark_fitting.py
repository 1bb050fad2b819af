"""How well costs that are fitted anew to what was recorded on a real GPU predict what was measured.

Run by hand: ``python -m tests.benchmarks.benchmark_fitting``. It measures nothing, so another way
of fitting can be judged in seconds, without the device. ``benchmark_prediction --out`` makes such
recordings: what a cost model was fitted to, and placements that it did not see, as measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

import hetero_lab as hl
from hetero_lab.costs.counter_costs import Conversion, ExecutedNode, Observation
from hetero_lab.costs.fitting import fit
from hetero_lab.placement.affinity import Affinity
from tests.benchmarks.benchmark_prediction import unseen


def measured(file: Path) -> pd.Series:
    """Return the median over compiles of each placement, without the drift of the machine."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    table = pd.DataFrame(rows, columns=["placement", "compile", "raw_us", "beside_us"])
    drift = table["beside_us"] / table["beside_us"].median()
    return (table["raw_us"] / drift).groupby(table["placement"]).median()


def observed(file: Path, costs: hl.CostModel) -> Iterator[Observation]:
    """Yield what the costs were fitted to."""
    like = Affinity.on_one(costs.graph, costs.devices[0])
    for seen in json.loads(file.read_text()):
        nodes = (ExecutedNode(**node | {"ops": tuple(node["ops"])}) for node in seen["nodes"])
        yield Observation(
            **seen
            | {
                "affinity": Affinity(like.nodes, seen["affinity"]),
                "nodes": tuple(nodes),
                "conversions": tuple(Conversion(**each) for each in seen["conversions"]),
            }
        )


def errors(costs: hl.CostModel, seen: Sequence[Observation], actual_us: pd.Series) -> np.ndarray:
    """Return the relative error of each placement that was measured."""
    predicted = {
        f"unseen{number}": costs.predictor(affinity).predicted_us
        for number, affinity in enumerate(unseen(costs, seen, 0))
    }
    return np.array(
        [predicted[name] / us - 1 for name, us in actual_us.items() if name in predicted]
    )


def main() -> None:
    """Print a line for each recorded model."""
    for file in sorted(hl.interop.recordings().rglob("*.observations.json")):
        name = file.name.partition(".")[0]
        costs = hl.CostModel.from_json(file.with_name(f"{name}.costs.json"))
        actual_us = measured(file.with_name(f"{name}.jsonl"))
        seen = list(observed(file, costs))
        support = {device: costs.supports(device) for device in costs.devices}
        text = [f"{name:20} {len(seen)} placements"]
        for label, model in (
            ("as recorded", costs),
            ("one memory", fit(costs.graph, support, seen)),
            ("memory of its own", fit(costs.graph, support, seen, own_memory=True)),
        ):
            off = errors(model, seen, actual_us)
            text.append(f"{label} {np.abs(off).mean():.1%} (bias {off.mean():+.1%})")
        print(", ".join(text), flush=True)


if __name__ == "__main__":
    main()
