"""The bench: compile placements, run turns of them, read their counters.

A bench works in this process or, behind :mod:`hetero_lab.experiments.worker`, in one of its
own. Everything that goes in and out is plain data, so that both are the same.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_lab.backend.core import shared_core
from hetero_lab.backend.emulation import EmulatedDevice, register
from hetero_lab.errors import HeteroLabWarning, MeasurementError
from hetero_lab.experiments.profiling import profile
from hetero_lab.experiments.stored_profile import agreement_to_json, to_json
from hetero_lab.model.read import PreparedModel, Source, prepare
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import partition_to_json
from hetero_lab.placement.placements import Placement
from hetero_lab.runtime import memory
from hetero_lab.runtime.compiled import CompiledPlacement, compile_placement
from hetero_lab.runtime.counters import read_counters
from hetero_lab.runtime.inputs import bind_inputs, generate_inputs
from hetero_lab.runtime.reference import compare_with_reference, executed_precision
from hetero_lab.runtime.throughput import run_queue_turn
from hetero_lab.runtime.timing import run_turn, time_once, warm_up

if TYPE_CHECKING:
    import openvino as ov

_COUNTER_TURNS = 3
WARM_UP_S = 0.3


class Bench:
    """Compiled placements by key, on one core.

    Parameters
    ----------
    models
        Variant name → model (anything that ``load`` takes; a path in a worker).
    inputs
        Variant name → arrays in input order, or ``None`` to generate them from ``seed``.
    """

    def __init__(
        self,
        models: Mapping[str, Source],
        *,
        inputs: Mapping[str, Any] | None = None,
        seed: int = 0,
        core: ov.Core | None = None,
    ):
        self._core = core or shared_core()
        self._prepared: dict[str, PreparedModel] = {n: prepare(m) for n, m in models.items()}
        self._inputs = dict(inputs or {})
        self._seed = seed
        self._compiled: dict[str, tuple[CompiledPlacement, dict[str, Any]]] = {}
        self._requests: dict[str, Any] = {}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Bench:
        """Set up in a worker: emulated devices, models from files, inputs from .npz files."""
        for spec in data["emulated"]:
            register(EmulatedDevice.from_json(spec))
        inputs = {}
        for name, path in data["inputs"].items():
            with np.load(path, allow_pickle=False) as file:
                inputs[name] = [file[key] for key in sorted(file.files)]
        return cls(data["models"], inputs=inputs, seed=data["seed"])

    def compile(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Compile an entry, infer once, compare with the reference if asked to.

        Returns ``compile_ms``, ``first_inference_ms``, ``partition``, ``as_predicted``,
        ``agreement``, ``peak_rss_bytes``.
        """
        memory.reset_peak()
        compiled, arrays = self._compile(entry, counters=False)
        request = compiled.new_request(arrays)
        first_ms = time_once(request.infer) / 1e3
        self._compiled[entry["key"]] = (compiled, dict(entry))
        self._requests[entry["key"]] = request
        agreement = ()
        if entry["reference"]:
            agreement = compare_with_reference(
                self._prepared[entry["variant"]],
                arrays,
                compiled.read_outputs(request),
                executed_precision((), compiled),
                core=self._core,
            )
        return {
            "compile_ms": compiled.compile_ms,
            "first_inference_ms": first_ms,
            "partition": partition_to_json(compiled.partition),
            "as_predicted": compiled.as_predicted,
            "agreement": agreement_to_json(agreement),
            "peak_rss_bytes": memory.peak_bytes(),
        }

    def warm_up(self, key: str) -> int:
        """Run until stable; return the number of inferences."""
        return warm_up(self._requests[key].infer, at_most_s=WARM_UP_S)

    def turn(self, key: str) -> list[float]:
        """Run one turn; return the time of each inference in µs.

        With several requests in flight it is the time between results.
        """
        compiled, entry = self._compiled[key]
        if entry["requests"] == 1:
            return list(run_turn(self._requests[key].infer))
        arrays = self._arrays(entry["variant"])
        return list(run_queue_turn(compiled, arrays, entry["requests"]))

    def hold(self, key: str, seconds: float) -> list[float]:
        """Run turn after turn for some seconds; return the median of each in µs."""
        until = time.perf_counter() + seconds
        medians: list[float] = []
        while time.perf_counter() < until or not medians:
            medians.append(float(np.median(self.turn(key))))
        return medians

    def counters(self, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Compile an entry once more with counters and read them; empty if it has none."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HeteroLabWarning)
            compiled, arrays = self._compile(entry, counters=True)
        request = compiled.new_request(arrays)
        for _ in range(_COUNTER_TURNS):
            run_turn(request.infer)
        graph = compiled.prepared.graph
        try:
            rows = read_counters(request.profiling_info, compiled.partition, graph)
        except MeasurementError:
            return []
        return [asdict(row) for row in rows]

    def profile(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Make a whole Profile of a placement; return it as plain data."""
        prepared = self._prepared[asked["variant"]]
        placement = Placement(
            Affinity.from_graph(prepared.graph, asked["affinity"]),
            asked["label"],
            asked["device_properties"],
            asked["direct"],
        )
        inputs = self._arrays(asked["variant"])
        made = profile(
            prepared, placement, inputs=inputs, progress=False, core=self._core, **asked["options"]
        )
        return to_json(made)

    def release(self, key: str) -> None:
        """Let go of a compiled placement."""
        self._compiled.pop(key, None)
        self._requests.pop(key, None)

    def release_all(self) -> None:
        """Let go of all compiled placements."""
        self._compiled.clear()
        self._requests.clear()

    def _compile(
        self, entry: Mapping[str, Any], *, counters: bool
    ) -> tuple[CompiledPlacement, list[np.ndarray]]:
        prepared = self._prepared[entry["variant"]]
        placement = Placement(
            affinity=Affinity.from_graph(prepared.graph, entry["affinity"]),
            label=entry["label"],
            device_properties=entry["device_properties"],
            direct=entry["direct"],
        )
        properties = {"CACHE_DIR": entry["cache_dir"]} if entry.get("cache_dir") else {}
        # Entries are made of placements that the caller's process has checked.
        compiled = compile_placement(
            prepared,
            placement,
            counters=counters,
            properties=properties,
            checked=True,
            core=self._core,
        )
        return compiled, self._arrays(entry["variant"])

    def _arrays(self, variant: str) -> list[np.ndarray]:
        if variant not in self._inputs:
            prepared = self._prepared[variant]
            self._inputs[variant] = bind_inputs(prepared, generate_inputs(prepared, self._seed))
        return self._inputs[variant]
