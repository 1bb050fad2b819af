"""The bench: compiles placements, runs turns of them, reads their counters.

A bench works in this process or, behind :mod:`.worker_process`, in a worker process. Its requests
and answers are structs: passed on as they are here, as JSON there. To follow a measurement, read
its methods; the process around them changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from hetero_lab.clock import now
from hetero_lab.devices.core import BoundModel, bind, emulated_devices, register, shared_core
from hetero_lab.devices.devices import peak_bytes, reset_peak
from hetero_lab.errors import MeasurementError, OutputPathError, warn
from hetero_lab.lookup import annex
from hetero_lab.measure import requests
from hetero_lab.measure.requests import Answer, Request, SetUp
from hetero_lab.measure.stopping import FULL, WARM_UP_INFERENCES
from hetero_lab.measure.worker_process import WorkerProcess, as_worker_errors
from hetero_lab.model.extension_ops import core_with_ops
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
    Execution,
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
        # How each is run, and the seconds of its first inference.
        self._compiled: dict[str, tuple[Runner, Execution, float]] = {}
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
            return self.answer(request)

    def answer(self, request: Request[Any]) -> Any:
        """Carry out a request; return its answer."""
        if isinstance(request, SetUp):
            raise RuntimeError("a worker is set up once")
        return _METHODS[type(request)](self, request)

    def _compile(self, request: requests.Compile) -> Compiled:
        trial = request.trial
        reset_peak()
        self._let_go(trial.key)
        arguments = self._runner_arguments(trial)
        if trial.model_cache:
            open_runner(**arguments).close()  # fills the cache; the next line loads from it
            reset_peak()
        runner = open_runner(**arguments)
        with inference_errors(trial.label):
            first_us = time_once(runner.infer)
        choices = runner.choices()
        self._compiled[trial.key] = runner, trial.execution, first_us / 1e6
        peak_rss_bytes = peak_bytes()  # without the reference and the counters
        agreement = self._compare(requests.Compare(trial=trial)) if request.compare else ()
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
            spans=self._spans(requests.ReadSpans(key=trial.key, requests=1)),
            chosen=choices,
            tokens=runner.tokens(),
        )

    def _expect(self, request: requests.Expect) -> None:
        if self.set_up.directory:
            self._expected_outputs(request.trial)

    def _warm_up(self, request: requests.WarmUp) -> float:
        runner, execution, first_s = self._compiled[request.key]
        inferences = request.inferences
        if execution.scenario is not None:
            for _ in range(1 if inferences is None else inferences):
                first_s = time_once(runner.turn) / 1e6 / FULL.inferences
            return first_s
        most = int(request.at_most_s / first_s)
        began = now()
        if inferences is None and most < WARM_UP_INFERENCES:  # whole turns would overrun the time
            inferences = most
        n_inferences = warm_up(runner.infer, inferences, request.at_most_s)
        return min(first_s, (now() - began) / n_inferences) if n_inferences else first_s

    def _turn(self, request: requests.RunTurn) -> Turn:
        runner, execution, _ = self._compiled[request.key]
        samples_us, first_us = (
            (runner.queue_turn(), None)
            if execution.requests > 1 and not request.alone
            else runner.turn(timed=request.timed, discarded=request.discarded)
        )
        return Turn(
            entry=request.key,
            group=request.group,
            round=request.round,
            samples_us=samples_us,
            first_us=first_us,
        )

    def _compile_counted(self, request: requests.CompileCounted | requests.ReadCounters) -> None:
        trial = request.trial
        self._counted[trial.key] = open_runner(**self._runner_arguments(trial), counters=True)

    def _counters(self, request: requests.ReadCounters) -> Counters:
        key = request.trial.key
        try:
            if key not in self._counted:
                self._compile_counted(request)
            return Counters(entry=key, rows=read_counted(self._counted.pop(key)))
        except MeasurementError as error:
            warn(str(error))
            return Counters(entry=key, rows=())

    def _compare(self, request: requests.Compare) -> tuple[Agreement, ...]:
        """Compare outputs; benches that share a directory compute the reference outputs once."""
        trial = request.trial
        runner, *_ = self._compiled[trial.key]
        expected = None
        if self.set_up.directory:
            file, names = self._reference_file(trial), runner.outputs()
            expected = _stored_outputs(file, names) or self._expected_outputs(trial)
        return runner.compare(request.rows, expected)

    def _spans(self, request: requests.ReadSpans) -> tuple[StoredSpan, ...]:
        runner, *_ = self._compiled[request.key]
        spans = runner.spans(request.requests)
        return tuple((s.request, s.subgraph, s.start_s, s.end_s) for s in spans)

    def _memory(self, request: requests.MeasureMemory) -> dict[str, tuple[int, int]]:
        bound, properties = self.models[request.variant], request.properties
        return annex("memory")(bound, request.parts, request.device, properties, request.scenario)

    def _drive(self, request: requests.Drive) -> tuple[requests.Driven, ...]:
        runners = [self._compiled[load.key][0] for load in request.loads]
        return annex("drive")(runners, request)

    def _infer_file(
        self, request: requests.InferFile
    ) -> tuple[dict[str, str], tuple[Counter, ...]]:
        core = shared_core()
        model = core_with_ops().read_model(request.path)
        if request.affinities is not None:  # a file keeps none
            for node in model.get_ordered_ops():
                node.get_rt_info()["affinity"] = request.affinities[node.get_friendly_name()]
        arrays = read_arrays(request.inputs)
        outputs, hints, rows = infer_once(model, request.target, request.properties, arrays, core)
        write_arrays(request.outputs, outputs)
        return hints, rows

    def _release(self, request: requests.Release) -> None:
        self._let_go(request.key)

    def _let_go(self, key: str) -> None:
        runner, *_ = self._compiled.pop(key, [None])
        for one in (runner, self._counted.pop(key, None)):
            if one is not None:
                one.close()

    def close(self) -> None:
        """Let go of all compiled placements."""
        for key in list(self._compiled):
            self._let_go(key)

    def _resolve(self, trial: Trial) -> BoundPlacement:
        return trial.resolve(self.models[trial.variant], self.set_up.ops.get(trial.variant, ()))

    def _runner_arguments(self, trial: Trial) -> dict[str, Any]:
        """Return the arguments of :func:`open_runner`."""
        blobs = self.set_up.blobs.get(trial.key)
        return {
            "placement": self._resolve(trial),
            "arrays": self._arrays(trial.variant),
            "execution": trial.execution,
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

_METHODS: dict[type, Callable[[Bench, Any], Any]] = {
    requests.Compile: Bench._compile,
    requests.Expect: Bench._expect,
    requests.WarmUp: Bench._warm_up,
    requests.RunTurn: Bench._turn,
    requests.CompileCounted: Bench._compile_counted,
    requests.ReadCounters: Bench._counters,
    requests.Compare: Bench._compare,
    requests.ReadSpans: Bench._spans,
    requests.MeasureMemory: Bench._memory,
    requests.Drive: Bench._drive,
    requests.Release: Bench._release,
    requests.InferFile: Bench._infer_file,
}


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
