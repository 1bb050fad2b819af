"""The report files of OpenVINO's benchmark_app: which there are, and their contents.

The formats are those of ``openvino.tools.benchmark.utils.statistics_report``. Its CSV is
separated by semicolons and quotes nothing, so a name may hold semicolons and even line ends; the
five fields behind it cannot.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from hetero_lab.errors import StoredFileError, names_at_hand, shorten

COUNTERS = ("average_counters", "detailed_counters")
HEAD = "layerName;execStatus;layerType;execType;realTime (ms);cpuTime (ms)"
_N_FIELDS = 6
_SECTIONS = {  # as in CSV, as in JSON
    "Command line parameters": "cmd_options",
    "Configuration setup": "configuration_setup",
    "Execution results": "execution_results",
}
_FAULTS = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
           RecursionError, csv.Error)  # fmt: skip
Nodes = tuple["ReportedNode", ...]


@dataclass(frozen=True, slots=True)
class ReportedNode:
    """One node of a report, with the attributes of ``openvino.ProfilingInfo``."""

    node_name: str
    status: str
    node_type: str
    exec_type: str
    real_time: timedelta
    cpu_time: timedelta


@dataclass(frozen=True)
class Settings:
    """The contents of ``benchmark_report``: options as given, settings as used, and results."""

    options: Mapping[str, str]
    settings: Mapping[str, str]
    results: Mapping[str, str]


def find(path: str | os.PathLike[str]) -> dict[str, Path]:
    """Return which reports there are: ``report`` and one of ``COUNTERS``, each with its file.

    Raises
    ------
    StoredFileError
        There is none, or there are several of a kind.
    """
    name = shorten(os.fspath(path))
    if not os.path.exists(path):
        raise StoredFileError(f"{name} does not exist.")
    if not os.path.isdir(path):
        return {_kind(Path(path)): Path(path)}
    stems = {kind: f"benchmark_{kind}_report" for kind in COUNTERS}
    stems["report"] = "benchmark_report"
    there = {kind: _of_stem(Path(path), stem) for kind, stem in stems.items()}
    counters = [file for kind in COUNTERS for file in there[kind]]
    several = next((files for files in (there["report"], counters) if len(files) > 1), None)
    if several:
        raise StoredFileError(
            f"{name} holds reports of several runs: {names_at_hand([f.name for f in several])}. "
            "Name the file to read, or give each run a folder of its own."
        )
    found = {kind: files[0] for kind, files in there.items() if files}
    if not found:
        raise StoredFileError(
            f"{name} holds no report of benchmark_app. It writes some with -report_type "
            f"average_counters (or detailed_counters, no_counters) -report_folder {name}."
        )
    return found


def read_counters(path: Path) -> tuple[Nodes, ...]:
    """Read the nodes of each request; of averages there is one.

    Raises
    ------
    StoredFileError
        The file is not such a report, or only a part of one.
    """
    with _one_error(path):
        requests = tuple(_json_requests(path) if _is_json(path) else _csv_requests(path))
        if not requests or not all(requests):
            raise ValueError("it holds no counters")
        return requests


def read_settings(path: Path) -> Settings:
    """Read options, settings and results.

    Raises
    ------
    StoredFileError
        The file is not such a report, or only a part of one.
    """
    with _one_error(path):
        sections = _json(path) if _is_json(path) else _csv_sections(path)
        if "execution_results" not in sections:
            raise ValueError("it has no execution results: half written, or another file")
        options, settings, results = (
            {name: str(value) for name, value in sections.get(key, {}).items()}
            for key in _SECTIONS.values()
        )
        return Settings(options, settings, results)


def _of_stem(folder: Path, stem: str) -> list[Path]:
    files = (folder / f"{stem}.{ending}" for ending in ("csv", "json"))
    return [file for file in files if file.is_file()]


def _kind(path: Path) -> str:
    """Tell by its name, or by its content where it was renamed, which report a file is."""
    by_name = {f"benchmark_{kind}_report": kind for kind in COUNTERS}
    by_name["benchmark_report"] = "report"
    if path.stem in by_name:
        return by_name[path.stem]
    with _one_error(path):
        if _is_json(path):
            data = _json(path)
            if data.get("report_type") in ("average", "detailed"):
                return f"{data['report_type']}_counters"
            if "execution_results" in data:
                return "report"
        else:
            text = _text(path)
            if text.startswith(HEAD):
                return COUNTERS[text.count(f"\n{HEAD}") > 0]
            if text.partition("\n")[0].strip() in _SECTIONS:
                return "report"
    raise StoredFileError(
        f"{shorten(str(path))} is not a report of benchmark_app. Known are benchmark_report, "
        "benchmark_average_counters_report and benchmark_detailed_counters_report, .csv or .json."
    )


def _csv_requests(path: Path) -> Iterator[Nodes]:
    text = _text(path)
    nodes: list[ReportedNode] = []
    begun = ""  # of a name with line ends
    for row in _rows(text):
        fields = row[:-1] if len(row) > _N_FIELDS and not row[-1] else row  # C++ ends each with ;
        line = ";".join(fields)
        if line == HEAD:
            continue
        if len(fields) < _N_FIELDS:
            begun += f"{line}\n"
            continue
        name, values = begun + ";".join(fields[:-5]), fields[-5:]
        begun = ""
        if name == "Total" and not values[0]:
            yield _whole(nodes, values[3])
            nodes = []
        else:
            nodes.append(_node(name, *values))
    if nodes or begun.strip() or not text.endswith("\n"):
        raise ValueError("it is half written: its end is missing, or it is another file")


def _json_requests(path: Path) -> Iterator[Nodes]:
    data = _json(path)
    every = data.get("detailed_performance")
    keys = ("name", "status", "node_type", "exec_type", "real_time", "cpu_time")
    for request in [data["avg_performance"]] if every is None else every:
        nodes = [_node(*(node[key] for key in keys)) for node in request["nodes"]]
        yield _whole(nodes, request["total_real_time"])


def _csv_sections(path: Path) -> dict[str, dict[str, str]]:
    text = _text(path)
    sections: dict[str, dict[str, str]] = {}
    current = ""
    for name, *values in _rows(text):
        if not values and name in _SECTIONS:
            current = _SECTIONS[name]
            sections[current] = {}
        elif values and current:
            sections[current].setdefault(name, ";".join(values))
        elif name.strip():
            raise ValueError(f"it holds {shorten(name, 60)}: half written, or another file")
    if not text.endswith(("\n\n", "\n\r\n")):
        raise ValueError("it is half written: its end is missing")
    return sections


def _rows(text: str) -> Iterator[list[str]]:
    lines = (line.rstrip("\r") for line in text.split("\n"))
    rows = csv.reader(lines, delimiter=";", quoting=csv.QUOTE_NONE)
    return (row for row in rows if row)


def _node(name: str, status: str, node_type: str, exec_type: str, *ms: Any) -> ReportedNode:
    if not all(isinstance(text, str) for text in (name, status, node_type, exec_type)):
        raise ValueError(f"node {name!r} is not whole")
    real, cpu = (timedelta(milliseconds=float(value)) for value in ms)
    return ReportedNode(name, status, node_type, exec_type, real, cpu)


def _whole(nodes: list[ReportedNode], total_ms: Any) -> Nodes:
    """Return the nodes if they add up to the total that was written, each rounded to 1 µs."""
    total = timedelta(milliseconds=float(total_ms))
    missing = total - sum((node.real_time for node in nodes), timedelta())
    if abs(missing) > timedelta(microseconds=0.5) * (len(nodes) + 3):
        raise ValueError(f"its {len(nodes)} rows do not add up to its total")
    return tuple(nodes)


def _is_json(path: Path) -> bool:
    return path.suffix.lower() == ".json"


def _json(path: Path) -> dict[str, Any]:
    data = json.loads(_text(path))
    if not isinstance(data, dict):
        raise ValueError("it is not a JSON object")
    return data


def _text(path: Path) -> str:
    text = path.read_bytes().decode("utf-8-sig")
    if not text.strip():
        raise ValueError("it is empty")
    return text


@contextlib.contextmanager
def _one_error(path: Path) -> Iterator[None]:
    """Whatever is wrong with a file is one kind of error, which names it."""
    try:
        yield
    except _FAULTS as error:
        fact = f"it has no {error}" if isinstance(error, KeyError) else error
        raise StoredFileError(
            f"{shorten(str(path))} cannot be read as a report of benchmark_app: {fact}. "
            "Run benchmark_app again."
        ) from error
