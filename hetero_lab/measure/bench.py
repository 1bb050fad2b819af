"""The bench: compiles placements, runs turns of them, reads their counters.

A bench works in this process or, behind :mod:`.worker_process`, in a worker process. A request is
a call of one of its methods: made as it is here, sent as JSON there, where the types of the
arguments and of the answer are those of the method. To follow a measurement, read the methods; the
process around them changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from hetero_lab.clock import now
from hetero_lab.devices.core import BoundModel, bind, emulated_devices, register, shared_core
from hetero_lab.devices.devices import peak_bytes, reset_peak
from hetero_lab.errors import MeasurementError, OutputPathError, warn
from hetero_lab.lookup import annex
from hetero_lab.measure.loads import Driven, Load
from hetero_lab.measure.stopping import FULL, WARM_UP_INFERENCES
from hetero_lab.measure.worker_process import (
    Answer,
    Request,
    SetUp,
    WorkerProcess,
    Workers,
    as_worker_errors,
)
from hetero_lab.model.extension_ops import core_with_ops
from hetero_lab.model.language import Scenario
from hetero_lab.model.read import save
from hetero_lab.placement.placement import BoundPlacement
from hetero_lab.results.records import (
    Compiled,
    Counters,
    StoredSpan,
    Trial,
    Turn,
)
from hetero_lab.runtime.compiled import inference_errors
from hetero_lab.runtime.counters import Counter
from hetero_lab.runtime.executors import (
    DISCARDED_PER_TURN,
    TIMED_PER_TURN,
    Runner,
    expected_outputs,
    infer_once,
    open_runner,
    read_counted,
    run_turn,
    time_once,
    warm_up,
)
from hetero_lab.runtime.inputs import input_arrays
from hetero_lab.runtime.placed_model import read_npz
from hetero_lab.runtime.reference import Agreement
from hetero_lab.tables import whole_file

_SHOWN = 4  # inferences after which the timeline shows a warm model


@dataclass(eq=False)
class Bench:
    """Compiled placements by key, on one core, with ``models`` and ``inputs`` by variant.

    Inputs are arrays in order; missing ones are generated.
    """

    start_s = 0.0  # to start another one

    models: Mapping[str, BoundModel]
    inputs: dict[str, list[np.ndarray]] = field(default_factory=dict[str, list[np.ndarray]])
    set_up: SetUp = field(default_factory=lambda: SetUp(models={}))

    def __post_init__(self) -> None:
        self.warnings: list[str] = []  # of the last answer
        # Each with its trial and the seconds of its first inference.
        self._compiled: dict[str, tuple[Runner, Trial, float]] = {}
        self._counted: dict[str, Runner] = {}  # compiled once more, with counters

    @classmethod
    def of(cls, set_up: SetUp) -> Bench:
        """Set up a bench from files, as :func:`write_set_up` writes them."""
        for spec in set_up.emulated:
            register(spec, shared_core())
        place = Path(set_up.directory)
        inputs = {name: read_arrays(place / file) for name, file in set_up.inputs.items()}
        models = {name: bind(place / file) for name, file in set_up.models.items()}
        return cls(models, inputs=inputs, set_up=set_up)

    def ask(self, request: Request[Answer], *, timeout_s: float) -> Answer:
        """Carry out a request in this process, where nothing can end it after ``timeout_s``."""
        del timeout_s
        with as_worker_errors(self.warnings):
            return request(self)

    def compile(self, trial: Trial, compare: bool = False) -> Compiled:
        """Compile a trial and infer once; with ``compare``, compare outputs with the reference."""
        reset_peak()
        self.release(trial.key)
        arguments = self._runner_arguments(trial)
        if trial.model_cache:
            open_runner(**arguments).close()  # fills the cache; the next line loads from it
            reset_peak()
        runner = open_runner(**arguments)
        with inference_errors(trial.label):
            first_us = time_once(runner.infer)
        choices = runner.choices()
        self._compiled[trial.key] = runner, trial, first_us / 1e6
        peak_rss_bytes = peak_bytes()  # without the reference and the counters
        agreement = self.compare(trial) if compare else ()
        if runner.spans(1):
            run_turn(runner.infer, timed=_SHOWN)
        return Compiled(
            entry=trial.key,
            compile_ms=runner.compile_ms,
            first_inference_ms=first_us / 1e3,
            partition=replace(runner.partition, home=()),  # what no file holds
            as_predicted=runner.as_predicted,
            agreement=agreement,
            peak_rss_bytes=peak_rss_bytes,
            spans=self.read_spans(trial.key, 1),
            chosen=choices,
            tokens=runner.tokens(),
        )

    def expect(self, trial: Trial) -> None:
        """Compute the reference outputs of a trial's model, for later benches."""
        if self.set_up.directory:
            self._expected_outputs(trial)

    def warm_up(self, key: str, at_most_s: float, inferences: int | None = None) -> float:
        """Infer until turns agree or the time is over; return the seconds per inference.

        With ``inferences``, infer that many times; a language model generates as often.
        """
        runner, trial, first_s = self._compiled[key]
        if trial.scenario is not None:
            for _ in range(1 if inferences is None else inferences):
                first_s = time_once(runner.turn) / 1e6 / FULL
            return first_s
        most = int(at_most_s / first_s)
        began = now()
        if inferences is None and most < WARM_UP_INFERENCES:  # whole turns would overrun the time
            inferences = most
        n_inferences = warm_up(runner.infer, inferences, at_most_s)
        return min(first_s, (now() - began) / n_inferences) if n_inferences else first_s

    def run_turn(
        self,
        key: str,
        discarded: int = DISCARDED_PER_TURN,
        timed: int = TIMED_PER_TURN,
        group: int = 0,
        round: int = 0,
        alone: bool = False,
    ) -> Turn:
        """Run one turn of a compiled trial; ``group`` and ``round`` are those of its record.

        Its times are in µs: of inferences, with several requests in flight between results, for a
        language model per further token. In the last two cases, its length is fixed. With
        ``alone``, one request is in flight at a time, however many the trial has.
        """
        runner, trial, _ = self._compiled[key]
        samples_us, first_us = (
            (runner.queue_turn(), None)
            if trial.requests > 1 and not alone
            else runner.turn(timed=timed, discarded=discarded)
        )
        return Turn(entry=key, group=group, round=round, samples_us=samples_us, first_us=first_us)

    def compile_counted(self, trial: Trial) -> None:
        """Compile a trial once more, with counters, to be read later."""
        self._counted[trial.key] = open_runner(**self._runner_arguments(trial), counters=True)

    def read_counters(self, trial: Trial) -> Counters:
        """Read the counters of a trial; compile it with counters unless that is done."""
        key = trial.key
        try:
            if key not in self._counted:
                self.compile_counted(trial)
            return Counters(entry=key, rows=read_counted(self._counted.pop(key)))
        except MeasurementError as error:
            warn(str(error))
            return Counters(entry=key, rows=())

    def compare(self, trial: Trial, rows: tuple[Counter, ...] = ()) -> tuple[Agreement, ...]:
        """Compare the last outputs of a compiled trial with the reference; ``rows``: its counters.

        Benches that share a directory compute the reference outputs once.
        """
        runner, *_ = self._compiled[trial.key]
        expected = None
        if self.set_up.directory:
            file, names = self._reference_file(trial), runner.outputs()
            expected = _stored_outputs(file, names) or self._expected_outputs(trial)
        return runner.compare(rows, expected)

    def read_spans(self, key: str, requests: int) -> tuple[StoredSpan, ...]:
        """Return when the subgraphs of the last ``requests`` inferences ran, if known."""
        runner, *_ = self._compiled[key]
        return tuple((s.request, s.subgraph, s.start_s, s.end_s) for s in runner.spans(requests))

    def measure_memory(
        self,
        variant: str,
        parts: dict[str, str],
        device: str,
        properties: dict[str, Any],
        scenario: Scenario,
    ) -> dict[str, tuple[int, int]]:
        """Measure the private memory of the parts of a language model on ``device``.

        ``parts`` maps ops to names of parts. Returns, for each part, the bytes of its weights and
        the bytes that grow with the context; without parts, those of a process that runs the whole
        model on the device.
        """
        return annex("memory")(self.models[variant], parts, device, properties, scenario)

    def drive(
        self, loads: tuple[Load, ...], starts_at: float, seconds: float, check: bool = False
    ) -> tuple[Driven, ...]:
        """Drive compiled trials at the same time for some seconds, from a Unix time on.

        ``check`` compares each output with that of the first inference.
        """
        runners = [self._compiled[load.key][0] for load in loads]
        return annex("drive")(runners, loads, starts_at, seconds, check=check)

    def infer_file(
        self,
        path: str,
        target: str,
        properties: dict[str, Any],
        affinities: dict[str, str] | None,
        inputs: str,
        outputs: str,
    ) -> tuple[dict[str, str], tuple[Counter, ...]]:
        """Infer a model from a file once, write the outputs; see :func:`.executors.infer_once`.

        ``affinities`` maps every node to a device, since model files do not store them. Returns
        the precision hints and the counters.
        """
        core = shared_core()
        model = core_with_ops().read_model(path)
        if affinities is not None:
            for node in model.get_ordered_ops():
                node.get_rt_info()["affinity"] = affinities[node.get_friendly_name()]
        arrays, hints, rows = infer_once(model, target, properties, read_arrays(inputs), core)
        write_arrays(outputs, arrays)
        return hints, rows

    def release(self, key: str) -> None:
        """Let go of a compiled trial."""
        runner, *_ = self._compiled.pop(key, [None])
        for one in (runner, self._counted.pop(key, None)):
            if one is not None:
                one.close()

    def close(self) -> None:
        """Let go of all compiled placements."""
        for key in list(self._compiled):
            self.release(key)

    def _resolve(self, trial: Trial) -> BoundPlacement:
        return trial.resolve(self.models[trial.variant], self.set_up.ops.get(trial.variant, ()))

    def _runner_arguments(self, trial: Trial) -> dict[str, Any]:
        """Return the arguments of :func:`open_runner`."""
        blobs = self.set_up.blobs.get(trial.key)
        return {
            "placement": self._resolve(trial),
            "arrays": self._arrays(trial.variant),
            "executor": trial.executor,
            "requests": trial.requests,
            "scenario": trial.scenario,
            "compile_properties": {"CACHE_DIR": blobs} if blobs else {},
        }

    def _expected_outputs(self, trial: Trial) -> dict[str, np.ndarray]:
        expected = expected_outputs(
            self._resolve(trial), self._arrays(trial.variant), trial.scenario
        )
        _keep(self._reference_file(trial), expected)
        return expected

    def _reference_file(self, trial: Trial) -> Path:
        number = list(self.models).index(trial.variant)
        return Path(self.set_up.directory) / f"reference{number}.npz"

    def _arrays(self, variant: str) -> list[np.ndarray]:
        if variant not in self.inputs:
            self.inputs[variant] = input_arrays(self.models[variant], None)
        return self.inputs[variant]


AnyBench: TypeAlias = Bench | WorkerProcess


def limit_s(workers: Workers, request: Request[Any]) -> float:
    """Return how long the answer to a request may take."""
    compiling = (Bench.compile, Bench.compile_counted, Bench.read_counters, Bench.compare)
    return workers.compile_timeout_s if request.func in compiling else workers.timeout_s


def write_set_up(
    directory: Path,
    bound: Mapping[str, BoundModel],
    arrays: Mapping[str, Sequence[np.ndarray]],
) -> SetUp:
    """Write models and inputs to files for workers; return the set-up that names them."""
    models, inputs, ops = {}, {}, {}
    core = next(iter(bound.values())).core
    for index, variant in enumerate(bound):
        model, file = directory / f"model{index}.xml", directory / f"inputs{index}.npz"
        save(bound[variant].model, model)
        write_arrays(file, arrays[variant])
        models[variant], inputs[variant] = model.name, file.name
        ops[variant] = tuple(op.name for op in bound[variant].graph)
    return SetUp(
        models=models,
        ops=ops,
        inputs=inputs,
        emulated=tuple(emulated_devices(core).values()),
        directory=str(directory),
    )


def write_arrays(path: str | Path, arrays: Iterable[np.ndarray]) -> None:
    """Write arrays in order; ``read_arrays`` reads them."""
    by_name: dict[str, Any] = {f"{i:04d}": array for i, array in enumerate(arrays)}
    with open(path, "wb") as file:  # given a path, NumPy would add its own suffix
        np.savez(file, **by_name)


def read_arrays(path: str | Path) -> list[np.ndarray]:
    """Read the arrays that :func:`write_arrays` wrote."""
    return list(read_npz(path).values())


def _stored_outputs(path: Path, names: Iterable[str]) -> dict[str, np.ndarray] | None:
    try:
        return dict(zip(names, read_arrays(path), strict=True))
    except (OSError, ValueError):
        return None


def _keep(path: Path, outputs: Mapping[str, np.ndarray]) -> None:
    """Keep outputs for other benches, whole or not at all; string outputs are not kept."""
    if all(array.dtype.kind in "fiub" for array in outputs.values()):
        with contextlib.suppress(OutputPathError), whole_file(path) as temporary:
            write_arrays(temporary, outputs.values())
