"""Reports of OpenVINO's benchmark_app, as tables like those of a Profile.

The formats are those of ``openvino.tools.benchmark.utils.statistics_report``. Its CSV is
separated by semicolons and quotes nothing, so a name may hold semicolons and even line ends; the
five fields after it cannot.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from hetero_lab.backend.bound import bind
from hetero_lab.backend.emulation import emulated_devices
from hetero_lab.errors import ArgumentError, StoredFileError, names_at_hand, shorten, warn
from hetero_lab.experiments.results.profile.tables import COUNTER_COLUMNS, counter_rows
from hetero_lab.model.read import Source
from hetero_lab.placement.partition import Partition, one_subgraph, partition_of, reordered
from hetero_lab.placement.placement import BoundPlacement, PlacementLike, resolve
from hetero_lab.result import Result
from hetero_lab.runtime.counters import Counter, read_counters, unjoined
from hetero_lab.tables import Tables, frame_of

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd

HEAD = "layerName;execStatus;layerType;execType;realTime (ms);cpuTime (ms)"
# The attributes of ``openvino.ProfilingInfo``, in the order of HEAD.
_FIELDS = ["node_name", "status", "node_type", "exec_type", "real_time", "cpu_time"]
_JSON_FIELDS = ["name", "status", "node_type", "exec_type", "real_time", "cpu_time"]
_TIMES = ["real_time_us", "cpu_time_us"]
_COUNTERS = ("average_counters", "detailed_counters")
_KINDS = {  # by a file's name without its ending
    "benchmark_report": "report",
    **{f"benchmark_{kind}_report": kind for kind in _COUNTERS},
}
_SECTIONS = {  # in CSV, in JSON
    "Command line parameters": "cmd_options",
    "Configuration setup": "configuration_setup",
    "Execution results": "execution_results",
}
_PARTS = ("options", "settings", "results")
_FAULTS = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
           RecursionError, csv.Error)  # fmt: skip
_PERCENTILE = re.compile(r"latency \((\d+) percentile\) \(ms\)")

Settings: TypeAlias = "Mapping[str, Mapping[str, str]]"  # by part


@dataclass(frozen=True, eq=False)
class BenchmarkReport(Result):
    """A report of benchmark_app.

    Attributes
    ----------
    source
        The folder or file that was read.
    found
        The tables that are there: summary and settings of ``benchmark_report``, counters, and
        requests if each request has counters of its own.
    emulated
        The emulated devices among those that the counters name.
    """

    source: str
    found: Mapping[str, pd.DataFrame]
    emulated: tuple[str, ...] = ()

    @property
    def is_detailed(self) -> bool:
        """Whether each request has counters of its own."""
        return "requests" in self.found

    @property
    def counters(self) -> pd.DataFrame:
        """The mean counters of the requests that ran, as in ``profile.tables["counters"]``.

        Raises
        ------
        ArgumentError
            Only ``benchmark_report`` was there.
        """
        return self._table("counters", "-report_type average_counters")

    @property
    def summary(self) -> pd.DataFrame:
        """One row: latencies in µs (benchmark_app rounds to 10), throughput, start-up times.

        Raises
        ------
        ArgumentError
            There was no ``benchmark_report``.
        """
        return self._table("summary", "-report_type and -report_folder, and name the folder")

    @property
    def tables(self) -> Tables:
        """The tables among summary, settings, counters and requests that are there."""
        return Tables(self.found)

    def __repr__(self) -> str:
        kind = "detailed" if self.is_detailed else "average" if "counters" in self.found else "no"
        parts = [f"{kind} counters"]
        if "counters" in self.found:
            parts[0] += f" of {len(self.counters)} nodes"
        if "summary" in self.found and self.summary["per_second"].notna().all():
            parts.append(f"{self.summary['per_second'].iloc[0]:g} a second")
        return f"BenchmarkReport({shorten(self.source)}: {', '.join(parts)})"

    def _shown(self) -> dict[str, pd.DataFrame]:
        return {name: self.found[name] for name in ("summary", "counters") if name in self.found}

    def _table(self, name: str, way_out: str) -> pd.DataFrame:
        if name not in self.found:
            raise ArgumentError(
                f"{shorten(self.source)} has no {name}. Run benchmark_app with {way_out}."
            )
        return self.found[name]


def read_benchmark_app(
    file: str | os.PathLike[str],
    model: Source | None = None,
    placement: PlacementLike | None = None,
    *,
    core: ov.Core | None = None,
) -> BenchmarkReport:
    """Read the reports of ``benchmark_app -report_type … -report_folder …``, in CSV or JSON.

    Parameters
    ----------
    file
        The folder of one run, or one of its files.
    model
        The model that was measured, anything that :func:`hetero_lab.load` takes. With it the
        counters are joined to ops, fusion groups and boundaries, as those of a Profile are;
        without it ``kind`` is ``other``, and ``op``, ``fused_ops`` and ``tensor`` are empty.
    placement
        The placement that was measured; by default the device of ``benchmark_report``.

    Returns
    -------
    BenchmarkReport
        ``.counters``, ``.summary``, ``.tables``.

    Raises
    ------
    StoredFileError
        No report, one that is half written, or files of several runs.
    ArgumentError
        The model or the placement is not the one that was measured.
    MeasurementError
        With a model: no node was executed.
    """
    files = _find(file)
    tables: dict[str, pd.DataFrame] = {}
    target, emulated = "", ()
    if "report" in files:
        recorded = _read_settings(files["report"])
        target = recorded["settings"].get("target device", "")
        tables |= _settings_tables(recorded)
    kind = next((kind for kind in _COUNTERS if kind in files), "")
    if kind:
        nodes = _read_nodes(files[kind])
        if kind == "average_counters" and len(nodes) == 1 and _is_json(files[kind]):
            warn(
                f"{shorten(str(files[kind]))} has one node only: benchmark_app of OpenVINO 2026 "
                "writes no more of an average into JSON. Run it without -json_stats, or with "
                "-report_type detailed_counters."
            )
        placed = None
        if model is not None or placement is not None:
            placed = _placed(model, placement or target, core)
        requests, emulated = _requests(nodes, placed, target.removeprefix("HETERO:"))
        tables["counters"] = _mean(requests)
        if kind == "detailed_counters":
            tables["requests"] = requests
    return BenchmarkReport(os.fspath(file), tables, emulated)


def _placed(model: Source | None, placement: PlacementLike, core: ov.Core | None) -> BoundPlacement:
    """Bind the model and placement that were measured; ArgumentError if one is not named."""
    if model is None:
        raise ArgumentError("placement= says where a model ran: name it too, model=….")
    if not placement:
        raise ArgumentError(
            "Where it ran is in benchmark_report, which is not here. Name it: placement='CPU'."
        )
    return resolve(bind(model, core), placement)


def _requests(
    nodes: pd.DataFrame, placed: BoundPlacement | None, device: str
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Return the counters of each request, and the emulated devices among theirs.

    They are joined to the model if a placement is given; otherwise they ran on ``device``, which
    is unknown if it names several.
    """
    hetero = bool(nodes["node_name"].str.startswith("subgraph0: ").any())
    rows = [unjoined(node, hetero=hetero) for node in nodes.itertuples()]
    known: dict[tuple[int, str, int], Counter] = {}
    emulated: tuple[str, ...] = ()
    if placed is None:
        plain = "" if "," in device or ":" in device else device
        rows = [replace(row, device=plain) for row in rows]
    else:
        lengths = nodes.groupby("request").size()
        first = rows[: int(lengths.iloc[0])]
        partition = _as_it_ran(partition_of(placed), first, hetero)
        ran = nodes["status"].str.endswith("EXECUTED").groupby(nodes["request"]).any()
        longest = (lengths[ran] if ran.any() else lengths).idxmax()
        infos = nodes[nodes["request"] == longest].itertuples()
        known = dict(_keyed(read_counters(infos, partition, placed.graph)))
        used = {subgraph.device for subgraph in partition.subgraphs}
        emulated = tuple(d for d in emulated_devices(placed.core) if d in used)
    counters = []
    requests = itertools.groupby(zip(nodes["request"], rows, strict=True), itemgetter(0))
    for _, request in requests:
        for key, row in _keyed(row for _, row in request):
            times = {name: getattr(row, name) for name in ("status", *_TIMES)}
            counters.append(replace(known.get(key, row), **times))
    frame = frame_of(counter_rows(counters, emulated), COUNTER_COLUMNS)
    frame.insert(0, "request", nodes["request"])
    return frame, emulated


def _as_it_ran(predicted: Partition, rows: Sequence[Counter], hetero: bool) -> Partition:
    """Return the partition in the order of the counters; ArgumentError if these do not fit it."""
    if not hetero and predicted.n_subgraphs == 1:
        predicted = one_subgraph(predicted, predicted.subgraphs[0].device)
    where = predicted.subgraph_of
    known = {row.subgraph: where[row.node_name] for row in rows if row.node_name in where}
    if not known:
        raise ArgumentError(
            f"The counters are of another model: none of its nodes, {shorten(rows[0].node_name)} "
            "being the first, has the name of an op."
        )
    apart = any(
        where.get(row.node_name, known.get(row.subgraph)) != known.get(row.subgraph) for row in rows
    )
    n_subgraphs = 1 + max(row.subgraph for row in rows)
    left = [index for index in range(predicted.n_subgraphs) if index not in known.values()]
    unclear = len({predicted.subgraphs[index].device for index in left}) > 1
    same = n_subgraphs == predicted.n_subgraphs and hetero == bool(predicted.wiring)
    if apart or unclear or not same or len(set(known.values())) < len(known):
        raise ArgumentError(
            f"The counters are of another placement: {n_subgraphs} subgraphs "
            f"{'of HETERO' if hetero else 'without HETERO'}. That of "
            f"{', '.join(dict.fromkeys(s.device for s in predicted.subgraphs))} has "
            f"{predicted.n_subgraphs}, or cuts elsewhere. Name the one that was measured: "
            "placement=…."
        )
    if not hetero:
        return predicted
    unnamed = iter(left)
    order = [known[i] if i in known else next(unnamed) for i in range(n_subgraphs)]
    return reordered(predicted, order)


def _mean(requests: pd.DataFrame) -> pd.DataFrame:
    """Return the mean of each node over the requests that ran anything."""
    ran = (requests["status"] == "EXECUTED").groupby(requests["request"]).transform("any")
    busy = requests[ran] if ran.any() else requests
    # A name may occur several times in a subgraph.
    number = busy.groupby(["request", "subgraph", "node_name"]).cumcount()
    nodes = busy.groupby(["subgraph", "node_name", number], sort=False)
    mean = nodes.head(1).drop(columns="request")
    mean[_TIMES] = nodes[_TIMES].sum().to_numpy() / busy["request"].nunique()
    executed = (busy["status"] == "EXECUTED").groupby(nodes.ngroup()).transform("any")
    mean["status"] = mean["status"].mask(executed[mean.index], "EXECUTED")
    return mean.reset_index(drop=True)


def _keyed(rows: Iterable[Counter]) -> Iterator[tuple[tuple[int, str, int], Counter]]:
    """Give each row of a request its subgraph, its name, and which of that name it is."""
    seen: dict[tuple[int, str], int] = {}
    for row in rows:
        key = (row.subgraph, row.node_name)
        seen[key] = seen.get(key, -1) + 1
        yield (*key, seen[key]), row


def _settings_tables(recorded: Settings) -> dict[str, pd.DataFrame]:
    rows = [
        {"part": part, "name": name, "value": value}
        for part, values in recorded.items()
        for name, value in values.items()
    ]
    return {"summary": frame_of([_summary(recorded)]), "settings": frame_of(rows)}


def _summary(recorded: Settings) -> dict[str, Any]:
    settings, results = recorded["settings"], recorded["results"]

    def number(name: str, factor: float = 1.0) -> float | None:
        """Read a number; None for other texts, such as a batch size of ``dynamic``."""
        with contextlib.suppress(ValueError, KeyError):
            found = float({**settings, **results}[name])
            return found * factor if math.isfinite(found) else None

    def count(name: str) -> int | None:
        found = number(name)
        return None if found is None else int(found)

    percentile = next((int(m[1]) for key in results if (m := _PERCENTILE.fullmatch(key))), None)
    return {
        "model": settings.get("topology", ""),
        "target": settings.get("target device", ""),
        "api": settings.get("API", ""),
        "n_requests": count("number of parallel infer requests"),
        "batch_size": count("batch size"),
        "n_inferences": count("total number of iterations"),
        "median_us": number("latency (ms)", 1e3),
        "percentile": percentile,
        "percentile_us": number(f"latency ({percentile} percentile) (ms)", 1e3),
        "mean_us": number("avg latency", 1e3),
        "min_us": number("min latency", 1e3),
        "max_us": number("max latency", 1e3),
        "per_second": number("throughput"),
        "read_ms": number("read model time (ms)"),
        "compile_ms": number("compile model time (ms)"),
        "first_inference_ms": number("first inference time (ms)"),
        "total_ms": number("total execution time (ms)"),
    }


def _find(path: str | os.PathLike[str]) -> dict[str, Path]:
    """Return the files by kind: ``report`` and one of ``_COUNTERS``."""
    name = shorten(os.fspath(path))
    if not os.path.exists(path):
        raise StoredFileError(f"{name} does not exist.")
    if not os.path.isdir(path):
        return {_kind(Path(path)): Path(path)}
    there = [Path(path) / f"{stem}.{ending}" for stem in _KINDS for ending in ("csv", "json")]
    found = [file for file in there if file.is_file()]
    counters = [file for file in found if _KINDS[file.stem] in _COUNTERS]
    reports = [file for file in found if file not in counters]
    several = next((files for files in (reports, counters) if len(files) > 1), None)
    if several:
        raise StoredFileError(
            f"{name} holds reports of several runs: {names_at_hand([f.name for f in several])}. "
            "Name the file to read, or give each run a folder of its own."
        )
    if not found:
        raise StoredFileError(
            f"{name} holds no report of benchmark_app. It writes some with -report_type "
            f"average_counters (or detailed_counters, no_counters) -report_folder {name}."
        )
    return {_KINDS[file.stem]: file for file in found}


def _read_nodes(path: Path) -> pd.DataFrame:
    """Return one row a node: ``request`` and ``_FIELDS``; averages are one request."""
    with _one_error(path):
        read = _json_requests if _is_json(path) else _csv_requests
        rows = [
            (number, *node)
            for number, (nodes, total_ms) in enumerate(read(path))
            for node in _whole(nodes, total_ms)
        ]
        if not rows:
            raise ValueError("it holds no counters")
        return frame_of(rows, ["request", *_FIELDS])


def _read_settings(path: Path) -> Settings:
    """Return options as given, settings as used, and results."""
    with _one_error(path):
        sections = _json(path) if _is_json(path) else _csv_sections(path)
        if "execution_results" not in sections:
            raise ValueError("it has no execution results: half written, or another file")
        return {
            part: {name: str(value) for name, value in sections.get(key, {}).items()}
            for part, key in zip(_PARTS, _SECTIONS.values(), strict=True)
        }


def _kind(path: Path) -> str:
    """Tell by its name, or by its content if it was renamed, which report a file is."""
    if path.stem in _KINDS:
        return _KINDS[path.stem]
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
                return _COUNTERS[text.count(f"\n{HEAD}") > 0]
            if text.partition("\n")[0].strip() in _SECTIONS:
                return "report"
    raise StoredFileError(
        f"{shorten(str(path))} is not a report of benchmark_app. Known are benchmark_report, "
        "benchmark_average_counters_report and benchmark_detailed_counters_report, .csv or .json."
    )


def _csv_requests(path: Path) -> Iterator[tuple[list[list[Any]], Any]]:
    """Yield the nodes and the total time of each request."""
    text = _text(path)
    nodes: list[list[Any]] = []
    begun = ""  # the first lines of a name with line ends
    is_whole = False
    for row in _rows(text):
        # The program in C++ ends each line with a separator.
        fields = row[:-1] if len(row) > len(_FIELDS) and not row[-1] else row
        line = ";".join(fields)
        if line == HEAD:
            is_whole = False
            continue
        if len(fields) < len(_FIELDS):
            begun += f"{line}\n"
            continue
        name, values = begun + ";".join(fields[:-5]), fields[-5:]
        begun = ""
        if name == "Total" and not values[0]:
            yield nodes, values[3]
            nodes, is_whole = [], True
        else:
            nodes.append([name, *values])
    if nodes or begun.strip() or not is_whole or not text.endswith("\n"):
        raise ValueError("it is half written: its end is missing, or it is another file")


def _json_requests(path: Path) -> Iterator[tuple[list[list[Any]], Any]]:
    data = _json(path)
    every = data.get("detailed_performance")
    for request in [data["avg_performance"]] if every is None else every:
        nodes = [[node[key] for key in _JSON_FIELDS] for node in request["nodes"]]
        yield nodes, request["total_real_time"]


def _whole(nodes: Sequence[Sequence[Any]], total_ms: Any) -> list[tuple[Any, ...]]:
    """Return the nodes with their times, if they add up to the total, each rounded to 1 µs."""
    if not nodes:
        raise ValueError("it holds no counters")
    found = []
    for *texts, real, cpu in nodes:
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"node {texts[0]!r} is not whole")
        found.append((*texts, *(timedelta(milliseconds=float(ms)) for ms in (real, cpu))))
    missing = timedelta(milliseconds=float(total_ms)) - sum((n[-2] for n in found), timedelta())
    if abs(missing) > timedelta(microseconds=0.5) * (len(found) + 3):
        raise ValueError(f"its {len(found)} rows do not add up to its total")
    return found


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
    """Turn any fault of a file into one kind of error, which names the file."""
    try:
        yield
    except _FAULTS as error:
        fact = f"it has no {error}" if isinstance(error, KeyError) else error
        raise StoredFileError(
            f"{shorten(str(path))} cannot be read as a report of benchmark_app: {fact}. "
            "Run benchmark_app again."
        ) from error
