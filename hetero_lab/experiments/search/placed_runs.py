"""Runs of a model and of pieces of it as a placement has them, and on a trusted device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_lab.backend.emulation import emulated_devices
from hetero_lab.errors import CompileError, names_at_hand, shorten
from hetero_lab.experiments.workers.process import WorkerError, WorkerProcess
from hetero_lab.experiments.workers.set_up import Limits, SetUp
from hetero_lab.model.read import PreparedModel, save
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import Partition, one_subgraph, predict
from hetero_lab.placement.placement import Placement, compile_call, compile_properties
from hetero_lab.runtime.compiled import check_cuts, labelled_clone
from hetero_lab.runtime.infer_once import affinities_of, infer_once
from hetero_lab.runtime.pieces import TensorKey, cut_pieces
from hetero_lab.runtime.transparent import TransparentModel, with_tensors_as_outputs
from hetero_lab.tables import scratch_directory

if TYPE_CHECKING:
    import openvino as ov

Hook = Callable[["ov.Model", Sequence[tuple[str, frozenset[str]]]], None]

_COMMAND = (sys.executable, "-m", "hetero_lab.experiments.search.inference_worker")
_TIMEOUT_S = 300.0  # of a worker: some devices compile for minutes


class PlacedRuns:
    """Compiles and infers what a search asks for, and counts the compiles.

    Parameters
    ----------
    arrays
        The model's inputs, in its order.
    trusted
        The device whose f32 is right.
    isolate
        Whether the placement's devices work in a process of their own, so that the search
        survives their crash.
    worker_command
        How that process is started.
    before_compile
        Called with each model that is about to be compiled for the placement, and with the
        device and the ops of each subgraph in it.

    Attributes
    ----------
    n_compiles
        The compiles so far, on any device.
    hints
        Device → the precision that it was last asked for.
    """

    def __init__(
        self,
        prepared: PreparedModel,
        placement: Placement,
        arrays: Sequence[np.ndarray],
        trusted: str,
        core: ov.Core,
        *,
        isolate: bool = False,
        worker_command: Sequence[str] | None = None,
        before_compile: Hook | None = None,
    ):
        self.prepared, self.placement, self.arrays = prepared, placement, list(arrays)
        self.trusted, self.core = trusted, core
        self.n_compiles = 0
        self.hints: dict[str, str] = {}
        self._before_compile = before_compile
        self._properties = compile_properties(placement, core)
        self._worker = _Worker(core, worker_command or _COMMAND) if isolate else None

    def close(self) -> None:
        """End the worker, if there is one."""
        if self._worker is not None:
            self._worker.close()

    def placed(
        self, placement: Placement, shown: Collection[TensorKey] = ()
    ) -> tuple[list[np.ndarray], dict[TensorKey, np.ndarray]]:
        """Run a placement; return the outputs, and the inner tensors that were to be shown.

        Raises
        ------
        CompileError
            The runtime refuses the placement, or to run it.
        """
        prepared, affinity = self.prepared, placement.affinity
        partition = partition_of(prepared, placement)
        model = prepared.model.clone()
        self._prepare(model, [(s.device, frozenset(s.ops)) for s in partition.subgraphs])
        prepared = replace(prepared, model=model)
        if shown:
            model, graph = with_tensors_as_outputs(model, shown)
            prepared = PreparedModel(model, graph, "")
            # What is new converts a tensor for NumPy, on the device that makes it.
            makers = {op.name: graph.ops[op.inputs[0][0]].name for op in graph if op.inputs}
            known = placement.affinity
            affinity = Affinity.from_graph(
                graph, lambda name: known[name] if name in known else known[makers[name]]
            )
            partition = partition_of(prepared, replace(placement, affinity=affinity))
        if not placement.direct:
            check_cuts(prepared, partition)
            model, _ = labelled_clone(prepared, affinity, partition)
        target, properties = compile_call(placement, self.core)
        outputs = self._infer(model, target, properties, self.arrays, placement.devices)
        n = len(self.prepared.model.outputs)
        return outputs[:n], dict(zip(shown, outputs[n:], strict=True))

    def pieces(
        self,
        device: str,
        pieces: Sequence[Collection[str]],
        values: Mapping[TensorKey, np.ndarray],
    ) -> list[tuple[int, TensorKey, np.ndarray]]:
        """Run pieces on a device of the placement, side by side, with given tensors.

        Returns
        -------
        list
            The number of a piece, a tensor that it made, and its value.

        Raises
        ------
        CompileError
            The device refuses them.
        """
        cut = cut_pieces(self.prepared, pieces, values)
        self._prepare(cut.model, [(device, frozenset(piece)) for piece in pieces])
        arrays = [values[key] for key in cut.inputs]
        outputs = self._infer(cut.model, device, self._properties[device], arrays, [device])
        return [(n, key, array) for (n, key), array in zip(cut.outputs, outputs, strict=True)]

    def transparent(self) -> TransparentModel:
        """Return the model with every tensor in sight, on the trusted device."""
        self.n_compiles += 1
        properties = {"INFERENCE_PRECISION_HINT": "f32"}
        if self.trusted == "CPU":
            # With many outputs, its snippets can tie a model into a loop, and the compile fails.
            properties["SNIPPETS_MODE"] = "DISABLE"
        return TransparentModel(
            self.prepared,
            self.arrays,
            lambda model: self.core.compile_model(model, self.trusted, properties),
        )

    def _prepare(self, model: ov.Model, subgraphs: Sequence[tuple[str, frozenset[str]]]) -> None:
        if self._before_compile is not None:
            self._before_compile(model, subgraphs)

    def _infer(
        self,
        model: ov.Model,
        target: str,
        properties: Mapping[str, Any],
        arrays: Sequence[np.ndarray],
        devices: Collection[str],
    ) -> list[np.ndarray]:
        self.n_compiles += 1
        try:
            if self._worker is not None:
                outputs, hints = self._worker.infer(model, target, properties, arrays)
            else:
                outputs, hints = infer_once(model, target, properties, arrays, self.core)
        except (RuntimeError, WorkerError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            last = shorten(lines[-1] if lines else type(error).__name__, 300)
            raise CompileError(f"{names_at_hand(devices)}: {last}") from error
        self.hints.update(hints)
        return outputs


class _Worker:
    """Infers in a process that is started again when it has died."""

    def __init__(self, core: ov.Core, command: Sequence[str]):
        emulated = [spec.to_json() for spec in emulated_devices(core).values()]
        self._set_up = SetUp(models={}, emulated=emulated)
        self._limits = Limits(command=tuple(command))
        self._process: WorkerProcess | None = None
        self._files = ExitStack()
        self._directory: Path = self._files.enter_context(scratch_directory())

    def infer(
        self,
        model: ov.Model,
        target: str,
        properties: Mapping[str, Any],
        arrays: Sequence[np.ndarray],
    ) -> tuple[list[np.ndarray], dict[str, str]]:
        if self._process is None:
            self._process = WorkerProcess(self._set_up, self._limits)
        path, inputs, outputs = (self._directory / f"{n}" for n in ("m.xml", "in.npz", "out.npz"))
        save(model, path)
        named: dict[str, Any] = {f"in{index}": array for index, array in enumerate(arrays)}
        np.savez(inputs, **named)
        try:
            hints = self._process.ask(
                "infer",
                timeout_s=_TIMEOUT_S,
                path=str(path),
                target=target,
                properties=properties,
                affinities=affinities_of(model) if target.startswith("HETERO:") else None,
                inputs=str(inputs),
                outputs=str(outputs),
            )
        except WorkerError as error:
            if error.died:
                self._process = None
            raise
        with np.load(outputs) as made:
            return [made[f"out{index}"] for index in range(len(made.files))], hints

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()  # it may be compiling
        self._files.close()


def partition_of(prepared: PreparedModel, placement: Placement) -> Partition:
    """Return the subgraphs that a placement is compiled as."""
    predicted = predict(prepared.graph, placement.affinity)
    if placement.direct:
        return one_subgraph(predicted, placement.affinity.devices[0])
    return predicted
