"""Runs of a model, of its pieces, and of all its tensors in sight, on any devices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import openvino as ov

from hetero_lab.devices.core import BoundModel, bases_of, emulated_devices, scratch_core
from hetero_lab.devices.devices import property_of
from hetero_lab.devices.properties import PRECISION_HINT
from hetero_lab.errors import CompileError, ModelError, last_line, names_at_hand
from hetero_lab.measure.bench import Bench, read_arrays, write_arrays
from hetero_lab.measure.worker_process import SetUp, WorkerError, WorkerProcess, Workers
from hetero_lab.model.extension_ops import unknown_op
from hetero_lab.model.opgraph import CONSTANT, PARAMETER, RESULT, OpGraph
from hetero_lab.model.read import op_graph, save
from hetero_lab.placement.affinity import Affinity, labels_of
from hetero_lab.placement.partition import partition_of
from hetero_lab.placement.placement import BoundPlacement, Placement
from hetero_lab.progress import Stopwatch
from hetero_lab.runtime.compiled import check_crash, check_cuts, labelled_clone
from hetero_lab.runtime.counters import Counter
from hetero_lab.runtime.executors import infer_once
from hetero_lab.runtime.pieces import FLOATS, TensorKey, as_type, build_model, cut_pieces, readable
from hetero_lab.runtime.tensors import is_plain, set_inputs, to_array
from hetero_lab.tables import scratch_directory

Tensors: TypeAlias = Mapping[TensorKey, np.ndarray]  # or masks of their elements
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
# least patience. After a hang, most of the budget is left; a first run may load much.
_SHARE_OF_FIRST, _SHARE_OF_BUDGET = 0.4, 0.25
_TIMES_SLOWER = 4.0  # another set of ops may compile for longer, but not for so much longer
_TIMES_MUCH_SLOWER, _PATIENCE_S = 20.0, 15.0  # so that the hang of a quick device is seen early
_TIMEOUT_S = 300.0  # at most, and the only limit without a budget


class BudgetOverError(Exception):
    """A search stops here, and keeps its findings."""


class PlacedRuns(ExitStack):
    """Compiles and infers for a search of a placement, and counts the compiles.

    ``arrays`` are the model's inputs in its order, of one inference or of several in a row; the
    exact numbers of the device ``trusted``, if there is one, are the ``reference``. With
    ``isolate``, a worker process runs all of these and may crash; the budget ``watch`` tells a
    hung device from a slow one, and no run may take longer than ``timeout_s``.
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
        return self.bound_placement.bound

    def check_budget(self) -> None:
        if self.watch.is_over:
            raise BudgetOverError

    @property
    def reference(self) -> Placement:
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
        inner: Collection[TensorKey] = (),
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
        if inner:
            model, graph = with_tensors_as_outputs(model, inner)
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
        return of_model, dict(zip(inner, outputs[len(outputs) - size + n :], strict=True))

    def pieces(
        self, device: str, pieces: Sequence[Collection[str]], values: Tensors
    ) -> list[dict[TensorKey, np.ndarray]]:
        """Return the tensors of pieces that run side by side; CompileError if these are refused."""
        model, inputs, keys = cut_pieces(self.bound, pieces, values)
        self.before_compile(model, [(device, frozenset(piece)) for piece in pieces])
        arrays, settings = [values[key] for key in inputs], self.bound_placement.properties[device]
        outputs, _ = self.infer(model, device, settings, arrays, [device])
        tensors: list[dict[TensorKey, np.ndarray]] = [{} for _ in pieces]
        for (number, key), array in zip(keys, outputs, strict=True):
            tensors[number][key] = array
        return tensors

    def transparent(self, fixed: Tensors | None = None) -> TransparentModel:
        """Return the model with every tensor visible, some fixed, on the trusted device."""
        self.n_compiles += 1
        properties = exact_properties(self.trusted, self.core)
        if self.trusted == "CPU":
            # With many outputs, snippets can turn a model into a cycle, and the compile fails.
            properties["SNIPPETS_MODE"] = "DISABLE"
        return TransparentModel(self.bound, self.arrays, self.trusted, properties, fixed or {})

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
                outputs, hints, rows = infer_once(model, target, properties, arrays, self.core)
            else:
                outputs, hints, rows = self._ask(self._scratch, model, target, properties, arrays)
        except (RuntimeError, WorkerError) as error:
            if way_out := unknown_op(error):
                raise ModelError(way_out) from error
            raise CompileError(f"{names_at_hand(devices)}: {last_line(error)}") from error
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
        began_s, left_s = self.watch.elapsed_s, self.watch.left_s  # the start of a worker counts
        request = partial(
            Bench.infer_file,
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
        share = _SHARE_OF_BUDGET if self.n_compiles > 1 else _SHARE_OF_FIRST
        patience_s = max(share * left_s, _TIMES_SLOWER * self._slowest_s)
        if self._slowest_s:
            patience_s = min(patience_s, max(_PATIENCE_S, _TIMES_MUCH_SLOWER * self._slowest_s))
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
    real = bases_of([device], core).get(device, device)
    access = scratch_core().get_property(real, "SUPPORTED_PROPERTIES")
    return {key: value for key, value in EXACT.items() if access.get(key) == "RW"}


class TransparentModel:
    """A model with every tensor as an output, and an offset that can be added to each.

    A run shows how an error in some tensors propagates through the model. Nothing can be fused.
    ``fixed`` values replace some tensors. ``values`` holds the model's inputs and every tensor that
    depends on them; floating point is always f32. ``before_run`` is called before each inference
    (an estimate of rounding takes many); its errors end the estimate.
    """

    before_run: Callable[[], None] | None = None

    def __init__(
        self,
        bound: BoundModel,
        arrays: Sequence[np.ndarray],
        device: str,
        properties: dict[str, Any],
        fixed: Tensors,
    ):
        self._graph = bound.graph
        for integers in (True, False):
            # An integer may decide a shape; with an offset added, that shape would be unknown.
            model, self._keys, offsets = _transparent(bound, fixed, integers=integers)
            if not any(output.get_partial_shape().is_dynamic for output in model.outputs):
                break
        compiled = bound.core.compile_model(model, device, properties)
        self._request = compiled.create_infer_request()
        self._zeros: dict[TensorKey, tuple[int, ov.Tensor]] = {}
        types = [port.get_element_type() for port in model.inputs[: len(arrays)]]
        set_inputs(self._request, arrays, types)
        for index, key in enumerate(offsets, start=len(arrays)):
            port = model.inputs[index]
            # If a shape depends on data, a single zero is broadcast to it.
            shape = [d.get_length() if d.is_static else 1 for d in port.get_partial_shape()]
            zero = np.zeros(shape, port.get_element_type().to_dtype())
            self._zeros[key] = (index, ov.Tensor(zero))
            self._request.set_input_tensor(*self._zeros[key])
        self.values = self.run({})

    def run(
        self, offsets: Tensors, keys: Collection[TensorKey] | None = None
    ) -> dict[TensorKey, np.ndarray]:
        """Infer with offsets added to some tensors; return those of ``keys``, or all.

        RuntimeError if an offset changes the shape of a tensor that another offset is added to.
        """
        if self.before_run is not None:
            self.before_run()
        for key, offset in offsets.items():
            index, zero = self._zeros[key]
            array = np.asarray(offset, zero.data.dtype, order="C")
            self._request.set_input_tensor(index, ov.Tensor(array))
        self._request.reset_state()
        try:
            self._request.infer()
        finally:
            for key in offsets:
                self._request.set_input_tensor(*self._zeros[key])
        return {
            key: to_array(self._request.get_output_tensor(index))
            for index, key in enumerate(self._keys)
            if keys is None or key in keys
        }

    def try_run(self, offsets: Tensors, keys: Collection[TensorKey]) -> dict[TensorKey, np.ndarray]:
        """Do the same, without tensors whose shape has changed."""
        try:
            tensors = self.run(offsets, keys)
        except RuntimeError:
            return {}
        return {k: tensor for k, tensor in tensors.items() if tensor.shape == self.values[k].shape}

    def takes_offset(self, key: TensorKey) -> bool:
        return key in self._zeros

    def unfused(self, outputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return a model's outputs as they are without fused ops, where these are known."""
        graph = self._graph
        makers = (graph.ops[index].inputs[0] for index in graph.results)
        return [
            self.values.get((graph.ops[index].name, port), output).astype(output.dtype)
            for (index, port), output in zip(makers, outputs, strict=True)
        ]


def _transparent(
    bound: BoundModel, fixed: Tensors, *, integers: bool
) -> tuple[ov.Model, list[TensorKey], list[TensorKey]]:
    graph, clone = bound.graph, bound.model.clone()
    nodes = {node.get_friendly_name(): node for node in clone.get_ordered_ops()}
    keys, offsets = list[TensorKey](), list[TensorKey]()
    extra, results = list[Any](), list[Any]()
    for op in graph:
        if op.index in graph.constant_side or op.type in (CONSTANT, RESULT):
            continue
        for port in sorted({use.source_port for use in graph.consumers[op.index]}):
            output = nodes[op.name].output(port)
            kind = output.get_element_type()
            uses = list(output.get_target_inputs())
            if (op.name, port) in fixed:
                constant = ov.opset13.constant(fixed[op.name, port])
                output = as_type(constant.output(0), kind)
                for use in uses:
                    use.replace_source_output(output)
            is_float = kind.get_type_name() in FLOATS
            tensor = readable(output)
            movable = is_float or (integers and op.type != PARAMETER and is_plain(kind))
            shape = output.get_partial_shape()
            if movable and (not shape.is_dynamic or (is_float and shape.rank.is_static)):
                name = f"offset{len(extra)}"
                offset = ov.opset13.parameter(shape, tensor.get_element_type(), name=name)
                join = ov.opset13.logical_xor if kind == ov.Type.boolean else ov.opset13.add
                tensor = join(tensor, offset).output(0)
                moved = as_type(tensor, kind)
                for use in uses:
                    use.replace_source_output(moved)
                extra.append(offset)
                offsets.append((op.name, port))
            results.append(ov.opset13.result(tensor, name=f"tensor{len(keys)}"))
            keys.append((op.name, port))
    parameters = [*clone.get_parameters(), *extra]
    model = build_model(results, clone.get_sinks(), parameters, f"{graph.name}_transparent")
    model.validate_nodes_and_infer_types()
    return model, keys, offsets


def with_tensors_as_outputs(
    model: ov.Model, keys: Collection[TensorKey]
) -> tuple[ov.Model, OpGraph]:
    """Return a model with some inner tensors as more outputs, in that order, and its graph."""
    clone = model.clone()
    nodes = {node.get_friendly_name(): node for node in clone.get_ordered_ops()}
    results = []
    for number, (name, port) in enumerate(keys):
        tensor = nodes[name].output(port)
        output = readable(tensor)
        if output.get_node() != tensor.get_node():
            output.get_node().set_friendly_name(f"{name}/f32_{number}")
        results.append(ov.opset13.result(output, name=f"{name}/shown{number}"))
    clone.add_results(results)
    return clone, op_graph(clone)
