"""The demo: how to deploy a small model on the devices here, and why."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import hetero_lab as hl
from hetero_lab.advise.advice import Advice, Judged, ranking
from hetero_lab.cli.calls import until_interrupted
from hetero_lab.cli.options import spelled
from hetero_lab.interop.recording import read_recording, recordings
from hetero_lab.planning.simplify import simplified_label
from hetero_lab.tables import make_directory, text_table, write_csv
from hetero_lab.terminal import columns, command_line

MODEL, DATA = "digits_inception", "digits"
EMULATED = "ACC"
UNSUPPORTED = frozenset(["Interpolate", "ReduceMean", "Sigmoid", "Softmax"])
BUDGET_S = 20.0  # the whole demo takes about half a minute
_COURSE = "notebooks/13_what_to_deploy.ipynb"


def run(directory: str) -> Advice:
    """Advise on the bundled model, write a page of figures, and deploy unless Ctrl-C came."""
    model, data = hl.load(MODEL), hl.dataset(DATA)
    print(f"How should {MODEL}, a small branched classifier of handwritten digits, be deployed?")
    print("\n1. The devices")
    devices = _devices()
    print(f"\n2. What could be deployed on them, measured in turns in at most {BUDGET_S:g} s")
    advice = until_interrupted(
        hl.advise, model, devices, data=data, budget_s=BUDGET_S, isolate=False
    )
    advice = replace(advice, verdict=spelled(advice.verdict))
    reference = advice.sweep.configuration_of(advice.sweep.reference)
    _show(text_table(ranking(advice.summary)))
    print(f"   Below a ratio of 1 it is faster than {reference}. The slow are dropped")
    print(
        "   after a short race; the others are measured longer, and quantised to int8, in a final."
    )
    split = _split(advice)
    if split is not None:
        print("\n3. Why a split costs, and what lint found to do about it")
        both = [candidate.row for candidate in split]
        measured = both if all(row.latency is not None for row in both) else None
        before, after = (candidate.placement for candidate in split)
        _show(str(hl.explain(model, before, after, profiles=measured)))
    print("\n4. The answer")
    for sentence in advice.verdict.splitlines():
        _show(textwrap.fill(sentence, 96, break_on_hyphens=False))
    recording = read_recording(recordings() / "eight" / "alexnet.all")
    print("\n5. Where a split wins: AlexNet on a real GPU, not measured here")
    _show(str(recording))

    target = make_directory(directory)
    write_csv(target / "candidates.csv", advice.summary)
    files = [
        [str(target / "index.html"), "the figures; open it in a browser, no network needed"],
        [str(target / "candidates.csv"), "one row a candidate"],
    ]
    profiles = [p for c in split or () if (p := c.row.scaled_profile) is not None]
    page, title = target / "index.html", f"hetero-lab demo: {MODEL}"
    hl.views.page([advice, *profiles, recording], page, title=title)
    if split is not None:
        split[1].placement.affinity.to_json(target / "simplified.json")
        simpler = "the placement with fewer subgraphs, for --affinity"
        files.append([str(target / "simplified.json"), simpler])
    deployed = target / "deploy"
    if not advice.interrupted:
        advice.deploy(deployed)
        files.append([str(deployed), "the advised placement, with its contract; run.py runs it"])
    print("\n6. Where to look")
    _show(columns(files))
    print("\nNext")
    _show(_next_steps(None if advice.interrupted else deployed))
    return advice


def _devices() -> list[str]:
    """Return the devices here; with none beside the CPU, a second one is emulated on it."""
    table = hl.devices()
    table = table[table["available"] & (table["emulated_on"] == "")]
    rows = [[row["device"], row["full_name"]] for row in table.to_dict("records")]
    names = [name for name, _ in rows]
    if len(rows) == 1:
        hl.emulate(EMULATED, unsupported=UNSUPPORTED)
        names = [EMULATED, *names]
        rows.append([EMULATED, f"emulated; cannot run {', '.join(sorted(UNSUPPORTED))}"])
    _show(columns(rows))
    if EMULATED in names:
        print(f"   {EMULATED} is emulated: it is the CPU under a second name, on the same cores.")
        print("   The subgraphs and the costs of boundaries are real; its speed is the CPU's.")
    return names


def _split(advice: Advice) -> tuple[Judged, Judged] | None:
    """Return HETERO's own choice and its simplified version, if there is one."""
    candidates = {candidate.row.label: candidate for candidate in advice.candidates}
    pairs = ((c, candidates.get(simplified_label(label))) for label, c in candidates.items())
    return next(((first, other) for first, other in pairs if other is not None), None)


def _next_steps(deployed: Path | None) -> str:
    verify = ["hetero-lab", "verify", str(deployed)], "prove it again: after an update, in CI"
    course = ["jupyter", "lab", _COURSE], "the same story, step by step"
    steps = [
        *([verify] if deployed else []),
        *([course] if Path(_COURSE).exists() else []),  # a wheel does not bring the notebooks
        (["hetero-lab", "devices"], "the devices of this machine, and why others are missing"),
        (["hetero-lab", "advise", "MODEL"], "your own model (.xml .onnx .tflite …)"),
    ]
    return columns([[command_line(*words), why] for words, why in steps])


def _show(text: str) -> None:
    print(textwrap.indent(text, "   "))
