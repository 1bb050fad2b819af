"""Sweep: many placements of one model, compiled in workers and measured in turn."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from hetero_lab.backend.bound import BoundModel
from hetero_lab.backend.core import shared_core
from hetero_lab.backend.emulation import emulated_devices
from hetero_lab.errors import ArgumentError, warn
from hetero_lab.experiments.accuracy.evaluate import ReadData, read_data
from hetero_lab.experiments.environment import current_environment, noise_of
from hetero_lab.experiments.sweep.control import StoppedError, SweepControl
from hetero_lab.experiments.sweep.entries import Entry, Placements, expand
from hetero_lab.experiments.sweep.options import (
    GROUP_SIZE,
    Conditions,
    Dimensions,
    RunOptions,
    positive,
)
from hetero_lab.experiments.sweep.reading import sweep_from
from hetero_lab.experiments.sweep.records import AnyRecord, Header, StoredModel
from hetero_lab.experiments.sweep.result import Sweep
from hetero_lab.experiments.sweep.rounds import SweepRun, compiles_at_once
from hetero_lab.experiments.sweep.row_accuracy import SweepData
from hetero_lab.experiments.sweep.store import Store
from hetero_lab.experiments.sweep.variants import Variant, bind_variants, with_problems
from hetero_lab.experiments.workers.factory import BenchFactory
from hetero_lab.experiments.workers.set_up import Limits
from hetero_lab.model.language import Scenario
from hetero_lab.model.opgraph import graph_to_json
from hetero_lab.model.read import Source
from hetero_lab.planning.memory import parse_bytes
from hetero_lab.runtime.inputs import Inputs
from hetero_lab.runtime.runners import HETERO, inputs_for
from hetero_lab.runtime.scoring import Correct
from hetero_lab.runtime.timing import Stopwatch
from hetero_lab.samples.datasets import Dataset, Metric
from hetero_lab.tables import make_directory, scratch_directory

if TYPE_CHECKING:
    import openvino as ov
    from distributed import Client

    from hetero_lab.experiments.fleet.cluster import Cluster


def sweep(
    model: Source | Mapping[str, Variant],
    placements: Placements,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    executor: str | Sequence[str] = HETERO,
    requests: Sequence[int] = (1,),
    model_cache: Sequence[bool] = (False,),
    precision: float = 0.02,
    budget_s: float | None = 60.0,
    turns: int | None = None,
    group_size: int = GROUP_SIZE,
    sustained_s: float | None = None,
    inputs: Inputs | None = None,
    seed: int = 0,
    scenario: Scenario | None = None,
    counters: bool = True,
    reference: bool = True,
    data: Dataset | Sequence[Any] | None = None,
    metric: Metric | Correct | None = None,
    store: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    dedupe: bool = True,
    baselines: bool = True,
    isolate: bool = True,
    timeout_s: float = 60.0,
    compile_timeout_s: float = 600.0,
    memory_limit: int | str | None = None,
    worker_command: Sequence[str] | None = None,
    client: Client | None = None,
    every_host: bool = False,
    progress: bool = True,
    control: SweepControl | None = None,
    core: ov.Core | None = None,
) -> Sweep:
    """Measure many placements and rank them with their uncertainty.

    Placements are compiled in groups of eight or fewer, each with the reference (the first
    placement) in it, and measured in turns of 2 discarded and 10 timed inferences; in each
    round every placement of the group has one turn, in random order, so that a drift of the
    machine hits all alike. The model compiled directly on each single device that can run it
    is always there as a baseline.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes, or a mapping of variant names to such. A
        variant may be a function without arguments that makes it, for instance
        ``functools.partial(hetero_lab.quantize, model, examples)``: if that fails, its rows say
        so and the others are measured. An affinity is carried from one variant to the others,
        op by op.
    placements
        Priorities, placements, affinities, ``"HETERO:ACC,CPU"`` or ``"CPU"``, in a list or by
        label: ``{"mine": affinity}``; also
        ``"AUTO:GPU,CPU"``, ``"MULTI:GPU,CPU"`` and ``"BATCH:GPU(8)"``, which run the whole model
        on devices of their choice. The summary's ``execution_devices``, ``n_streams`` and
        ``optimal_requests`` say what ran.
    grid
        Properties to cross with the placements: ``{"CPU.INFERENCE_PRECISION_HINT": ["f32",
        "bf16"], "*.PERFORMANCE_HINT": [...]}``; ``AUTO.PERFORMANCE_HINT`` is that of ``AUTO:…``.
    executor
        ``"hetero"``, ``"parallel"`` for :class:`hetero_lab.ParallelExecutor`, or several to cross
        with the placements.
    requests
        Requests in flight to cross with the placements; for more than one, a sample is the
        time between results.
    model_cache
        ``[False, True]`` crosses the placements with OpenVINO's model cache off and on: with it, a
        placement is compiled into the cache and what is measured is loaded from there. The
        summary's ``compile_ms`` is then the time to load it, and ``from_cache`` says whether
        OpenVINO did. Each has a directory of its own in ``cache_dir``, or a temporary one.
    precision, budget_s, turns
        Turns are added until every ratio is known to ``precision`` (half width of its 95 %
        interval) or the wall time of the whole call, compiles included, reaches ``budget_s``
        (overrun at most by one compile). Every placement gets eight turns first; where the
        budget is too short for that, turns are fewer, then shorter, then placements are left
        out, and notes and details say so. ``turns`` asks for that many instead.
    group_size
        How many compiled placements are alive at once, the reference included. With more, the
        machine's moods hit more of them alike, and memory and threads are needed for all.
    sustained_s
        Hold each placement that long after its turns, to see its thermal state; the time for
        that comes on top of ``budget_s``.
    inputs, seed
        As for :func:`hetero_lab.profile`.
    scenario
        What a language model is asked to generate. A turn is then a generation, and all latencies,
        ratios and ranks are of the time per further token; the summary has ``ttft_ms``,
        ``tpot_ms`` and ``tokens_per_s`` with their intervals.
    counters, reference
        Whether to compile each placement once more for its counters, and to compare its
        outputs with a single-device f32 reference.
    data, metric
        Examples for :func:`hetero_lab.evaluate`: the summary then has each placement's accuracy
        and its drop from f32. They are run here, once a distinct placement, when the turns are
        measured and outside of ``budget_s``.
    store
        Directory to which each turn is appended as it ends. The same call goes on where it
        was stopped.
    cache_dir
        Directory for compiled blobs, kept apart by model, affinity and properties, with which all
        placements are compiled unless ``model_cache`` says which.
    dedupe
        Measure placements that are the same once.
    baselines
        Whether to add the single devices.
    isolate
        Compile and run in worker processes: a crash, a hang or running out of memory costs
        one row.
    timeout_s, compile_timeout_s, memory_limit, worker_command
        Limits of a worker (its memory in bytes, or as ``"2GiB"``), and the command that starts it.
    client
        A ``dask.distributed.Client``: measure on the workers of its cluster (extra ``fleet``).
        Each row is measured on one of the hosts, beside the reference there.
    every_host
        With ``client``: measure each row on each host that has its devices.
    progress
        Show what runs now, the time left and the best so far.
    control
        Through which another thread watches the sweep and stops it.

    Returns
    -------
    Sweep
        After Ctrl-C or ``control.stop()``: what is there, with ``interrupted`` set.

    Raises
    ------
    ArgumentError
        Anything about the arguments, before something is compiled.
    MeasurementError
        The client's scheduler does not answer, or has no worker that can measure.
    StoreError
        The store belongs to another model or version, or another process has it.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> model = hl.load("digits_inception")
    >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
    >>> placements = ["CPU", "HETERO:ACC,CPU"]
    >>> measured = hl.sweep(model, placements, turns=2, counters=False, progress=False)
    >>> measured.summary.set_index("label").loc[placements, ["status", "n_subgraphs"]]
                   status  n_subgraphs
    label
    CPU                ok            1
    HETERO:ACC,CPU     ok            2
    """
    watch = Stopwatch.start(budget_s)
    if control is not None and not isinstance(control, SweepControl):
        raise ArgumentError(f"control= is a SweepControl, not {type(control).__name__}.")
    options = RunOptions(
        precision, turns, group_size, sustained_s, counters, timeout_s, compile_timeout_s
    )
    if metric is not None and data is None:
        raise ArgumentError("metric= says how answers to data= are judged: give data=, too")
    limits = _limits(worker_command, memory_limit)
    cluster = _cluster(client, isolate, every_host)
    models, problems = bind_variants(model, core or shared_core())
    return measure_placements(
        models,
        placements,
        Dimensions(grid or {}, executor, requests, model_cache, dedupe, baselines, scenario),
        Conditions(inputs, seed, reference, store, cache_dir, isolate, limits),
        options,
        watch,
        control=control,
        progress=progress,
        problems=problems,
        data=None if data is None else read_data(data, metric),
        cluster=cluster,
        every_host=every_host,
    )


def measure_placements(
    models: Mapping[str, BoundModel],
    placements: Placements,
    dimensions: Dimensions,
    conditions: Conditions,
    options: RunOptions,
    watch: Stopwatch,
    *,
    control: SweepControl | None = None,
    progress: bool = False,
    problems: Mapping[str, str] | None = None,
    data: ReadData | None = None,
    cluster: Cluster | None = None,
    every_host: bool = False,
) -> Sweep:
    """Do what :func:`hetero_lab.sweep` does with models that are bound.

    Parameters
    ----------
    models
        By variant; one at least.
    problems
        Why some variants could not be made.
    """
    control = control or SweepControl()
    entries = with_problems(expand(models, placements, dimensions), problems or {})
    examples = None if data is None else SweepData(data, models)
    arrays = {
        name: inputs_for(bound, conditions.inputs, conditions.seed, dimensions.scenario)
        for name, bound in models.items()
    }
    header = _header(models, entries, arrays, conditions.seed)
    if cluster is not None:
        header = msgspec.structs.replace(header, fleet=True, every_host=every_host)
    interrupted = False
    with contextlib.ExitStack() as stack:
        blobs_root = conditions.cache_dir
        if True in dimensions.model_cache and blobs_root is None:
            if cluster is not None:
                raise ArgumentError(
                    "model_cache= on the hosts of a client needs cache_dir=, a directory that each "
                    "of them can write."
                )
            blobs_root = stack.enter_context(scratch_directory())
        blobs = _blob_directories(blobs_root, models, entries)
        records: list[AnyRecord] = []
        append: Callable[[AnyRecord], object] = records.append
        if conditions.store is not None:
            opened = stack.enter_context(Store(conditions.store, header))
            header, records, append = opened.header, opened.records, opened.append
        append = control.watched(append)
        limits = conditions.limits
        benches = stack.enter_context(
            BenchFactory(models, arrays, conditions.seed, conditions.isolate, limits)
        )
        jobs = [
            entry.job(compare=conditions.reference, cache_dir=blobs.get(entry.key, ""))
            for entry in entries
            if not entry.problem
        ]
        if cluster is None:
            run: _OpenSweep = SweepRun(
                jobs=jobs,
                reference=header.reference,
                records=records,
                append=append,
                options=options,
                watch=watch,
                start=control.stoppable(benches.start),
                noise=partial(noise_of, header.environments[-1]),
                is_ready=benches.is_ready,
                at_once=compiles_at_once() if conditions.isolate else 1,
                progress=progress,
            )
        else:
            run = _fleet_run(
                cluster,
                jobs=jobs,
                header=header,
                records=records,
                append=append,
                options=options,
                watch=watch,
                set_up=lambda: benches.set_up,
                limits=limits,
                progress=progress,
            )
        try:
            if run.pending():
                run.measure()
            if examples is not None:
                examples.evaluate(entries, records, append, progress)
        except StoppedError:
            interrupted = True
        except KeyboardInterrupt:
            interrupted = True
            warn(
                "Interrupted; the turns that were measured are kept"
                + (", and the same call goes on from there." if conditions.store else ".")
            )
        finally:
            run.close()
    return sweep_from(header, records, interrupted=interrupted)


class _OpenSweep(Protocol):
    def pending(self) -> list[str]: ...

    def measure(self) -> None: ...

    def close(self) -> None: ...


def _limits(command: Sequence[str] | None, memory_limit: int | str | None) -> Limits:
    return Limits(
        command=None if command is None else tuple(command),
        memory_limit_bytes=None
        if memory_limit is None
        else int(positive("memory_limit", parse_bytes(memory_limit))),
    )


def _cluster(client: Client | None, isolate: bool, every_host: bool) -> Cluster | None:
    """Return the cluster to measure on, ``None`` without a client."""
    if client is None:
        if every_host:
            raise ArgumentError("every_host=True needs client=: the hosts are its workers.")
        return None
    try:
        from hetero_lab.experiments.fleet.cluster import cluster_of
    except ImportError as error:
        raise ArgumentError(
            "client= needs Dask, which is not installed: pip install 'hetero-lab[fleet]'."
        ) from error
    return cluster_of(client, isolate=isolate)


def _fleet_run(cluster: Cluster, **given: Any) -> _OpenSweep:
    from hetero_lab.experiments.fleet.run import FleetRun

    return FleetRun(cluster, **given)


def _header(
    models: Mapping[str, BoundModel],
    entries: Sequence[Entry],
    arrays: Mapping[str, Sequence[np.ndarray]],
    seed: int,
) -> Header:
    core = next(iter(models.values())).core
    devices = dict.fromkeys(d for e in entries for d in e.placement.devices)
    specs = emulated_devices(core)
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(arrays):
        for array in arrays[name]:
            digest.update(repr((name, array.shape, array.dtype.str)).encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return Header(
        models={
            name: StoredModel(
                name=bound.graph.name,
                fingerprint=bound.fingerprint,
                graph=graph_to_json(bound.graph),
            )
            for name, bound in models.items()
        },
        entries=[e.stored(models[e.variant].graph) for e in entries],
        reference=next(e.key for e in entries if not e.problem),
        emulated=[specs[d].to_json() for d in sorted(devices) if d in specs],
        seed=seed,
        inputs_digest=digest.hexdigest(),
        environments=[current_environment(devices, core)],
    )


def _blob_directories(
    cache_dir: str | os.PathLike[str] | None,
    models: Mapping[str, BoundModel],
    entries: Sequence[Entry],
) -> dict[str, str]:
    """One directory a placement: the runtime's own key leaves per-device properties out.

    It is for those that ask for the model cache, or for all if none does.
    """
    if cache_dir is None:
        return {}
    root = make_directory(cache_dir, private=True)
    directories = {}
    for entry in [e for e in entries if e.model_cache] or entries:
        key = entry.key.partition("-")[0]
        place = root / f"{models[entry.variant].fingerprint[:16]}-{key}"
        place.mkdir(mode=0o700, exist_ok=True)
        directories[entry.key] = str(place)
    return directories
