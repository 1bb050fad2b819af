"""Sweep: many placements of one model, compiled in workers and measured in turn."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hetero_lab.devices.core import shared_core
from hetero_lab.errors import ArgumentError
from hetero_lab.lookup import annex
from hetero_lab.measure.session import Conditions, Session, SweepControl
from hetero_lab.measure.stopping import RunOptions
from hetero_lab.measure.trial_grid import Placements, Variant, bind_variants, expand
from hetero_lab.measure.worker_process import Workers
from hetero_lab.model.language import Scenario
from hetero_lab.model.read import Source
from hetero_lab.progress import Stopwatch
from hetero_lab.results.sweep_result import Sweep
from hetero_lab.runtime.inputs import Inputs
from hetero_lab.samples.datasets import Correct, Dataset, Metric, read_optional_data

if TYPE_CHECKING:
    import openvino as ov
    from distributed import Client


def sweep(
    model: Source | Mapping[str, Variant],
    placements: Placements,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    precision: float = 0.02,
    budget_s: float | None = 60.0,
    turns: int | None = None,
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
    remedies: bool = False,
    isolate: bool = True,
    workers: Workers | None = None,
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
    machine affects all alike. The model compiled directly on each single device that can run it
    is added as a baseline.

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
        label: ``{"mine": affinity}``; also ``"AUTO:GPU,CPU"``, ``"MULTI:GPU,CPU"`` and
        ``"BATCH:GPU(8)"``, which run the whole model on devices of their choice. The summary's
        ``execution_devices``, ``n_streams`` and ``optimal_requests`` say which they chose.
    grid
        Dimensions to cross with the placements:

        - properties, ``{"CPU.INFERENCE_PRECISION_HINT": ["f32", "bf16"],
          "*.PERFORMANCE_HINT": [...]}``; ``AUTO.PERFORMANCE_HINT`` is for ``AUTO:…``.
        - ``"executor": ["hetero", "parallel"]``, the latter for
          :class:`hetero_lab.ParallelExecutor`.
        - ``"requests": [1, 4]``, requests in flight; for more than one, a sample is the time
          between results.
        - ``"model_cache": [False, True]``, OpenVINO's model cache off and on: with it, a
          placement is compiled into the cache, then loaded from there and measured. The
          summary's ``compile_ms`` is then the time to load it, and ``from_cache`` says whether
          OpenVINO did. Each has a directory of its own in ``cache_dir``, or a temporary one.
    precision, budget_s, turns
        Turns are added until every ratio is known to ``precision`` (half width of its 95 %
        interval) or the wall time of the whole call, compiles included, reaches ``budget_s``
        (overrun at most by one compile). Time for eight turns of every placement comes first; if
        the budget is too short for that, turns become fewer, then shorter, then placements are
        left out, and notes and details say so. ``turns`` sets a fixed number of turns instead.
    sustained_s
        Hold each placement that long after its turns, to see its thermal state; this time comes
        on top of ``budget_s``.
    inputs, seed
        As for :func:`hetero_lab.profile`.
    scenario
        The prompt and length that a language model generates. A turn is then a generation, and all
        latencies, ratios and ranks are of the time per further token; the summary has
        ``ttft_ms``, ``tpot_ms`` and ``tokens_per_s`` with their intervals.
    counters, reference
        Whether to compile each placement once more for its counters, and to compare its
        outputs with a single-device f32 reference.
    data, metric
        Examples for :func:`hetero_lab.evaluate`: the summary then has each placement's accuracy
        and its drop from f32. They are run in this process, once per distinct placement, after
        the turns and outside of ``budget_s``.
    store
        Directory to which each turn is appended as it ends. The same call continues where it
        was stopped.
    cache_dir
        Directory for compiled blobs, separate for each model, affinity and properties; all
        placements use it unless ``grid`` says which.
    dedupe
        Measure equal placements only once.
    baselines
        Whether to add the single devices.
    remedies
        Whether to add each placement as :func:`hetero_lab.simplify` changes it.
    isolate
        Compile and run in worker processes: a crash, a hang or running out of memory costs
        one row.
    workers
        :class:`hetero_lab.Workers`: the limits of worker processes, the command that starts them,
        and how many placements are alive at once.
    client
        A ``dask.distributed.Client``: measure on the workers of its cluster (extra ``fleet``).
        Each row is measured on one of the hosts, beside the reference there.
    every_host
        With ``client``: measure each row on each host that has its devices.
    progress
        Show what runs now, the time left and the best so far.
    control
        Lets another thread follow the sweep and stop it.

    Returns
    -------
    Sweep
        After Ctrl-C or ``control.stop()`` it holds the turns so far and has ``interrupted`` set.

    Raises
    ------
    ArgumentError
        An argument is wrong; raised before anything is compiled.
    MeasurementError
        The client's scheduler does not answer, or has no worker that can measure.
    StoreError
        The store belongs to another model or version, or another process has it open.

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
    options = RunOptions(precision, turns, sustained_s, counters, reference)
    examples = read_optional_data(data, metric)
    cluster = _cluster(client, isolate, every_host)
    models, problems = bind_variants(model, core or shared_core())
    trials = expand(
        models,
        placements,
        grid,
        scenario=scenario,
        dedupe=dedupe,
        baselines=baselines,
        remedies=remedies,
        problems=problems,
    )
    conditions = Conditions(inputs, seed, scenario, cache_dir, isolate, workers or Workers())
    with Session(models, conditions, cluster=cluster, every_host=every_host) as session:
        return session.measure(
            trials,
            options,
            watch,
            store=store,
            control=control,
            progress=progress,
            data=examples,
        )


def _cluster(client: Client | None, isolate: bool, every_host: bool) -> Callable[..., None] | None:
    """Return what measures on the client's cluster, ``None`` without a client."""
    if client is None:
        if every_host:
            raise ArgumentError("every_host=True needs client=: the hosts are its workers.")
        return None
    try:
        cluster_of = annex("client")
    except ImportError as error:
        raise ArgumentError(
            "client= needs Dask, which is not installed: pip install 'hetero-lab[fleet]'."
        ) from error
    return cluster_of(client, isolate=isolate)
