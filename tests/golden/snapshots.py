"""What users see, as text: public names, help, tables, headers of files, words, keys of trials.

Each function gives one file of ``expected/``. Nothing in them depends on a time: what is measured
here is masked, and numbers of recordings have three digits. After a change that is meant,
``python -m tests.golden.snapshots`` writes them anew, and git shows what changed.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd

import hetero_lab as hl
from hetero_lab.cli.commands import COMMANDS
from hetero_lab.cli.main import main
from tests.counting_core import F32, core_with_acc
from tests.package_source import public_names

EXPECTED = Path(__file__).parent / "expected"
RECORDED = Path(__file__).parents[2] / "datasets" / "recordings"
EMULATED = RECORDED / "digits_inception_emulated"
SPACES = (hl, hl.interop, hl.llm, hl.types, hl.views)
KINDS = {"i": "int", "u": "int", "f": "float", "b": "bool"}


# -- names and commands ------------------------------------------------------------------------


def names() -> str:
    """Give every public name with its arguments and their defaults, or its members."""
    lines: list[str] = []
    for space in SPACES:
        for name, value in sorted(public_names(space).items()):
            lines += _named(f"{space.__name__}.{name}", value)
    return "\n".join(lines)


def _named(name: str, value: Any) -> Iterator[str]:
    if not callable(value):
        yield name
    elif not inspect.isclass(value):
        yield f"{name}{_arguments(value)}"
    elif issubclass(value, Exception):
        yield f"{name}: {', '.join(kind.__name__ for kind in value.__mro__[1:-1])}"
    else:
        attributes = []
        yield f"{name}{_arguments(value)}"
        for member, kept in sorted(_members(value).items()):
            if callable(getattr(kept, "__func__", kept)):
                yield f"    .{member}{_arguments(getattr(value, member))}"
            else:
                attributes.append(member)
        if attributes:
            yield f"    {', '.join(attributes)}"


def _members(kind: type) -> dict[str, Any]:
    """Return the public members of a class that come from this package."""
    own = [base for base in reversed(kind.__mro__) if base.__module__.startswith("hetero_lab")]
    found: dict[str, Any] = {}
    for base in own:
        found |= dict.fromkeys(inspect.get_annotations(base)) | vars(base)
    return {name: value for name, value in found.items() if not name.startswith("_")}


def _arguments(function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    text = str(signature.replace(parameters=plain, return_annotation=signature.empty))
    return re.sub(r" at 0x\w+", "", text)


def commands() -> str:
    """Give the help of every command, as if on a wide terminal."""
    lines: list[str] = []
    for arguments in ([], *([command] for command in COMMANDS)):
        lines += ["$ hetero-lab " + " ".join([*arguments, "--help"]), *_help(arguments), ""]
    return "\n".join(lines)


def _help(arguments: list[str]) -> list[str]:
    shown = io.StringIO()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": "1000"}),
        contextlib.redirect_stdout(shown),
        contextlib.suppress(SystemExit),
    ):
        main([*arguments, "--help"])
    # Python 3.13 names the value of an option once.
    once = re.sub(r"(-\w) (\S+), (--[\w-]+ \2)", r"\1, \3", shown.getvalue())
    return [re.sub(r"(?<=\S)  +", "  ", line) for line in once.splitlines() if line]


# -- what was recorded -------------------------------------------------------------------------


def recordings() -> str:
    """Give the tables, words and first rows of the recordings."""
    sweep, profile = hl.read_sweep(EMULATED / "sweep"), hl.read_profile(EMULATED / "profile")
    costs = hl.CostModel.from_json(EMULATED / "costs.json")
    wrong = hl.read_wrong(RECORDED / "gpu_plugin_digits_inception")
    automatic = hl.Affinity.from_json(EMULATED / "automatic.json")
    fixed = hl.Affinity.from_json(EMULATED / "fixed.json")
    gpu = hl.interop.read_recording(hl.interop.recordings() / "eight" / "alexnet.b")
    results = {
        "Sweep": sweep, "Profile": profile, "CostModel": costs, "Wrong": wrong,
        "Affinity": fixed, "Recording": gpu,
    }  # fmt: skip
    parts = [_result(name, result) for name, result in results.items()]
    parts.append(_table("Affinity.diff", fixed.diff(automatic)))
    parts.append(_table("CostModel.validation", costs.validation))
    predicted = {"automatic": costs.predict_us(automatic), "fixed": costs.predict_us(fixed)}
    parts.append(f"predicted µs: {_rounded(predicted)}")
    parts += ["## Profile.report", *profile.report().splitlines()[:20]]
    return "\n".join(parts)


def _result(name: str, result: Any) -> str:
    """Give the repr, and the tables with their first row."""
    lines = [f"## {name}", *repr(result).splitlines()]
    lines += getattr(result, "notes", ())
    tables: Mapping[str, pd.DataFrame] = getattr(result, "tables", {})
    parts = [_table(f"{name}.{table}", frame) for table, frame in tables.items()]
    return "\n".join([*lines, *parts])


def _table(name: str, frame: pd.DataFrame) -> str:
    first = frame.head(1).to_dict("records")
    row = f"\n    {_rounded(first[0])}" if first else ""
    return f"{name}, {len(frame)} rows: {_columns(frame)}{row}"


def _columns(frame: pd.DataFrame) -> str:
    return ", ".join(f"{name} {KINDS.get(kept.dtype.kind, 'text')}" for name, kept in frame.items())


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, float):
        return float(f"{value:.3g}")
    return value.item() if hasattr(value, "item") else value


# -- what is measured here ---------------------------------------------------------------------


def measurements() -> str:
    """Give columns, headers, names of files and masked words of a small profile and sweep."""
    core = core_with_acc(unsupported={"Softmax"})
    model = hl.load("digits_inception")
    greedy = hl.Affinity.automatic(model, "HETERO:ACC,CPU", core=core)
    fixed = greedy.fix(types={"Concat": "CPU"}, core=core)
    mine = hl.Placement(fixed, "mine", {"CPU": F32})
    partition = hl.partition(model, fixed, core=core)
    profile = hl.profile(model, mine, iterations=10, core=core)
    with tempfile.TemporaryDirectory() as scratch:
        there = Path(scratch)
        sweep = hl.sweep(
            model, {"greedy": greedy, "mine": mine}, turns=2, isolate=False, progress=False,
            store=there / "store", core=core,
        )  # fmt: skip
        trials = json.loads((there / "store" / "sweep.json").read_text())["entries"]
        for name, result in (("profile", profile), ("sweep", sweep)):
            result.export(there / f"{name}.export")
            result.to_csv(there / f"{name}.csv")
        profile.to_trace(there / "trace.json")
        hl.freeze(model, mine, there / "frozen", tolerance=None, core=core)
        hl.save(model, mine, there / "saved.xml", core=core)
        fixed.to_csv(there / "affinity.csv")
        files = sorted(path.relative_to(there) for path in there.rglob("*") if path.is_file())
        listed = [f"{path}{_header(there / path)}" for path in files]
        contract = json.loads((there / "frozen" / "contract.json").read_text())
    frames = {
        "devices": hl.devices(core=core),
        "support": hl.support(model, ["ACC", "CPU"], core=core),
        "lint": hl.lint(model, fixed, core=core),
        "blocks": hl.blocks(model),
        "samples": hl.samples(),
        "diff": fixed.diff(greedy),
        **{f"profile.{name}": frame for name, frame in profile.tables.items()},
        "sweep.summary": sweep.summary,
        "sweep.ranking": sweep.ranking,
        **{f"sweep.{name}": frame for name, frame in sweep.tables.items()},
    }
    lines = ["## Columns", *(f"{name}: {_columns(frame)}" for name, frame in frames.items())]
    lines += ["## Files", *listed, f"contract: {', '.join(contract)}"]
    lines += ["## Keys", *(f"{trial['label']}: {trial['key']}" for trial in trials)]
    lines += ["## Words"]
    lines += [repr(shown) for shown in (greedy, fixed, mine, partition)]
    lines += [_masked(repr(profile.latency)), _masked(repr(profile).splitlines()[1])]
    return "\n".join(lines)


def _header(path: Path) -> str:
    if path.suffix != ".csv":
        return ""
    return ": " + path.read_text("utf-8-sig").partition("\n")[0].strip()


def _masked(text: str) -> str:
    """Mask numbers with their units."""
    return re.sub(r"\d+([.,]\d+)*( [µm]?s\b)?", "#", text)


FILES: dict[str, Callable[[], str]] = {
    "names.txt": names,
    "commands.txt": commands,
    "recordings.txt": recordings,
    "measurements.txt": measurements,
}


def rewrite() -> None:
    """Write all files anew."""
    EXPECTED.mkdir(exist_ok=True)
    for name, text in FILES.items():
        (EXPECTED / name).write_text(f"{text().rstrip()}\n", encoding="utf-8")


if __name__ == "__main__":
    rewrite()
