"""A session: shared state of all measurements of one question.

Files for workers and reference outputs are made once, however many times the question measures.
Compiled placements and workers end with each measurement.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import msgspec
import numpy as np

from hetero_lab.devices.core import BoundModel, emulated_devices
from hetero_lab.devices.guard import suspect
from hetero_lab.errors import ArgumentError, warn
from hetero_lab.lookup import annex
from hetero_lab.measure.bench import AnyBench, Bench, write_set_up
from hetero_lab.measure.stopping import RunOptions
from hetero_lab.measure.sweep_run import BenchPool, SweepRun
from hetero_lab.measure.sweep_schedule import SweepSchedule
from hetero_lab.measure.worker_process import (
    WORKER,
    SetUp,
    WorkerProcess,
    Workers,
    compiles_at_once,
)
from hetero_lab.model.language import Scenario
from hetero_lab.model.opgraph import graph_to_json
from hetero_lab.processes import FORK_SERVER
from hetero_lab.progress import Stopwatch
from hetero_lab.results.environment import current_environment, noise_of
from hetero_lab.results.records import (
    AnyRecord,
    Failed,
    Header,
    Ledger,
    StoredModel,
    Trial,
    Turn,
    by_key,
)
from hetero_lab.results.store import Store
from hetero_lab.results.sweep_builder import sweep_from
from hetero_lab.results.sweep_result import Sweep
from hetero_lab.runtime.executors import inputs_for
from hetero_lab.runtime.inputs import Inputs
from hetero_lab.samples.datasets import ReadData
from hetero_lab.tables import make_directory, scratch_directory


@dataclass(frozen=True)
class Conditions:
    """The conditions of a measurement; the fields are arguments of a sweep."""

    inputs: Inputs | None = None
    seed: int = 0
    scenario: Scenario | None = None
    cache_dir: str | os.PathLike[str] | None = None
    isolate: bool = True
    workers: Workers = field(default_factory=Workers)

    @property
    def are_generated(self) -> bool:
        """Whether the inputs are random numbers."""
        return self.inputs is None and self.scenario is None


class Session(contextlib.AbstractContextManager["Session"]):
    """Measures trials of bound models, as often as a question needs.

    ``models`` are by variant, at least one. ``cluster`` makes a run on a fleet, and with
    ``every_host`` each of its hosts measures each row.
    """

    def __init__(
        self,
        models: Mapping[str, BoundModel],
        conditions: Conditions,
        *,
        cluster: Callable[..., None] | None = None,
        every_host: bool = False,
    ):
        self.models, self.conditions = models, conditions
        self.cluster, self.every_host = cluster, every_host
        self._open = contextlib.ExitStack()
        self._expected: set[str] = set()  # variants whose reference outputs are kept
        self._setting_up = threading.Lock()

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)  # passed on, as scratch_directory names a full disk

    def measure(
        self,
        trials: Sequence[Trial],
        options: RunOptions,
        watch: Stopwatch,
        *,
        store: str | os.PathLike[str] | None = None,
        control: SweepControl | None = None,
        progress: bool = False,
        data: ReadData | None = None,
    ) -> Sweep:
        """Measure trials; the first one without a problem is the reference.

        Each turn is appended to the directory ``store``, whose turns are not measured again. Each
        measured trial is evaluated on ``data`` afterwards. After Ctrl-C or ``control.stop()``, the
        sweep holds the turns so far and is marked as ``interrupted``.
        """
        control = control or SweepControl()
        examples = None if data is None else annex("data")(data, self.models)
        header = self._header(trials, is_stored=store is not None)
        interrupted = False
        with contextlib.ExitStack() as stack:
            blobs_root = self.conditions.cache_dir
            if blobs_root is None and any(trial.model_cache for trial in trials):
                if self.cluster is not None:
                    raise ArgumentError(
                        "The dimension model_cache on the hosts of a client needs cache_dir=, a "
                        "directory that each of them can write."
                    )
                blobs_root = stack.enter_context(scratch_directory())
            blobs = _blob_directories(blobs_root, self.models, trials)
            records: list[AnyRecord] = []
            append: Callable[[AnyRecord], object] = records.append
            if store is not None:
                open_store = stack.enter_context(contextlib.closing(Store(store, header)))
                header, records, append = open_store.header, open_store.records, open_store.append
            append = control.watched(append)
            measurable = by_key(trial for trial in trials if not trial.problem)
            ledger = Ledger(records, append)
            try:
                if self.cluster is None:
                    schedule = self._schedule(header, measurable, ledger, options, watch.budget_s)
                    start = control.stoppable(lambda: self.start(blobs))
                    pool = BenchPool(measurable, start, self.conditions.workers)
                    # What it measures comes into ``records``, by way of the ledger.
                    SweepRun(
                        schedule, pool, watch, progress=progress, is_ready=self._is_ready
                    ).measure()
                else:
                    self.cluster(
                        set_up=partial(self._set_up_with, blobs),
                        control=control,
                        header=header,
                        trials=measurable,
                        ledger=ledger,
                        options=options,
                        workers=self.conditions.workers,
                        watch=watch,
                        progress=progress,
                    )
                crashes = {
                    record.entry
                    for record in records
                    if isinstance(record, Failed) and record.status.startswith("crashed (signal")
                }
                for trial in trials:
                    if trial.key in crashes:  # another process tries such a model first from now on
                        suspect(self.models[trial.variant].fingerprint)
                if examples is not None:
                    examples.evaluate(trials, records, append, progress)
            except StoppedError:
                interrupted = True
            except KeyboardInterrupt:
                interrupted = True
                has_turns = any(isinstance(record, Turn) for record in records)
                turns_note = "; the turns that were measured are kept" if has_turns else ""
                store_note = ", and the same call goes on from there" if store else ""
                warn(f"Interrupted{turns_note}{store_note}.")
        graphs = {name: bound.graph for name, bound in self.models.items()}
        return sweep_from(header, records, graphs, interrupted=interrupted)

    def start(self, blobs: Mapping[str, str] | None = None) -> AnyBench:
        """Start a bench; WorkerError, if its process cannot be started."""
        if not self.conditions.isolate:
            set_up = SetUp(models={}, blobs=dict(blobs or {}))
            return Bench(self.models, inputs=self._arrays, set_up=set_up)
        return WorkerProcess(self._set_up_with(blobs or {}), self.conditions.workers)

    def _set_up_with(self, blobs: Mapping[str, str]) -> SetUp:
        with self._setting_up:  # several benches start at once
            set_up = self._set_up
        return msgspec.structs.replace(set_up, blobs=dict(blobs))

    def _is_ready(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s``; tell whether a bench can be started soon."""
        needs_no_server = not self.conditions.isolate or bool(self.conditions.workers.command)
        return needs_no_server or FORK_SERVER.is_ready(WORKER, timeout_s)

    def _schedule(
        self,
        header: Header,
        trials: Mapping[str, Trial],
        ledger: Ledger,
        options: RunOptions,
        budget_s: float | None,
    ) -> SweepSchedule:
        return SweepSchedule(
            trials=trials,
            reference=header.reference,
            ledger=ledger,
            options=options,
            group_size=self.conditions.workers.group,
            budget_s=budget_s,
            noise=partial(noise_of, header.environments[-1]),
            expected=self._expected,
            at_once=compiles_at_once() if self.conditions.isolate else 1,
        )

    @cached_property
    def _arrays(self) -> dict[str, list[np.ndarray]]:
        conditions = self.conditions
        return {
            name: inputs_for(bound, conditions.inputs, conditions.seed, conditions.scenario)
            for name, bound in self.models.items()
        }

    @cached_property
    def _set_up(self) -> SetUp:
        """The set-up of workers; its files are written when it is first used."""
        directory = self._open.enter_context(scratch_directory())
        self._open.callback(FORK_SERVER.forget_set_up)
        return write_set_up(directory, self.models, self._arrays)

    @cached_property
    def inputs_digest(self) -> str:
        digest = hashlib.blake2b(digest_size=8)
        for name, arrays in sorted(self._arrays.items()):
            for array in arrays:
                digest.update(repr((name, array.shape, array.dtype.str)).encode())
                digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return digest.hexdigest()

    def _header(self, trials: Sequence[Trial], *, is_stored: bool) -> Header:
        core = next(iter(self.models.values())).core
        devices = dict.fromkeys(d for t in trials for d in t.devices)
        specs = emulated_devices(core)
        return Header(
            models={
                name: StoredModel(
                    name=bound.graph.name,
                    fingerprint=bound.fingerprint,
                    graph=graph_to_json(bound.graph) if is_stored else {},
                )
                for name, bound in self.models.items()
            },
            entries=list(trials),
            reference=next(t.key for t in trials if not t.problem),
            emulated=[specs[d] for d in sorted(devices) if d in specs],
            seed=self.conditions.seed,
            inputs_digest=self.inputs_digest,
            generated=self.conditions.are_generated,
            environments=[current_environment(devices, core)],
            fleet=self.cluster is not None,
            every_host=self.every_host,
        )


class StoppedError(Exception):
    """The sweep was stopped through its control."""


class SweepControl:
    """Follows a sweep and stops it from another thread.

    Parameters
    ----------
    on_record
        Called in the sweep's thread with each record as it is appended, one of the types of
        :mod:`hetero_lab.results.records`.
    """

    def __init__(self, on_record: Callable[[AnyRecord], object] | None = None):
        self._on_record = on_record
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._benches: list[AnyBench] = []

    @property
    def is_stopped(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """End the sweep: kill its workers and let it return its rows so far."""
        self._stopped.set()
        with self._lock:
            benches, self._benches = self._benches, []
        for bench in benches:
            if isinstance(bench, WorkerProcess):  # one in this process cannot be killed
                # The sweep's own thread may be closing it at the same time.
                with contextlib.suppress(OSError, ValueError):
                    bench.kill()

    def watched(self, append: Callable[[AnyRecord], object]) -> Callable[[AnyRecord], object]:
        """Return ``append`` wrapped: it calls ``on_record``, and raises after :meth:`stop`."""

        def tell(record: AnyRecord) -> None:
            self.check()
            append(record)
            if self._on_record is not None:
                self._on_record(record)

        return tell

    def stoppable(self, start: Callable[[], AnyBench]) -> Callable[[], AnyBench]:
        """Return ``start`` wrapped, so that :meth:`stop` can kill the benches that it starts."""

        def start_stoppable() -> AnyBench:
            self.check()
            bench = start()
            with self._lock:
                self._benches.append(bench)
            if self.is_stopped:  # while it started
                self.stop()
            return bench

        return start_stoppable

    def check(self) -> None:
        """Raise StoppedError after :meth:`stop`."""
        if self.is_stopped:
            raise StoppedError("The sweep was stopped.")


def _blob_directories(
    cache_dir: str | os.PathLike[str] | None,
    models: Mapping[str, BoundModel],
    trials: Sequence[Trial],
) -> dict[str, str]:
    """Return a cache directory per placement that asks for one, or for all if none does.

    They are separate, since the runtime's own cache key ignores per-device properties.
    """
    if cache_dir is None:
        return {}
    root = make_directory(cache_dir, private=True)
    directories = {}
    for trial in [t for t in trials if t.model_cache] or trials:
        key = trial.key.partition("-")[0]  # expand(dedupe=False) numbers the same ones
        place = root / f"{models[trial.variant].fingerprint[:16]}-{key}"
        place.mkdir(mode=0o700, exist_ok=True)
        directories[trial.key] = str(place)
    return directories
