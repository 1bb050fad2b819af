"""The report files of OpenVINO's benchmark_app, read strictly: what is half written is refused.

The formats are those of ``openvino.tools.benchmark.utils.statistics_report``. Its CSV is
separated by semicolons and quotes nothing, so a name may hold semicolons and even line ends; the
five fields behind it cannot.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from hetero_lab.errors import StoredFileError, names_at_hand, shorten

COUNTERS = ("average_counters", "detailed_counters")
_MOST_BYTES = 1 << 28
HEAD = "layerName;execStatus;layerType;execType;realTime (ms);cpuTime (ms)"
_MS = re.compile(r"[0-9]{1,12}(\.[0-9]+)?")
_STATUS = re.compile(r"(Status\.)?[A-Z][A-Z_]*")
_SECTIONS = {  # as in CSV, as in JSON
    "Command line parameters": "cmd_options",
    "Configuration setup": "configuration_setup",
    "Execution results": "execution_results",
}


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
    """What ``benchmark_report`` says: options as given, settings as used, and results."""

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
    found: dict[str, Path] = {}
    counters: list[str] = []
    for kind in ("report", *COUNTERS):
        stem = "benchmark_report" if kind == "report" else f"benchmark_{kind}_report"
        files = [Path(path) / f"{stem}.{ending}" for ending in ("csv", "json")]
        there = [file for file in files if file.is_file()]
        if len(there) > 1:
            _several(name, [file.name for file in there])
        if there:
            found[kind] = there[0]
            counters += [there[0].name] * (kind != "report")
    if len(counters) > 1:
        _several(name, counters)
    if not found:
        raise StoredFileError(
            f"{name} holds no report of benchmark_app. It writes some with -report_type "
            f"average_counters (or detailed_counters, no_counters) -report_folder {name}."
        )
    return found


def read_counters(path: Path) -> tuple[tuple[ReportedNode, ...], ...]:
    """Read the nodes of each request; of averages there is one.

    Raises
    ------
    StoredFileError
        The file is no such report, or only a part of one.
    """
    requests = _json_requests(path) if _is_json(path) else _csv_requests(path)
    if not requests:
        raise _broken(path, "holds no counters")
    return requests


def read_settings(path: Path) -> Settings:
    """Read options, settings and results.

    Raises
    ------
    StoredFileError
        The file is no such report, or only a part of one.
    """
    sections = _json_sections(path) if _is_json(path) else _csv_sections(path)
    if "execution_results" not in sections:
        raise _broken(path, "has no execution results: half written, or another file")
    return Settings(
        sections.get("cmd_options", {}),
        sections.get("configuration_setup", {}),
        sections["execution_results"],
    )


def _kind(path: Path) -> str:
    for kind in COUNTERS:
        if path.stem == f"benchmark_{kind}_report":
            return kind
    if path.stem == "benchmark_report":
        return "report"
    text = _text(path)
    if _is_json(path):
        data = _json(path)
        if data.get("report_type") in ("average", "detailed"):
            return f"{data['report_type']}_counters"
        if "execution_results" in data:
            return "report"
    elif text.startswith(HEAD):
        return COUNTERS[text.count(f"\n{HEAD}") > 0]
    elif text.partition("\n")[0].strip() in _SECTIONS:
        return "report"
    raise StoredFileError(
        f"{shorten(str(path))} is no report of benchmark_app. Known are benchmark_report, "
        "benchmark_average_counters_report and benchmark_detailed_counters_report, .csv or .json."
    )


def _csv_requests(path: Path) -> tuple[tuple[ReportedNode, ...], ...]:
    requests: list[tuple[ReportedNode, ...]] = []
    text = _text(path)
    lines = iter(enumerate(text.split("\n"), start=1))
    for number, line in lines:
        if not line.strip():
            continue
        if line.rstrip(";\r") != HEAD:
            raise _broken(path, f"line {number} is {shorten(line, 60)} and not {HEAD!r}")
        nodes, total = _csv_nodes(path, lines)
        _check_total(path, nodes, total)
        requests.append(nodes)
    if not text.endswith("\n"):
        raise _broken(path, "is half written: its last line has no end")
    return tuple(requests)


def _csv_nodes(
    path: Path, lines: Iterator[tuple[int, str]]
) -> tuple[tuple[ReportedNode, ...], timedelta]:
    """Return the nodes up to the line of totals, and the total of their real times."""
    nodes: list[ReportedNode] = []
    begun, row = 0, ""
    for number, line in lines:
        begun, row = (begun, f"{row}\n{line}") if begun else (number, line)
        fields = row.rstrip("\r").removesuffix(";").rsplit(";", 5)
        if len(fields) != 6 or not all(_MS.fullmatch(field) for field in fields[4:]):
            continue  # the name has a line end
        name, status, node_type, exec_type = fields[:4]
        real, cpu = (_milliseconds(field) for field in fields[4:])
        if (name, status) == ("Total", ""):
            return tuple(nodes), real
        if not _STATUS.fullmatch(status):
            continue
        nodes.append(ReportedNode(name, status, node_type, exec_type, real, cpu))
        begun, row = 0, ""
    where = f"from line {begun} on there is no whole row" if row.strip() else "its end is missing"
    raise _broken(path, f"is half written: {where}")


def _json_requests(path: Path) -> tuple[tuple[ReportedNode, ...], ...]:
    data = _json(path)
    key = {"average": "avg_performance", "detailed": "detailed_performance"}.get(
        str(data.get("report_type"))
    )
    if key is None or key not in data:
        raise _broken(path, "has neither average nor detailed counters")
    every = data[key] if key == "detailed_performance" else [data[key]]
    try:
        requests = []
        for request in every:
            nodes = tuple(_json_node(node) for node in request["nodes"])
            _check_total(path, nodes, _milliseconds(request["total_real_time"]))
            requests.append(nodes)
        return tuple(requests)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _broken(path, f"has a node that is not whole ({error})") from error


def _json_node(node: Mapping[str, Any]) -> ReportedNode:
    texts = [node[key] for key in ("name", "status", "node_type", "exec_type")]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a name that is no text")
    name, status, node_type, exec_type = texts
    real, cpu = (_milliseconds(node[key]) for key in ("real_time", "cpu_time"))
    return ReportedNode(name, status, node_type, exec_type, real, cpu)


def _csv_sections(path: Path) -> dict[str, dict[str, str]]:
    text = _text(path)
    sections: dict[str, dict[str, str]] = {}
    current: dict[str, str] | None = None
    for number, line in enumerate(text.split("\n"), start=1):
        key, semicolon, value = line.rstrip("\r").partition(";")
        if not semicolon and key in _SECTIONS:
            current = sections.setdefault(_SECTIONS[key], {})
        elif semicolon and current is not None:
            current.setdefault(key, value)
        elif line.strip():
            raise _broken(path, f"line {number} is {shorten(line, 60)}: half written, or another")
    if not text.endswith(("\n\n", "\n\r\n")):
        raise _broken(path, "is half written: its end is missing")
    return sections


def _json_sections(path: Path) -> dict[str, dict[str, str]]:
    data = _json(path)
    sections = {key: data[key] for key in _SECTIONS.values() if key in data}
    if not all(isinstance(section, dict) for section in sections.values()):
        raise _broken(path, "has a section that is no list of names and values")
    return {key: {k: str(v) for k, v in section.items()} for key, section in sections.items()}


def _check_total(path: Path, nodes: tuple[ReportedNode, ...], total: timedelta) -> None:
    """Raise unless the rows add up to the total that was written, each rounded to 1 µs."""
    missing = total - sum((node.real_time for node in nodes), timedelta())
    if not nodes or abs(missing) > timedelta(microseconds=0.5) * (len(nodes) + 3):
        raise _broken(path, f"is not whole: its {len(nodes)} rows do not add up to its total")


def _milliseconds(given: Any) -> timedelta:
    value = float(given)
    if isinstance(given, bool) or not math.isfinite(value) or not 0 <= value < 1e12:
        raise ValueError(f"{given!r} is no time")
    return timedelta(milliseconds=value)


def _is_json(path: Path) -> bool:
    return path.suffix.lower() == ".json"


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise _broken(path, f"is no JSON, or half written ({error})") from error
    if not isinstance(data, dict):
        raise _broken(path, "is no JSON object")
    return data


def _text(path: Path) -> str:
    try:
        if os.path.getsize(path) > _MOST_BYTES:
            raise _broken(path, "is larger than 256 MiB")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise StoredFileError(f"{shorten(str(path))} cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise _broken(path, "is no text") from error
    if not text.strip():
        raise _broken(path, "is empty")
    return text


def _several(name: str, files: list[str]) -> NoReturn:
    raise StoredFileError(
        f"{name} holds reports of several runs: {names_at_hand(files)}. Name the file to read, "
        "or give each run a folder of its own."
    )


def _broken(path: Path, fact: str) -> StoredFileError:
    return StoredFileError(
        f"{shorten(str(path))} cannot be read as a report of benchmark_app: it {fact}. "
        "Run benchmark_app again."
    )
