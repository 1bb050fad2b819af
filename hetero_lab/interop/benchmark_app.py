"""Reports of OpenVINO's benchmark_app, as tables like those of a Profile.

The formats are those of ``openvino.tools.benchmark.utils.statistics_report``. Its CSV is
separated by semicolons and quotes nothing, so a name may hold semicolons and even line ends; the
five fields after it cannot.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetero_lab.devices.core import bases_of, bind
from hetero_lab.errors import ArgumentError, StoredFileError, shorten, warn
from hetero_lab.model.read import Source
from hetero_lab.placement.partition import Partition, observed_partition, one_subgraph, partition_of
from hetero_lab.placement.placement import BoundPlacement, PlacementLike, resolve
from hetero_lab.result import Result
from hetero_lab.results.profile_tables import COUNTER_COLUMNS, counter_rows
from hetero_lab.runtime.counters import Counter, raw_counter, read_counters
from hetero_lab.tables import Tables, check_values, frame_of, read_bytes, reading

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd

_HALF_WRITTEN = "it is half written. Run benchmark_app again."
HEAD = "layerName;execStatus;layerType;execType;realTime (ms);cpuTime (ms)"
# The program in C++ ends each line with a separator.
_REQUEST = re.compile(rf"^{re.escape(HEAD)};?\r?\n", re.MULTILINE)
_NODE = re.compile(r"(.*?);([^;\n]*);([^;\n]*);([^;\n]*);([\d.]+);([\d.]+);?\r?\n", re.DOTALL)
# The attributes of ``openvino.ProfilingInfo`` in the order of HEAD, and their keys in JSON.
_FIELDS = ["node_name", "status", "node_type", "exec_type", "real_time", "cpu_time"]
_KEYS = ["name", *_FIELDS[1:]]
_TIMES = ["real_time", "cpu_time"]
_TITLES = {  # of a section in CSV: its key in JSON, its part in the table
    "Command line parameters": ("cmd_options", "options"),
    "Configuration setup": ("configuration_setup", "settings"),
    "Execution results": ("execution_results", "results"),
}
_SECTION = re.compile(rf"^({'|'.join(_TITLES)})\r?\n", re.MULTILINE)
_PERCENTILE = re.compile(r"latency \((\d+) percentile\) \(ms\)")
_NUMBERS = {  # column of the summary: name in the report, where times are in ms
    "n_requests": "number of parallel infer requests",
    "batch_size": "batch size",
    "n_inferences": "total number of iterations",
    "median_us": "latency (ms)",
    "percentile": "percentile",
    "percentile_us": "percentile latency",
    "mean_us": "avg latency",
    "min_us": "min latency",
    "max_us": "max latency",
    "per_second": "throughput",
    "read_ms": "read model time (ms)",
    "compile_ms": "compile model time (ms)",
    "first_inference_ms": "first inference time (ms)",
    "total_ms": "total execution time (ms)",
}


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
        Emulated device that the counters name → the device that runs it.
    """

    source: str
    found: Mapping[str, pd.DataFrame]
    emulated: Mapping[str, str] = field(default_factory=dict)

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

    def _front_tables(self) -> dict[str, pd.DataFrame]:
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
    reports: dict[str, pd.DataFrame] = {}
    for path in _files(file):
        kind, frame = _read(path)
        if reports.keys() & ({kind} if kind == "settings" else {"average", "detailed"}):
            raise StoredFileError(
                f"{shorten(os.fspath(file))} holds reports of several runs. Name the file to read, "
                "or give each run a folder of its own."
            )
        reports[kind] = frame
    tables: dict[str, pd.DataFrame] = {}
    target, emulated = "", {}
    if (settings := reports.pop("settings", None)) is not None:
        with reading(file, "report of benchmark_app"):
            summary = _summary(settings)
            check_values(summary)
        target = summary["target"]
        tables = {"summary": frame_of([summary]), "settings": settings}
    for kind, nodes in reports.items():
        bound_placement = None
        if model is not None or placement is not None:
            bound_placement = _bind(model, placement or target, core)
        counters, emulated = _join(nodes, bound_placement, target.removeprefix("HETERO:"))
        tables["counters"] = counters.reset_index(drop=True)
        if kind == "detailed":
            tables["requests"] = _requests(nodes, counters)
    return BenchmarkReport(os.fspath(file), tables, emulated)


def _bind(model: Source | None, placement: PlacementLike, core: ov.Core | None) -> BoundPlacement:
    """Bind the model and placement that were measured; ArgumentError if one is not named."""
    if model is None:
        raise ArgumentError("placement= says where a model ran: name it too, model=….")
    if not placement:
        raise ArgumentError(
            "Where it ran is in benchmark_report, which is not here. Name it: placement='CPU'."
        )
    return resolve(bind(model, core), placement)


def _join(
    nodes: pd.DataFrame, placement: BoundPlacement | None, device: str
) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return the mean counters, by the number of the node, and the bases of emulated devices.

    They are joined to the model if a placement is given; otherwise they ran on ``device``, which
    is unknown if it names several.
    """
    mean = _mean(nodes)
    hetero = bool(mean["node_name"].str.startswith("subgraph0: ").any())
    rows = [raw_counter(node, hetero=hetero) for node in mean.itertuples()]
    emulated: dict[str, str] = {}
    if placement is None:
        plain = "" if "," in device or ":" in device else device
        rows = [replace(row, device=plain) for row in rows]
    else:
        partition = _as_it_ran(partition_of(placement), rows, hetero)
        rows = read_counters(mean.itertuples(), partition, placement.graph)
        emulated = bases_of((subgraph.device for subgraph in partition.subgraphs), placement.core)
    counters = frame_of(counter_rows(rows, emulated), COUNTER_COLUMNS)
    return counters.set_index(mean.index), emulated


def _mean(nodes: pd.DataFrame) -> pd.DataFrame:
    """Return the mean of each node over the requests that ran anything, by subgraph."""
    n_ran = nodes.loc[nodes["status"] == "EXECUTED", "request"].nunique()
    each = nodes.groupby("node", sort=False)
    mean = each.first()
    mean["status"] = each["status"].min()  # in the alphabet, EXECUTED is the first
    mean[_TIMES] = each[_TIMES].sum() / max(n_ran, 1)
    subgraph = mean["node_name"].str.extract(r"^subgraph(\d+): ")[0].fillna("0").astype(int)
    return mean.loc[subgraph.sort_values(kind="stable").index]


def _requests(nodes: pd.DataFrame, counters: pd.DataFrame) -> pd.DataFrame:
    requests = counters.loc[nodes["node"]].reset_index(drop=True)
    requests["status"] = nodes["status"]
    for name in _TIMES:
        requests[f"{name}_us"] = nodes[name].dt.total_seconds() * 1e6
    requests.insert(0, "request", nodes["request"])
    return requests


def _as_it_ran(predicted: Partition, rows: Sequence[Counter], hetero: bool) -> Partition:
    """Return the partition in the order of the counters; ArgumentError if these do not fit it."""
    if not hetero and predicted.n_subgraphs == 1:
        predicted = one_subgraph(predicted, predicted.subgraphs[0].device)
    where = predicted.subgraph_of
    pairs = {(row.subgraph, where[row.node_name]) for row in rows if row.node_name in where}
    if not pairs:
        raise ArgumentError(
            f"The counters are of another model: none of its nodes, {shorten(rows[0].node_name)} "
            "being the first, has the name of an op."
        )
    number_of = dict(pairs)
    n_subgraphs = 1 + max(row.subgraph for row in rows)
    others = [index for index in range(predicted.n_subgraphs) if index not in number_of.values()]
    one_to_one = len(pairs) == len(number_of) == len(set(number_of.values()))
    clear = len({predicted.subgraphs[index].device for index in others}) <= 1
    same = n_subgraphs == predicted.n_subgraphs and hetero == bool(predicted.wiring)
    if not (one_to_one and clear and same):
        raise ArgumentError(
            f"The counters are of another placement: {n_subgraphs} subgraphs "
            f"{'of HETERO' if hetero else 'without HETERO'}. That of "
            f"{', '.join(dict.fromkeys(s.device for s in predicted.subgraphs))} has "
            f"{predicted.n_subgraphs}, or cuts elsewhere. Name the one that was measured: "
            "placement=…."
        )
    unnamed = iter(others)
    order = [number_of[i] if i in number_of else next(unnamed) for i in range(n_subgraphs)]
    return observed_partition(predicted, order) if hetero else predicted


def _summary(recorded: pd.DataFrame) -> dict[str, Any]:
    rows = recorded[recorded["part"] != "options"]
    texts = dict(zip(rows["name"], rows["value"], strict=True))
    for match in filter(None, map(_PERCENTILE.fullmatch, list(texts))):
        texts |= {"percentile": match[1], "percentile latency": texts[match[0]]}
    names = {"model": "topology", "target": "target device", "api": "API"}
    summary: dict[str, Any] = {column: texts.get(name, "") for column, name in names.items()}
    for column, name in _NUMBERS.items():
        text = texts.get(name, "")
        if not re.fullmatch(r"\d+(\.\d+)?", text):  # such as a batch size of "dynamic"
            summary[column] = None
        elif column.endswith(("_us", "_ms", "_second")):
            summary[column] = float(text) * (1e3 if column.endswith("_us") else 1.0)
        else:
            summary[column] = int(text)
    return summary


def _files(path: str | os.PathLike[str]) -> list[Path]:
    name = shorten(os.fspath(path))
    if not os.path.exists(path):
        raise StoredFileError(f"{name} does not exist.")
    if not os.path.isdir(path):
        return [Path(path)]
    kinds = ("", "_average_counters", "_detailed_counters")
    there = [f"benchmark{kind}_report.{end}" for kind in kinds for end in ("csv", "json")]
    files = [file for each in there if (file := Path(path) / each).is_file()]
    if not files:
        raise StoredFileError(
            f"{name} holds no report of benchmark_app. It writes some with -report_type "
            f"average_counters (or detailed_counters, no_counters) -report_folder {name}."
        )
    return files


def _read(path: Path) -> tuple[str, pd.DataFrame]:
    """Return ``settings``, ``average`` or ``detailed``, and the rows of that report."""
    with reading(path, "report of benchmark_app"):
        text = read_bytes(path).decode("utf-8-sig")
        if path.suffix.lower() == ".json":
            return _read_json(json.loads(text), path)
        if _SECTION.match(text):
            _, *pieces = _SECTION.split(text)
            lines = zip(pieces[::2], map(str.splitlines, pieces[1::2]), strict=True)
            rows = [
                (_TITLES[title][1], *line.partition(";")[::2])
                for title, of_it in lines
                for line in filter(None, of_it)
            ]
            return "settings", _settings(rows, text.endswith(("\n\n", "\n\r\n")))
        requests = [_csv_nodes(part) for part in _REQUEST.split(text)[1:]]
        is_detailed = "detailed" in path.name or len(requests) > 1
        return "detailed" if is_detailed else "average", _nodes(requests)


def _read_json(data: Any, path: Path) -> tuple[str, pd.DataFrame]:
    if "execution_results" in data:
        parts = [(part, data.get(key, {})) for key, part in _TITLES.values()]
        rows = [(part, name, str(value)) for part, of_it in parts for name, value in of_it.items()]
        return "settings", _settings(rows, True)
    kind = data["report_type"]
    report = data[{"average": "avg_performance", "detailed": "detailed_performance"}[kind]]
    requests = report if kind == "detailed" else [report]
    nodes = _nodes([[tuple(n[key] for key in _KEYS) for n in r["nodes"]] for r in requests])
    if kind == "average" and len(nodes) == 1:
        warn(
            f"{shorten(str(path))} has one node only: benchmark_app of OpenVINO 2026 "
            "writes no more of an average into JSON. Run it without -json_stats, or with "
            "-report_type detailed_counters."
        )
    return kind, nodes


def _settings(rows: Sequence[tuple[str, ...]], is_whole: bool) -> pd.DataFrame:
    """Return a row per name: ``part``, ``name`` and ``value`` as it is written."""
    settings = frame_of(rows, ["part", "name", "value"])
    if not (is_whole and (settings["part"] == "results").any()):
        raise ValueError(_HALF_WRITTEN)
    return settings.drop_duplicates(["part", "name"], ignore_index=True)


def _csv_nodes(text: str) -> list[tuple[str, ...]]:
    """Return the nodes of one request, whose last row is their total."""
    nodes = _NODE.findall(text)
    if not nodes or nodes[-1][:4] != ("Total", "", "", "") or _NODE.sub("", text).strip():
        raise ValueError(_HALF_WRITTEN)
    return nodes[:-1]


def _nodes(requests: Sequence[Sequence[tuple[str, ...]]]) -> pd.DataFrame:
    """Return a row per node: ``request``, ``_FIELDS``, and ``node``, its number in all requests."""
    import pandas as pd

    rows = [(number, *node) for number, nodes in enumerate(requests) for node in nodes]
    if not rows:
        raise ValueError(
            "it holds no counters. Known are benchmark_report, benchmark_average_counters_report "
            "and benchmark_detailed_counters_report, .csv or .json."
        )
    frame = frame_of(rows, ["request", *_FIELDS])
    texts = frame[[name for name in _FIELDS if name not in _TIMES]]
    if not texts.map(lambda value: isinstance(value, str)).all(axis=None):
        raise ValueError("a node of it has no name, type or status.")
    frame["status"] = frame["status"].str.removeprefix("Status.")
    for name in _TIMES:
        # In whole microseconds, as some versions of pandas have it, a mean would be cut off.
        frame[name] = pd.to_timedelta(frame[name].astype(float), unit="ms").dt.as_unit("ns")
    # A name may occur several times in a subgraph.
    number = frame.groupby(["request", "node_name"]).cumcount()
    frame["node"] = frame.groupby(["node_name", number], sort=False).ngroup()
    return frame
