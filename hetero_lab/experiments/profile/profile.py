"""Profile: one placement of one model, measured."""

from __future__ import annotations

import contextlib
import html
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_lab.backend.core import shared_core
from hetero_lab.errors import ArgumentError, MeasurementError, warn
from hetero_lab.experiments.environment import Environment, current_environment
from hetero_lab.experiments.profile import report as profile_report, tables as profile_tables
from hetero_lab.experiments.profile.throughput import ROUNDS, Throughput, measure_throughput
from hetero_lab.model.opgraph import OpGraph
from hetero_lab.model.read import PreparedModel, Source, prepare
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import Partition
from hetero_lab.placement.placement import Placement, PlacementLike, resolve
from hetero_lab.progress import Progress
from hetero_lab.runtime import memory
from hetero_lab.runtime.chosen import Chosen
from hetero_lab.runtime.counters import Counter
from hetero_lab.runtime.inputs import Inputs, bind_inputs, generate_inputs
from hetero_lab.runtime.reference import Agreement, compare_with_reference
from hetero_lab.runtime.runners import HETERO, Execution, measure_counters, open_runner
from hetero_lab.runtime.timeline import Span
from hetero_lab.runtime.timing import (
    TIMED_PER_TURN,
    Stopwatch,
    latency_of,
    time_once,
    turns,
    warm_up,
)
from hetero_lab.statistics import Latency
from hetero_lab.tables import Tables, write_csv

if TYPE_CHECKING:
    import openvino as ov
    import pandas as pd


@dataclass(frozen=True)
class Profile:
    """What was measured of one placement.

    Attributes
    ----------
    latency
        Steady-state wall-clock latency, compiled without counters.
    partition
        Subgraphs and boundaries as observed on the runtime.
    as_predicted
        Whether that is the predicted partition; ``None`` if it could not be observed.
    counters
        OpenVINO's counters of a second compile, joined to ops; empty with ``counters=False``.
    agreement
        Each output against the single-device f32 reference; empty with ``reference=False``.
    first_inference_ms, compile_ms, peak_rss_bytes
        First inference after compiling, the compile call, peak memory of the process meanwhile.
    interrupted
        Whether the measurement was cut short by Ctrl-C; what is there is sound.
    executor
        What ran it: ``hetero`` or ``parallel``.
    spans
        When each subgraph ran in the last turn, with as many requests in flight as were asked
        for; only of the parallel executor, HETERO does not tell.
    throughput
        Times between results with several requests in flight, if that was asked for.
    chosen
        What the runtime chose: devices, streams, requests in flight.
    """

    label: str
    model_fingerprint: str
    graph: OpGraph
    affinity: Affinity
    latency: Latency
    partition: Partition
    as_predicted: bool | None
    counters: tuple[Counter, ...]
    agreement: tuple[Agreement, ...]
    compile_ms: float
    first_inference_ms: float
    peak_rss_bytes: int
    environment: Environment
    interrupted: bool = False
    executor: str = HETERO
    spans: tuple[Span, ...] = ()
    throughput: tuple[Throughput, ...] = ()
    chosen: Chosen = field(default_factory=Chosen)

    @cached_property
    def tables(self) -> Tables:
        """DataFrames: summary, latency, subgraphs, counters, boundaries, placement, agreement.

        With counters also transitions, with measured spans also timeline and idle, with requests
        in flight also throughput.
        """
        return profile_tables.build(self)

    @property
    def precision_transitions(self) -> pd.DataFrame:
        """The pairs of ops between which the executed precision changes.

        ``producer``, ``consumer``, device and precision of both, ``where`` (at a ``boundary`` of
        subgraphs or ``inside`` one), ``handed_over_as`` (the type that crosses the boundary) and
        ``n_bytes``.

        Raises
        ------
        MeasurementError
            The profile has no counters, which tell the precision.
        """
        if not self.counters:
            raise MeasurementError(
                "This profile has no counters, so it does not tell in which precision ops were "
                "executed. Measure with counters=True on a device that has them."
            )
        return self.tables["transitions"]

    def report(self, *, tables: bool = True, counters: bool = True) -> str:
        """Return the summary, the subgraphs and boundaries, and the counters, as text.

        The counters have the form of the ``-pc`` output of OpenVINO's samples.
        """
        return profile_report.text(self, tables=tables, counters=counters)

    def to_csv(self, file: str | os.PathLike[str]) -> None:
        """Write the summary row as CSV, whole or not at all."""
        write_csv(file, self.tables["summary"])

    def export(self, directory: str | os.PathLike[str]) -> None:
        """Write one CSV a table, and profile.json for :func:`hetero_lab.read_profile`.

        Raises
        ------
        OutputPathError
            The directory cannot be made or written.
        """
        from hetero_lab.experiments.profile import storage as stored_profile

        stored_profile.export(self, directory)

    def to_trace(self, file: str | os.PathLike[str]) -> None:
        """Write a timeline as Trace Event JSON for Perfetto.

        It is made of the measured spans, or reconstructed from the counters if there are none.

        Raises
        ------
        MeasurementError
            The profile has neither.
        OutputPathError
            The file cannot be written.
        """
        from hetero_lab.experiments.profile.trace import to_trace

        to_trace(self, file)

    def __repr__(self) -> str:
        return profile_report.summary(self)

    def _repr_html_(self) -> str:
        from hetero_lab.tables import html_table

        subgraphs = self.tables["subgraphs"].drop(columns=["ops"]).dropna(axis="columns", how="all")
        return f"<pre>{html.escape(repr(self))}</pre>" + html_table(
            subgraphs, caption="Subgraphs", most=20
        )


def profile(
    model: Source,
    placement: PlacementLike,
    *,
    executor: str = HETERO,
    requests: int = 1,
    split_branches: bool = False,
    iterations: int | None = None,
    warmup: int | None = None,
    budget_s: float | None = None,
    inputs: Inputs | None = None,
    seed: int = 0,
    counters: bool = True,
    reference: bool = True,
    isolate: bool = False,
    timeout_s: float = 600.0,
    progress: bool = True,
    core: ov.Core | None = None,
) -> Profile:
    """Compile a placement, measure its latency, read its counters, compare its outputs.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    placement
        A Placement, an Affinity, ``"HETERO:ACC,CPU"`` or ``"CPU"``.
    executor
        ``"hetero"``, or ``"parallel"`` for :class:`hetero_lab.ParallelExecutor`, which tells when
        each subgraph ran.
    requests
        With more than one, the time between results with that many in flight is measured
        besides the latency, next to that of HETERO with and without
        ``EXCLUSIVE_ASYNC_REQUESTS``: ``profile.tables["throughput"]``.
    split_branches
        Cut independent branches on one device apart; only for ``"parallel"``.
    iterations
        Timed inferences, in turns of 10 with 2 discarded before each; 100 if neither this nor
        ``budget_s`` is given.
    warmup
        Inferences before the first turn; ``None`` runs until two turns agree within 5 %.
    budget_s
        Wall time after which no further turn is begun.
    inputs
        Mapping by name, sequence, .npz file or callable; ``None`` generates them from ``seed``.
    counters, reference
        Whether to compile a second time for the counters, and to compare the outputs with a
        single-device f32 reference.
    isolate, timeout_s
        Whether to do it in a process of its own, ended after ``timeout_s``; worth it for new
        drivers, whose crash would take the notebook with it.
    progress
        Show a bar if it takes more than two seconds.

    Returns
    -------
    Profile
        After Ctrl-C in the timing or later: what is there, with ``interrupted`` set.

    Raises
    ------
    ArgumentError
        Anything about the arguments, before something is compiled.
    CompileError
        The runtime refused the placement.
    MeasurementError
        With ``isolate``: the process crashed, hung or could not compile the placement.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
    >>> hl.profile(model, "HETERO:ACC,CPU", iterations=20, progress=False)
    digits_inception takes ... µs on HETERO:ACC,CPU; outputs ...
    Partition:  2 subgraphs, 1 boundary, ... B (observed)
    ...
    """
    execution = Execution(executor, requests, split_branches)
    iterations, warmup = _check_counts(iterations, warmup, budget_s)
    core = core or shared_core()
    watch = Stopwatch.start(budget_s)
    prepared = prepare(model)
    resolved = resolve(prepared, placement, core=core)
    execution.check(prepared, resolved)
    arrays = bind_inputs(
        prepared, inputs if inputs is not None else generate_inputs(prepared, seed)
    )
    if isolate:
        options = {
            **asdict(execution),
            "iterations": iterations,
            "warmup": warmup,
            "budget_s": budget_s,
            "counters": counters,
            "reference": reference,
        }
        return _isolated(prepared, resolved, arrays, options, timeout_s, core)
    memory.reset_peak()
    in_flight = requests > 1
    stages = 2 + in_flight + counters + reference
    bar = Progress(f"compile {resolved.label}", show=progress, total=stages, unit="steps")
    with (
        bar,
        contextlib.closing(open_runner(prepared, resolved, arrays, execution, core=core)) as runner,
    ):
        first_ms = time_once(runner.infer) / 1e3
        chosen = runner.chosen()
        _next(bar, "time")
        samples: list[tuple[float, ...]] = []
        interrupted = False
        try:
            warm_up(runner.infer, warmup)
            for turn in turns(runner.infer, iterations, _left_s(watch, 1 + in_flight)):
                samples.append(turn)
                bar.note(f"{sum(map(len, samples))} inferences")
        except KeyboardInterrupt:
            if not samples:
                raise
            interrupted = True
            warn(f"Interrupted after {sum(map(len, samples))} inferences; they are kept.")
        _next(bar, "throughput" if in_flight else "counters" if counters else "reference")
        spans = runner.spans(len(samples[-1]))
        rows: tuple[Counter, ...] = ()
        agreement: tuple[Agreement, ...] = ()
        throughput: tuple[Throughput, ...] = ()
        try:
            if in_flight and not interrupted:
                throughput = measure_throughput(
                    runner,
                    prepared,
                    arrays,
                    execution,
                    rounds=min(ROUNDS, max(1, (iterations or ROUNDS**2) // TIMED_PER_TURN)),
                    budget_s=_left_s(watch),
                    core=core,
                )
                spans = runner.spans((TIMED_PER_TURN + 1) * requests)
                _next(bar, "counters" if counters else "reference")
            outputs = runner.outputs()
            if counters:
                rows = _measure_counters(prepared, resolved, arrays, execution, core)
                _next(bar, "reference")
            if reference:
                precision = runner.precision(rows)
                agreement = compare_with_reference(prepared, arrays, outputs, precision, core=core)
                _next(bar, "done")
        except KeyboardInterrupt:
            interrupted = True
            warn("Interrupted after the timing; the latency is kept.")
    result = Profile(
        label=resolved.label,
        model_fingerprint=prepared.fingerprint,
        graph=prepared.graph,
        affinity=resolved.affinity,
        latency=latency_of(samples),
        partition=runner.partition,
        as_predicted=runner.as_predicted,
        counters=rows,
        agreement=agreement,
        compile_ms=runner.compile_ms,
        first_inference_ms=first_ms,
        peak_rss_bytes=memory.peak_bytes(),
        environment=current_environment(resolved.devices, core),
        interrupted=interrupted,
        executor=executor,
        spans=spans,
        throughput=throughput,
        chosen=chosen,
    )
    for problem in _problems(result):
        warn(problem)
    return result


def _isolated(
    prepared: PreparedModel,
    placement: Placement,
    arrays: Sequence[np.ndarray],
    options: Mapping[str, Any],
    timeout_s: float,
    core: ov.Core,
) -> Profile:
    from hetero_lab.experiments.profile.isolated import profile_data
    from hetero_lab.experiments.profile.storage import from_json

    data, said = profile_data(prepared, placement, arrays, options, timeout_s, core)
    for text in said:
        warn(text)
    return replace(from_json(data, "worker"), model_fingerprint=prepared.fingerprint)


def _check_counts(
    iterations: int | None, warmup: int | None, budget_s: float | None
) -> tuple[int | None, int | None]:
    for name, value, least in (("iterations", iterations, 1), ("warmup", warmup, 0)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ArgumentError(f"{name}= is a whole number of at least {least}, not {value!r}.")
    if iterations is None and budget_s is None:
        iterations = 100
    return iterations, warmup


def _measure_counters(
    prepared: PreparedModel,
    placement: Placement,
    arrays: list[np.ndarray],
    execution: Execution,
    core: ov.Core,
) -> tuple[Counter, ...]:
    """Compile once more with counters; a device without them gives none and a warning."""
    try:
        return measure_counters(prepared, placement, arrays, execution, core=core)
    except MeasurementError as error:
        warn(str(error))
        return ()


def _left_s(watch: Stopwatch, parts: int = 1) -> float | None:
    """Return the time left, or one of so many equal parts of it."""
    if watch.budget_s is None:
        return None
    return max(1e-9, watch.budget_s - watch.elapsed_s) / parts


def _problems(result: Profile) -> Iterator[str]:
    wrong = [a for a in result.agreement if a.verdict in ("different", "not a number")]
    if wrong:
        worst = max(wrong, key=lambda a: a.relative_error)
        yield (
            f"Output {worst.output!r} differs from the single-device f32 reference by "
            f"{worst.relative_error:.2g} (relative), more than {worst.precision} explains "
            f"({worst.tolerance:g}). See profile.tables['agreement']; "
            "hetero_lab.find_wrong(model, placement) finds the ops to blame."
        )


def _next(bar: Progress, description: str) -> None:
    bar.advance()
    bar.step(description)
