"""Runs of a model and of its pieces, on the devices of a placement and on the trusted one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hetero_lab.clock import Stopwatch
from hetero_lab.debug.transparent import TransparentModel, with_tensors_as_outputs
from hetero_lab.devices.core import BoundModel, bases_of, emulated_devices, scratch_core
from hetero_lab.devices.devices import property_of
from hetero_lab.devices.properties import PRECISION_HINT
from hetero_lab.errors import CompileError, ModelError, last_line, names_at_hand
from hetero_lab.measure.bench import read_arrays, write_arrays
from hetero_lab.measure.requests import InferFile, SetUp
from hetero_lab.measure.worker_process import WorkerError, WorkerProcess
from hetero_lab.measure.workers import Workers
from hetero_lab.model.extension_ops import unknown_op
from hetero_lab.model.read import save
from hetero_lab.placement.affinity import Affinity, labels_of
from hetero_lab.placement.partition import partition_of
from hetero_lab.placement.placement import BoundPlacement, Placement
from hetero_lab.runtime.compiled import check_crash, check_cuts, labelled_clone
from hetero_lab.runtime.counters import Counter
from hetero_lab.runtime.pieces import TensorKey, cut_pieces
from hetero_lab.runtime.runners import infer_once
from hetero_lab.tables import scratch_directory

if TYPE_CHECKING:
    import openvino as ov

Subgraphs: TypeAlias = Sequence[tuple[str, frozenset[str]]]  # devices and ops

# With these values, a device computes as the reference does, and one request at a time.
EXACT: Mapping[str, Any] = {
    "INFERENCE_PRECISION_HINT": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    "KV_CACHE_PRECISION": "f32",
    "NUM_STREAMS": 1,
    "ENABLE_CPU_PINNING": False,
}
# A device counts as hung once it takes longer than this share of the remaining budget and this many
# times its slowest answer so far, or if that was quick, longer than so many times as long and the
# least patience. The first run may load much. Without a budget, no compile takes as long as the
# limit.
_SHARE_OF_FIRST, _SHARE_OF_BUDGET = 0.4, 0.25
_TIMES_SLOWER = 4.0
_TIMES_MUCH_SLOWER, _PATIENCE_S = 20.0, 15.0
_TIMEOUT_S = 300.0


class BudgetOverError(Exception):
    """A search stops here, and keeps its findings."""


class PlacedRuns(ExitStack):
    """Compiles and infers for a search of a placement, and counts the compiles.

    ``arrays`` are the model's inputs in its order, of one inference or of several in a row; the
    exact numbers of the device ``trusted``, if there is one, are the ``reference``. With
    ``isolate``, all of these run in a worker process, so that the search survives a crash; the
    budget ``watch`` tells a hung device from a slow one, and no run may take longer than
    ``timeout_s``.
    """

    def __init__(
        self,
        bound_placement: BoundPlacement,
        arrays: Sequence[np.ndarray],
        trusted: str,
        *,
        watch: Stopwatch | None = None,
        isolate: bool = False,
        timeout_s: float = _TIMEOUT_S,
        worker_command: Sequence[str] | None = None,
    ):
        super().__init__()
        self.bound_placement = bound_placement
        self.core = bound_placement.core
        self.arrays: Sequence[np.ndarray] = list(arrays)
        self.trusted = trusted
        self.n_compiles = 0  # on any device
        self.hints: dict[str, str] = {}  # device → the precision that it was last asked for
        self.watch, self._slowest_s = watch or Stopwatch.start(None), 0.0
        self._timeout_s, self._workers = timeout_s, Workers(command=worker_command)
        self._worker: WorkerProcess | None = None  # started again after it has died
        self._scratch = self.enter_context(scratch_directory()) if isolate else None
        self.callback(lambda: self._worker and self._worker.kill())  # it may be compiling

    @property
    def bound(self) -> BoundModel:
        """The model of the placement."""
        return self.bound_placement.bound

    def check_budget(self) -> None:
        """Raise BudgetOverError once the time is over."""
        if self.watch.is_over:
            raise BudgetOverError

    @property
    def reference(self) -> Placement:
        """The trusted device, computing exactly."""
        affinity = Affinity.on_one(self.bound.graph, self.trusted)
        exact = exact_properties(self.trusted, self.core)
        return Placement(affinity, "reference", {self.trusted: exact}, direct=True)

    def quantises(self, device: str) -> bool:
        """Tell whether a device of the placement may quantise what it computes, as it likes."""
        key, real = "DYNAMIC_QUANTIZATION_GROUP_SIZE", bases_of([device], self.core)
        default = property_of(scratch_core(), real.get(device, device), key)
        return str(self.bound_placement.properties[device].get(key, default)) not in ("0", "None")

    def hint_of(self, device: str) -> str | None:
        """Return the precision that a device of the placement is asked for, as far as known."""
        hint = self.bound_placement.properties[device].get(PRECISION_HINT)
        return hint or self.hints.get(device)

    @contextmanager
    def instead(
        self, placement: BoundPlacement, arrays: Sequence[np.ndarray], trusted: str
    ) -> Iterator[None]:
        """Run another model in this block, with the same worker."""
        before = self.bound_placement, self.arrays, self.trusted
        self.bound_placement, self.arrays, self.trusted = placement, arrays, trusted
        try:
            yield
        finally:
            self.bound_placement, self.arrays, self.trusted = before

    def run(
        self,
        placement: Placement,
        shown: Collection[TensorKey] = (),
        arrays: Sequence[np.ndarray] | None = None,
    ) -> tuple[list[np.ndarray], dict[TensorKey, np.ndarray]]:
        """Return the outputs of a placement and inner tensors; CompileError if it is refused.

        The outputs of several inferences in a row follow each other; inner tensors are those of
        the last one. ``arrays`` are by default those of the search.
        """
        bound = BoundPlacement(self.bound, placement)
        partition = partition_of(bound)
        model, graph = self.bound.model.clone(), self.bound.graph
        self.before_compile(model, [(s.device, frozenset(s.ops)) for s in partition.subgraphs])
        before = affinity = bound.affinity
        if shown:
            model, graph = with_tensors_as_outputs(model, shown)
            # Each new node converts a tensor for NumPy, on the device that makes the tensor.
            makers = {op.name: graph.ops[op.inputs[0][0]].name for op in graph if op.inputs}
            affinity = Affinity.from_graph(
                graph, lambda name: before[name if name in before else makers[name]]
            )
        if not bound.direct:
            visible = BoundModel(model, graph, "", self.core)
            changed = BoundPlacement(visible, replace(placement, affinity=affinity))
            partition = partition_of(changed)
            check_cuts(visible, partition)
            model, _ = labelled_clone(changed, partition)
        target, properties = bound.compile_call
        if self._scratch is None:
            check_crash(bound, model)
        arrays = self.arrays if arrays is None else arrays
        outputs, _ = self.infer(model, target, properties, arrays, bound.devices)
        n, size = len(self.bound.model.outputs), len(model.outputs)
        starts = range(0, len(outputs), size or 1)  # a model with states may have no outputs
        of_model = [output for start in starts for output in outputs[start : start + n]]
        return of_model, dict(zip(shown, outputs[len(outputs) - size + n :], strict=True))

    def pieces(
        self,
        device: str,
        pieces: Sequence[Collection[str]],
        values: Mapping[TensorKey, np.ndarray],
    ) -> list[dict[TensorKey, np.ndarray]]:
        """Return the tensors of pieces that run side by side; CompileError if these are refused."""
        cut = cut_pieces(self.bound, pieces, values)
        self.before_compile(cut.model, [(device, frozenset(piece)) for piece in pieces])
        arrays = [values[key] for key in cut.inputs]
        properties = self.bound_placement.properties[device]
        outputs, _ = self.infer(cut.model, device, properties, arrays, [device])
        tensors: list[dict[TensorKey, np.ndarray]] = [{} for _ in pieces]
        for (number, key), array in zip(cut.outputs, outputs, strict=True):
            tensors[number][key] = array
        return tensors

    def transparent(self, fixed: Mapping[TensorKey, np.ndarray] | None = None) -> TransparentModel:
        """Return the model with every tensor visible, some fixed, on the trusted device."""
        self.n_compiles += 1
        properties = exact_properties(self.trusted, self.core)
        if self.trusted == "CPU":
            # With many outputs, snippets can turn a model into a cycle, and the compile fails.
            properties["SNIPPETS_MODE"] = "DISABLE"

        return TransparentModel(
            self.bound,
            self.arrays,
            lambda model: self.core.compile_model(model, self.trusted, properties),
            fixed,
        )

    def before_compile(self, model: ov.Model, subgraphs: Subgraphs) -> None:
        """Do nothing to a model that is about to be compiled; tests inject faults here."""

    def infer(
        self,
        model: ov.Model,
        target: str,
        properties: Mapping[str, Any],
        arrays: Sequence[np.ndarray],
        devices: Collection[str],
    ) -> tuple[list[np.ndarray], tuple[Counter, ...]]:
        """Return the outputs of any model and its counters, if asked for; CompileError as above."""
        self.n_compiles += 1
        try:
            if self._scratch is None:
                found = infer_once(model, target, properties, arrays, self.core)
            else:
                found = self._ask(self._scratch, model, target, properties, arrays)
        except (RuntimeError, WorkerError) as error:
            if way_out := unknown_op(error):
                raise ModelError(way_out) from error
            raise CompileError(f"{names_at_hand(devices)}: {last_line(error)}") from error
        outputs, hints, rows = found
        self.hints.update(hints)
        return outputs, rows

    def _ask(
        self,
        directory: Path,
        model: ov.Model,
        target: str,
        properties: Mapping[str, Any],
        arrays: Sequence[np.ndarray],
    ) -> tuple[list[np.ndarray], dict[str, str], tuple[Counter, ...]]:
        """Infer in the worker, through files."""
        path, inputs, outputs = (directory / name for name in ("m.xml", "in.npz", "out.npz"))
        save(model, path)
        write_arrays(inputs, arrays)
        began_s, left_s = self.watch.elapsed_s, self.watch.left_s
        share = _SHARE_OF_BUDGET if self.n_compiles > 1 else _SHARE_OF_FIRST
        patience_s = max(share * left_s, _TIMES_SLOWER * self._slowest_s)
        if self._slowest_s:
            patience_s = min(patience_s, max(_PATIENCE_S, _TIMES_MUCH_SLOWER * self._slowest_s))
        request = InferFile(
            path=str(path),
            target=target,
            properties=dict(properties),
            affinities=labels_of(model) if target.startswith("HETERO:") else None,
            inputs=str(inputs),
            outputs=str(outputs),
        )
        if self._worker is None:
            emulated = tuple(emulated_devices(self.core).values())
            self._worker = WorkerProcess(SetUp(models={}, emulated=emulated), self._workers)
        try:
            timeout_s = min(patience_s, left_s, self._timeout_s)
            facts = self._worker.ask(request, timeout_s=timeout_s)
        except WorkerError as error:
            if error.died:
                self._worker = None
            raise
        alone = self.bound_placement.devices == (target,)
        if alone or target != self.trusted:  # which may be far slower
            self._slowest_s = max(self._slowest_s, self.watch.elapsed_s - began_s)
        return read_arrays(outputs), *facts


def exact_properties(device: str, core: ov.Core) -> dict[str, Any]:
    """Return the exact values of the properties that a device has."""
    real = bases_of([device], core).get(device, device)
    access = scratch_core().get_property(real, "SUPPORTED_PROPERTIES")
    return {key: value for key, value in EXACT.items() if access.get(key) == "RW"}
