"""The bench: compile placements, run turns of them, read their counters.

A bench works in this process or, behind :mod:`hetero_lab.experiments.workers.worker`, in one of its
own. Everything that goes in and out is plain data, so that both are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero_lab.backend.core import shared_core
from hetero_lab.backend.emulation import EmulatedDevice, register
from hetero_lab.clock import now
from hetero_lab.errors import MeasurementError
from hetero_lab.experiments.profile.profile import profile
from hetero_lab.experiments.profile.storage import agreement_to_json, spans_to_json, to_json
from hetero_lab.model.read import PreparedModel, Source, prepare
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import partition_to_json
from hetero_lab.placement.placement import Placement
from hetero_lab.runtime import memory
from hetero_lab.runtime.inputs import bind_inputs, generate_inputs
from hetero_lab.runtime.reference import compare_with_reference
from hetero_lab.runtime.runners import HETERO, Execution, Runner, measure_counters, open_runner
from hetero_lab.runtime.timing import run_turn, time_once, warm_up

if TYPE_CHECKING:
    import openvino as ov

WARM_UP_S = 0.3
_SHOWN = 4  # inferences after which a timeline is that of a warm model


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
        self._runners: dict[str, tuple[Runner, int]] = {}

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
        ``agreement``, ``peak_rss_bytes``, and the ``spans`` of an inference if they are known.
        """
        memory.reset_peak()
        self.release(entry["key"])
        what = self._what(entry)
        runner = open_runner(**what, core=self._core)
        self._runners[entry["key"]] = (runner, entry["requests"])
        first_ms = time_once(runner.infer) / 1e3
        peak_bytes = memory.peak_bytes()  # the reference and the counters are not the placement's
        agreement = ()
        if entry["reference"]:
            agreement = compare_with_reference(
                self._prepared[entry["variant"]],
                what["arrays"],
                runner.outputs(),
                runner.precision(()),
                core=self._core,
            )
        if runner.spans(1):
            run_turn(runner.infer, timed=_SHOWN)
        return {
            "compile_ms": runner.compile_ms,
            "first_inference_ms": first_ms,
            "partition": partition_to_json(runner.partition),
            "as_predicted": runner.as_predicted,
            "spans": spans_to_json(runner.spans(1)),
            "agreement": agreement_to_json(agreement),
            "peak_rss_bytes": peak_bytes,
        }

    def warm_up(self, key: str) -> int:
        """Run until stable; return the number of inferences."""
        return warm_up(self._runners[key][0].infer, at_most_s=WARM_UP_S)

    def turn(self, key: str) -> list[float]:
        """Run one turn; return the time of each inference in µs.

        With several requests in flight it is the time between results.
        """
        runner, requests = self._runners[key]
        return list(run_turn(runner.infer) if requests == 1 else runner.queue_turn())

    def hold(self, key: str, seconds: float) -> list[float]:
        """Run turn after turn for some seconds; return the median of each in µs."""
        until = now() + seconds
        medians: list[float] = []
        while now() < until or not medians:
            medians.append(float(np.median(self.turn(key))))
        return medians

    def counters(self, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Compile an entry once more with counters and read them; empty if it has none."""
        try:
            rows = measure_counters(**self._what(entry), core=self._core)
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
        runner, _ = self._runners.pop(key, (None, 0))
        if runner is not None:
            runner.close()

    def release_all(self) -> None:
        """Let go of all compiled placements."""
        for key in list(self._runners):
            self.release(key)

    def _what(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Return what :func:`open_runner` takes; the caller's process has checked it."""
        prepared = self._prepared[entry["variant"]]
        placement = Placement(
            affinity=Affinity.from_graph(prepared.graph, entry["affinity"]),
            label=entry["label"],
            device_properties=entry["device_properties"],
            direct=entry["direct"],
        )
        return {
            "prepared": prepared,
            "placement": placement,
            "arrays": self._arrays(entry["variant"]),
            "execution": Execution(entry.get("executor", HETERO), entry["requests"]),
            "properties": {"CACHE_DIR": entry["cache_dir"]} if entry.get("cache_dir") else {},
        }

    def _arrays(self, variant: str) -> list[np.ndarray]:
        if variant not in self._inputs:
            prepared = self._prepared[variant]
            self._inputs[variant] = bind_inputs(prepared, generate_inputs(prepared, self._seed))
        return self._inputs[variant]
