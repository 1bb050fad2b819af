"""The demo: the main job on a small model, CPU and an emulated accelerator."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hetero_lab as hl
from hetero_lab.cli.commands import check_targets, until_interrupted
from hetero_lab.tables import make_directory, write_csv
from hetero_lab.terminal import columns, count_of

if TYPE_CHECKING:
    import pandas as pd

MODEL = "digits_inception"
_COURSE = "notebooks/01_quickstart.ipynb"
DEVICE = "HETERO:ACC,CPU"
UNSUPPORTED = frozenset(["Interpolate", "ReduceMean", "Sigmoid", "Softmax"])
FIX = "^(scale|features|head_)"
ALONE, AUTOMATIC, FIXED = "CPU alone", f"{DEVICE} automatic", f"{DEVICE} fixed"
BUDGET_S = 20.0

Say = Callable[[str], object]


def run(directory: str, say: Say, progress: bool = True) -> bool:
    """Do the main job, tell it line by line, write tables and a page of figures.

    Parameters
    ----------
    directory
        Where the files go; made if it is missing.
    say
        Takes each line.
    progress
        Show a bar while measuring.

    Returns
    -------
    bool
        Whether Ctrl-C cut the measurement short.

    Raises
    ------
    OutputPathError
        The directory cannot be written.
    """
    check_targets(files=[], directories=[directory])
    model = hl.load(MODEL)
    acc = hl.emulate("ACC", unsupported=UNSUPPORTED, faster_by="auto")
    say(f"The model: {MODEL}, a small classifier of handwritten digits with branches.")
    say("\n1. Two devices")
    say(f"   CPU  set to {_settings(acc.contrast)}")
    say(f"   ACC  set to {_settings(acc.properties)}; cannot run {', '.join(sorted(UNSUPPORTED))}")
    say("   ACC is emulated: it is the CPU under a second name, on the same cores. What runs")
    say("   where and what a boundary costs is real; its speed is not that of an accelerator.")

    say("\n2. Support: the ops that each device can run")
    support = hl.support(model, ["ACC", "CPU"])
    say(_indented(_by_type(support)))

    say(f"\n3. Automatic placement {DEVICE}: each op goes to the first device that can run it")
    automatic = hl.Affinity.automatic(model, DEVICE)
    say(_indented(_path(hl.partition(model, automatic))))

    say(f"\n4. One fix, {FIX}=CPU: the small ops at both ends stay in one piece")
    fixed = automatic.fix(patterns={FIX: "CPU"})
    moved = fixed.diff(automatic)
    say(f"   moved: {', '.join(moved['op'])}")
    say(_indented(_path(hl.partition(model, fixed))))

    say(f"\n5. Measured in turn, at most {BUDGET_S:g} s: a drift of the machine hits all alike")
    properties = {"CPU": acc.contrast}
    alone = hl.Affinity.uniform(model, "CPU")
    sweep = until_interrupted(
        hl.sweep,
        model,
        [
            hl.Placement(alone, ALONE, properties, direct=True),
            hl.Placement(automatic, AUTOMATIC, properties),
            hl.Placement(fixed, FIXED, properties),
        ],
        budget_s=BUDGET_S,
        precision=0.01,
        isolate=False,
        progress=progress,
    )
    rows = [row.label for row in sweep.rows if row.profile is not None and not row.same_as]
    summary = sweep.summary.set_index("label").loc[rows]
    say(_indented(_measured(summary)))
    say(_indented(_verdict(sweep)))
    for note in sweep.notes:
        say(f"   Note: {note}")

    target = make_directory(directory)
    write_csv(target / "support.csv", support)
    write_csv(target / "fix.csv", moved)
    sweep.export(target)
    fixed.to_json(target / "fixed.json")
    page = target / "index.html"
    results = [sweep, *(sweep.profile(label) for label in rows)]
    hl.views.page(results, page, title=f"hetero-lab demo: {MODEL}")
    say("\n6. Where to look")
    say(_indented(_files(target)))
    say("\nNext")
    say(_indented(_next_steps()))
    return sweep.interrupted


def _settings(properties: Mapping[str, Any]) -> str:
    names = {"INFERENCE_PRECISION_HINT": "precision", "INFERENCE_NUM_THREADS": "threads"}
    return ", ".join(f"{names[key]} {properties[key]}" for key in names if key in properties)


def _by_type(support: pd.DataFrame) -> str:
    rows = [["OP TYPE", "OPS", "ACC", "CPU"]]
    for name in sorted(set(support["op_type"])):
        mine = support[support["op_type"] == name]
        rows.append([name, *(str(n) for n in (len(mine), mine["ACC"].sum(), mine["CPU"].sum()))])
    return columns(rows)


def _path(partition: hl.Partition) -> str:
    rows = [["SUBGRAPH", "DEVICE", "OPS", "FROM … TO"]]
    for subgraph in partition.subgraphs:
        first, last = subgraph.ops[0], subgraph.ops[-1]
        span = first if first == last else f"{first} … {last}"
        rows.append([str(subgraph.index), subgraph.device, str(len(subgraph.ops)), span])
    boundaries = count_of(len(partition.boundaries), "boundary")
    sent = f"{boundaries}, {partition.boundary_bytes:,} bytes"
    return f"{count_of(partition.n_subgraphs, 'subgraph')}, {sent}\n{columns(rows)}"


def _measured(summary: pd.DataFrame) -> str:
    rows = [["PLACEMENT", "SUBGRAPHS", "BYTES", "MEDIAN µs  [95 %]", "RATIO  [95 %]", "OUTPUTS"]]
    for label, row in summary.iterrows():
        median = f"{row.median_us:.1f}  [{row.ci95_low_us:.1f}, {row.ci95_high_us:.1f}]"
        ratio = f"{row.ratio:.3f}  [{row.ratio_ci95_low:.3f}, {row.ratio_ci95_high:.3f}]"
        if row.reference:
            ratio = "1"
        counts = [str(int(row.n_subgraphs)), f"{int(row.boundary_bytes):,}"]
        rows.append([str(label), *counts, median, ratio, str(row.verdict)])
    return columns(rows)


def _verdict(sweep: hl.Sweep) -> str:
    """Say what the evidence says: placements in one group cannot be told apart."""
    ranking = sweep.ranking.set_index("label")
    if not {ALONE, AUTOMATIC, FIXED} <= set(ranking.index):
        return "The measurement was cut short: too little to compare."
    lines = [
        "A ratio below 1 is faster than CPU alone. Outputs are compared with CPU in f32;",
        "rounding: they differ by no more than the precision explains.",
    ]
    for other, name in ((AUTOMATIC, "the automatic placement"), (ALONE, "CPU alone")):
        ratio = ranking["ratio"][FIXED] / ranking["ratio"][other]
        if ranking["group"][FIXED] == ranking["group"][other]:
            lines.append(f"The fix cannot be told apart from {name}.")
        else:
            word = "less" if ratio < 1 else "more"
            lines.append(f"The fix needs {abs(1 - ratio):.1%} {word} time than {name}.")
    return "\n".join(lines)


def _files(target: Path) -> str:
    return columns(
        [
            [str(target / "index.html"), "the figures; open it in a browser, no network needed"],
            [str(target / "summary.csv"), "one row a placement"],
            [str(target / "subgraphs.csv"), "one row a subgraph; counters.csv, boundaries.csv, …"],
            [str(target / "fixed.json"), "the fixed affinity, for --affinity"],
        ]
    )


def _next_steps() -> str:
    lab, ours = _program("jupyter"), _program("hetero-lab")
    here = Path(_COURSE).exists()  # a wheel does not bring the notebooks
    return columns(
        [
            *([[f"{lab} lab {_COURSE}", "the same story, step by step"]] if here else []),
            [f"{ours} devices", "the real devices of this machine"],
            [f"{ours} profile MODEL -d HETERO:GPU,CPU", "your own model (.xml .onnx .tflite …)"],
        ]
    )


def _program(name: str) -> str:
    """Return how to call a program of this environment, which may not be an activated one."""
    beside = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if found and Path(found) == beside:
        return name
    return str(beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside)


def _indented(text: str) -> str:
    return "\n".join(f"   {line}" for line in text.splitlines())
