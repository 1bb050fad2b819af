"""Reports of OpenVINO's benchmark_app, as tables like those of a Profile."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hetero_lab.backend.bound import bind
from hetero_lab.backend.emulation import emulated_devices
from hetero_lab.errors import ArgumentError, shorten, warn
from hetero_lab.experiments.interop import report_files
from hetero_lab.experiments.interop.report_files import ReportedNode, Settings
from hetero_lab.experiments.results.profile.tables import COUNTER_COLUMNS, counter_rows
from hetero_lab.model.read import Source
from hetero_lab.placement.partition import (
    Partition,
    one_subgraph,
    partition_of,
    reordered,
)
from hetero_lab.placement.placement import BoundPlacement, PlacementLike, resolve
from hetero_lab.result import Result
from hetero_lab.runtime.counters import Counter, read_counters, unjoined
from hetero_lab.tables import Tables

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd

_PERCENTILE = re.compile(r"latency \((\d+) percentile\) \(ms\)")


@dataclass(frozen=True)
class BenchmarkReport(Result):
    """A report of benchmark_app.

    Attributes
    ----------
    source
        The folder or file that was read.
    counters_of
        The counters of each request; of averages there is one. Empty without counters.
    is_detailed
        Whether each request has counters of its own.
    recorded
        Options, settings and results as benchmark_app wrote them; ``None`` without
        ``benchmark_report``.
    mean_counters
        The mean over the requests that ran.
    emulated
        The emulated devices among those that the counters name.
    """

    source: str
    counters_of: tuple[tuple[Counter, ...], ...]
    is_detailed: bool
    recorded: Settings | None
    mean_counters: tuple[Counter, ...]
    emulated: tuple[str, ...] = ()

    @property
    def counters(self) -> pd.DataFrame:
        """The counters, with the columns of ``profile.tables["counters"]``.

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

    @cached_property
    def tables(self) -> Tables:
        """Summary, settings, counters, and requests if each has counters: those that are there."""
        import pandas as pd

        tables = Tables()
        if self.recorded is not None:
            tables["summary"] = pd.DataFrame([_summary(self.recorded)])
            tables["settings"] = pd.DataFrame(
                [
                    {"part": part, "name": name, "value": value}
                    for part in ("options", "settings", "results")
                    for name, value in getattr(self.recorded, part).items()
                ]
            )
        if self.counters_of:
            rows = counter_rows(self.mean_counters, self.emulated)
            tables["counters"] = pd.DataFrame(rows, columns=COUNTER_COLUMNS)
        if self.is_detailed:
            rows = [
                {"request": number, **row}
                for number, counters in enumerate(self.counters_of)
                for row in counter_rows(counters, self.emulated)
            ]
            tables["requests"] = pd.DataFrame(rows, columns=["request", *COUNTER_COLUMNS])
        return tables

    def __repr__(self) -> str:
        kind = "detailed" if self.is_detailed else "average" if self.counters_of else "no"
        parts = [f"{kind} counters"]
        if self.counters_of:
            parts[0] += f" of {len(self.mean_counters)} nodes"
        if self.recorded is not None and "throughput" in self.recorded.results:
            parts.append(f"{self.recorded.results['throughput']} a second")
        return f"BenchmarkReport({shorten(self.source)}: {', '.join(parts)})"

    def _shown(self) -> dict[str, pd.DataFrame]:
        return {name: self.tables[name] for name in ("summary", "counters") if name in self.tables}

    def _table(self, name: str, way_out: str) -> pd.DataFrame:
        if name not in self.tables:
            raise ArgumentError(
                f"{shorten(self.source)} has no {name}. Run benchmark_app with {way_out}."
            )
        return self.tables[name]


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
        counters are joined to ops, fusion groups and boundaries as those of a Profile are;
        without it ``kind``, ``op``, ``fused_ops`` and ``tensor`` do not tell.
    placement
        Where it ran; ``None`` takes the device of ``benchmark_report``.

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
    files = report_files.find(file)
    recorded = None
    if "report" in files:
        recorded = report_files.read_settings(files["report"])
    requests: tuple[tuple[ReportedNode, ...], ...] = ()
    kind = next((kind for kind in report_files.COUNTERS if kind in files), "")
    if kind:
        requests = report_files.read_counters(files[kind])
        average_in_json = kind == "average_counters" and files[kind].suffix.lower() == ".json"
        if average_in_json and len(requests[0]) == 1:
            warn(
                f"{shorten(str(files[kind]))} has one node only: benchmark_app of OpenVINO 2026 "
                "writes no more of an average into JSON. Run it without -json_stats, or with "
                "-report_type detailed_counters."
            )
    target = recorded.settings.get("target device", "") if recorded else ""
    device = target.removeprefix("HETERO:")
    hetero = any(node.node_name.startswith("subgraph0: ") for nodes in requests for node in nodes)
    where, here = None, {}
    if requests and (model is not None or placement is not None):
        placed = _placed(model, placement or target, core)
        where, counters_of, mean = _joined(requests, placed, hetero)
        here = emulated_devices(placed.core)
    else:
        plain = "" if "," in device or ":" in device else device
        counters_of = tuple(
            tuple(replace(unjoined(node, hetero=hetero), device=plain) for node in nodes)
            for nodes in requests
        )
        mean = _mean(counters_of)
    used = {s.device for s in where.subgraphs} if where else set()
    return BenchmarkReport(
        source=os.fspath(file),
        counters_of=counters_of,
        is_detailed=kind == "detailed_counters",
        recorded=recorded,
        mean_counters=mean,
        emulated=tuple(d for d in here if d in used),
    )


def _placed(model: Source | None, placement: PlacementLike, core: ov.Core | None) -> BoundPlacement:
    """Bind the model and placement that were measured; ArgumentError where they are not named."""
    if model is None:
        raise ArgumentError("placement= says where a model ran: name it too, model=….")
    if not placement:
        raise ArgumentError(
            "Where it ran is in benchmark_report, which is not here. Name it: placement='CPU'."
        )
    return resolve(bind(model, core), placement)


def _joined(
    requests: Sequence[Sequence[ReportedNode]], placed: BoundPlacement, hetero: bool
) -> tuple[Partition, tuple[tuple[Counter, ...], ...], tuple[Counter, ...]]:
    """Join the counters to the model: partition, counters of each request, their mean."""
    rows = [unjoined(node, hetero=hetero) for node in requests[0]]
    partition = _as_it_ran(partition_of(placed), rows, hetero)
    busy = [nodes for nodes in requests if any(n.status.endswith("EXECUTED") for n in nodes)]
    longest = max(busy or requests, key=len)
    joined = read_counters(longest, partition, placed.graph)
    told = dict(_keyed(joined))
    counters_of = tuple(
        tuple(
            replace(
                told.get(key, row),
                status=row.status,
                real_time_us=row.real_time_us,
                cpu_time_us=row.cpu_time_us,
            )
            for key, row in _keyed(unjoined(node, hetero=hetero) for node in nodes)
        )
        for nodes in requests
    )
    return partition, counters_of, _mean(counters_of)


def _as_it_ran(predicted: Partition, rows: Sequence[Counter], hetero: bool) -> Partition:
    """Return the partition with its subgraphs in the order of the counters.

    Raises
    ------
    ArgumentError
        These are the counters of another model or placement.
    """
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


def _mean(requests: Sequence[Sequence[Counter]]) -> tuple[Counter, ...]:
    """Return the mean of each node over the requests that ran anything."""
    busy = [rows for rows in requests if any(row.status == "EXECUTED" for row in rows)]
    found: dict[tuple[int, str, int], list[Counter]] = {}
    for rows in busy or requests:
        for key, row in _keyed(rows):
            found.setdefault(key, []).append(row)
    return tuple(
        replace(
            rows[0],
            status=next((row.status for row in rows if row.status == "EXECUTED"), rows[0].status),
            real_time_us=sum(row.real_time_us for row in rows) / len(busy or requests),
            cpu_time_us=sum(row.cpu_time_us for row in rows) / len(busy or requests),
        )
        for rows in found.values()
    )


def _keyed(rows: Iterable[Counter]) -> Iterator[tuple[tuple[int, str, int], Counter]]:
    """Give each row of a request its subgraph, its name, and which of that name it is."""
    seen: dict[tuple[int, str], int] = {}
    for row in rows:
        key = (row.subgraph, row.node_name)
        seen[key] = seen.get(key, -1) + 1
        yield (*key, seen[key]), row


def _summary(recorded: Settings) -> dict[str, Any]:
    settings, results = recorded.settings, recorded.results
    percentile = next((int(m[1]) for key in results if (m := _PERCENTILE.fullmatch(key))), None)
    return {
        "model": settings.get("topology", ""),
        "target": settings.get("target device", ""),
        "api": settings.get("API", ""),
        "n_requests": _count(settings.get("number of parallel infer requests")),
        "batch_size": _count(settings.get("batch size")),
        "n_inferences": _count(results.get("total number of iterations")),
        "median_us": _us(results.get("latency (ms)")),
        "percentile": percentile,
        "percentile_us": _us(results.get(f"latency ({percentile} percentile) (ms)")),
        "mean_us": _us(results.get("avg latency")),
        "min_us": _us(results.get("min latency")),
        "max_us": _us(results.get("max latency")),
        "per_second": _number(results.get("throughput")),
        "read_ms": _number(results.get("read model time (ms)")),
        "compile_ms": _number(results.get("compile model time (ms)")),
        "first_inference_ms": _number(results.get("first inference time (ms)")),
        "total_ms": _number(results.get("total execution time (ms)")),
    }


def _us(text: str | None) -> float | None:
    ms = _number(text)
    return None if ms is None else 1e3 * ms


def _count(text: str | None) -> int | None:
    number = _number(text)
    return None if number is None else int(number)


def _number(text: str | None) -> float | None:
    """Read a number; None for other texts, such as a batch size of ``dynamic``."""
    try:
        number = math.nan if text is None else float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
