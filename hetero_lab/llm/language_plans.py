"""Language models by layer: the gain of each further layer on a device, and a plan for both phases.

Each placement gives each device one run of layers, in any order of the devices. That suits a memory
limit, and leaves few enough placements to compare all of them: with two devices, twice as many as
there are layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from hetero_lab.costs.cost_model import CostModel
from hetero_lab.costs.design import repeated_layers
from hetero_lab.costs.objective import LATENCY
from hetero_lab.errors import PlanError, did_you_mean, shorten
from hetero_lab.model.blocks import find_blocks
from hetero_lab.model.language import Scenario
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.memory_limits import (
    DeviceMemory,
    MemoryLimit,
    Pools,
    device_memory,
    memory_frame,
    memory_pools,
    pools_text,
)
from hetero_lab.planning.exhaustive import runs, runs_ns
from hetero_lab.planning.problem import Pairwise
from hetero_lab.result import Framed
from hetero_lab.tables import bytes_text, frame_of

if TYPE_CHECKING:
    import pandas as pd

_MOST_RUNS = 50_000  # placements of three devices on 129 layers, of four on 24
_FOREVER = 1 << 62  # ns: no time of a scenario is as long, and int64 holds it


@dataclass(frozen=True)
class CurvePoint:
    """The fastest placement with a number of layers on a device, its memory and its times."""

    n_blocks: int
    affinity: Affinity
    memory: tuple[DeviceMemory, ...]
    ttft_ms: float
    tpot_ms: float

    def held_bytes(self, device: str) -> int:
        """Return the bytes that a device holds."""
        return next(m.total_bytes for m in self.memory if m.device == device)


@dataclass(frozen=True)
class BlockCurve(Framed):
    """Predicted gain of each further layer on a device.

    Attributes
    ----------
    device
        The device that gets more and more layers.
    points
        One for each number of layers for which some placement keeps to the limits.
    scenario
        The tokens to generate.
    emulated
        Emulated device → the device that runs it.
    """

    device: str
    points: tuple[CurvePoint, ...]
    scenario: Scenario
    emulated: Mapping[str, str] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per point.

        ``blocks`` and ``memory_mib`` on the device, ``tokens_per_s``; ``gain_tokens_per_s`` over
        the row before, and ``gain_per_mib``; ``tpot_ms``, ``ttft_ms``.
        """
        rows = [
            {
                "blocks": point.n_blocks,
                "memory_mib": point.held_bytes(self.device) / 2**20,
                "tokens_per_s": 1e3 * self.scenario.batch / point.tpot_ms,
                "tpot_ms": point.tpot_ms,
                "ttft_ms": point.ttft_ms,
            }
            for point in self.points
        ]
        frame = frame_of(rows)
        gain = frame["tokens_per_s"].diff()
        frame.insert(3, "gain_tokens_per_s", gain)
        frame.insert(4, "gain_per_mib", gain / frame["memory_mib"].diff())
        return frame

    def __repr__(self) -> str:
        first, last = self.points[0], self.points[-1]
        rates = [1e3 * self.scenario.batch / point.tpot_ms for point in (first, last)]
        return (
            f"BlockCurve({first.n_blocks} to {last.n_blocks} layers on {self.device}: "
            f"{rates[0]:.1f} to {rates[1]:.1f} tokens/s, "
            f"{bytes_text(first.held_bytes(self.device))} to "
            f"{bytes_text(last.held_bytes(self.device))})"
        )


@dataclass(frozen=True)
class PhasePlan(Framed):
    """A placement for the prompt and one for further tokens, under one memory, as predicted.

    Attributes
    ----------
    prefill, decode
        The two placements. They may be the same.
    memory
        Bytes that each device holds for both together.
    ttft_ms, tpot_ms
        Time of the first token, and of each further one.
    move_ms
        Cost of handing the key-value cache over between the two placements, for the layers that
        change devices. It is not measured: a copy as between subgraphs is assumed.
    one, one_ms
        The best single placement for both phases, and the time of the scenario with it; ``None``
        and infinity where none fits.
    differ
        Whether the two phases place layers differently.
    """

    scenario: Scenario
    prefill: Affinity
    decode: Affinity
    memory: tuple[DeviceMemory, ...]
    ttft_ms: float
    tpot_ms: float
    move_ms: float
    one: Affinity | None
    one_ms: float
    differ: bool

    @property
    def total_ms(self) -> float:
        """The time of the whole scenario."""
        return self.ttft_ms + self.move_ms + (self.scenario.new_tokens - 1) * self.tpot_ms

    @property
    def verdict(self) -> str:
        """Say in a sentence whether the phases are better apart."""
        if not self.differ:
            return f"One placement is best for both phases: {self.total_ms:.1f} ms in all."
        if self.one is None:
            return (
                f"No placement fits for both phases; with two, {self.total_ms:.1f} ms in all, "
                f"{self.move_ms:.1f} ms of it to hand the key-value cache over."
            )
        return (
            f"The prompt and further tokens have different best placements: {self.total_ms:.1f} "
            f"ms in all, {self.move_ms:.1f} ms of it to hand the key-value cache over, against "
            f"{self.one_ms:.1f} ms with the best one for both."
        )

    def to_frame(self) -> pd.DataFrame:
        """Return one row per device: its bytes by kind and in total, for both phases together."""
        return memory_frame(self.memory).drop(columns="blocks")

    def __repr__(self) -> str:
        memory = ", ".join(f"{m.device} {bytes_text(m.total_bytes)}" for m in self.memory)
        return f"PhasePlan({self.verdict} Memory: {memory})"


def block_curve(
    costs: CostModel, *, device: str | None = None, memory_limit: MemoryLimit | None = None
) -> BlockCurve:
    """Predict the gain of each further layer of a language model on a device.

    For every number of layers on the device, this takes the fastest placement in which each
    device has one run of layers. Its memory is counted at the scenario's context length.

    Parameters
    ----------
    costs
        The result of :func:`hetero_lab.calibrate` with a ``scenario``.
    device
        By default the first one of the costs.
    memory_limit
        As for :func:`hetero_lab.plan`. Placements that exceed it are left out.

    Raises
    ------
    PlanError
        The costs are not of a language model, do not know the device, or nothing keeps to the
        limits.

    Examples
    --------
    Needs the extra ``llm``, so that it is not run here::

        costs = hl.calibrate(llm, ["GPU", "CPU"], scenario=hl.Scenario(64, 32))
        curve = hl.llm.block_curve(costs)
        hl.views.block_curve(curve)
    """
    phases = _Phases.of(costs)
    device = costs.devices[0] if device is None else device
    if device not in costs.devices:
        raise PlanError(
            f"{shorten(str(device))} is not among the devices of these costs."
            f"{did_you_mean(str(device), costs.devices)} Devices: {', '.join(costs.devices)}."
        )
    pools = memory_pools(costs.devices, memory_limit)
    fitting = phases.fitting(pools)
    if not len(fitting):
        raise phases.nothing_fits(pools)
    n_blocks = (phases.step.blocks == costs.devices.index(device)).sum(axis=1)
    step_ns = phases.step.latency_ns
    points = []
    for n in np.unique(n_blocks[fitting]).tolist():
        at = min(fitting[n_blocks[fitting] == n].tolist(), key=step_ns.__getitem__)
        points.append(
            CurvePoint(
                n_blocks=n,
                affinity=phases.step.affinity(at),
                memory=phases.memory(at),
                ttft_ms=phases.first.predicted_ms(at),
                tpot_ms=phases.step.predicted_ms(at),
            )
        )
    return BlockCurve(device, tuple(points), phases.scenario, dict(costs.emulated))


def plan_phases(costs: CostModel, *, memory_limit: MemoryLimit | None = None) -> PhasePlan:
    """Plan the prompt and the further tokens of a language model jointly, under one memory.

    A prompt is bound by arithmetic, a further token by memory, so each may have another best
    device. Of all pairs of placements in which each device has one run of layers, this returns
    the pair with the least time for the scenario: the first token, handing over the key-value
    cache, and further tokens. Weights and states that a device holds for both phases are counted
    once.

    Parameters
    ----------
    costs
        The result of :func:`hetero_lab.calibrate` with a ``scenario``.
    memory_limit
        As for :func:`hetero_lab.plan`.

    Raises
    ------
    PlanError
        The costs are not of a language model, or nothing keeps to the limits.

    Examples
    --------
    Needs the extra ``llm``, so that it is not run here::

        costs = hl.calibrate(llm, ["GPU", "CPU"], scenario=hl.Scenario(1024, 64))
        hl.llm.plan_phases(costs, memory_limit={"GPU": "100MiB"}).verdict
    """
    return _Phases.of(costs).best_plan(memory_pools(costs.devices, memory_limit))


def plan_static_phases(
    prefill: CostModel,
    decode: CostModel,
    scenario: Scenario,
    *,
    memory_limit: MemoryLimit | None = None,
) -> PhasePlan:
    """Plan the two static models of a language model jointly, under one memory.

    As :func:`plan_phases`, for the result of :func:`hetero_lab.llm.static_phases`. Each model is
    compiled by itself, so that a device that has a layer in both holds its weights twice. The
    cache is counted once, with the model for further tokens, which reads it.

    Parameters
    ----------
    prefill, decode
        The results of :func:`hetero_lab.calibrate` for the two models, on the same devices.
    scenario
        The one that the two models were made for.
    memory_limit
        As for :func:`hetero_lab.plan`.

    Raises
    ------
    PlanError
        The devices differ, the models do not have the same layers, or nothing keeps to the
        limits.

    Examples
    --------
    Needs the extra ``llm``, so that it is not run here::

        phases = hl.llm.static_phases(llm, hl.Scenario(64, 32))
        costs = [hl.calibrate(m, ["NPU", "CPU"]) for m in (phases.prefill, phases.decode)]
        plan = hl.llm.plan_static_phases(*costs, phases.scenario)
        hl.profile(phases.decode, plan.decode)
    """
    pools = memory_pools(decode.devices, memory_limit)
    phases = _Phases(_Runs.of(prefill), _Runs.of(decode), scenario, is_static=True)
    n_first, n_step = phases.first.blocks.shape[1], phases.step.blocks.shape[1]
    if prefill.devices != decode.devices or n_first != n_step:
        raise PlanError(
            f"These costs do not belong together: {n_first} layers on "
            f"{', '.join(prefill.devices)}, and {n_step} on {', '.join(decode.devices)}. "
            "Calibrate both static models of one language model on the same devices."
        )
    return phases.best_plan(pools)


@dataclass(frozen=True, eq=False)
class _Runs:
    """A model in every placement by runs of layers; other ops go with the nearest layer."""

    costs: CostModel
    pairwise: Pairwise
    blocks: np.ndarray  # the device of each block, [placements, blocks]
    choices: np.ndarray  # the device of each unit, [placements, units]

    @classmethod
    def of(cls, costs: CostModel) -> _Runs:
        graph = costs.graph
        layers = repeated_layers(graph, "to place.")
        n, n_devices = layers.n_blocks, len(costs.devices)
        blocks = np.array(list(runs(n, n_devices, _MOST_RUNS)), dtype=np.int64)
        block_of = [layers.of_op[graph.index_of[unit.ops[0]]] for unit in costs.units]
        pairwise = Pairwise.build(costs.objective)
        return cls(costs, pairwise, blocks, blocks[:, np.clip(block_of, 0, n - 1)])

    @cached_property
    def allowed(self) -> np.ndarray:
        """Whether the devices support all their units, ``[placements]``."""
        units = np.arange(self.choices.shape[1])
        return np.all(self.pairwise.allowed[units, self.choices], axis=1)

    @cached_property
    def latency_ns(self) -> np.ndarray:
        """The time of an inference, ``[placements]``, with a subgraph for each run."""
        return runs_ns(self.pairwise, self.choices, self.blocks)

    @cached_property
    def is_held(self) -> np.ndarray:
        """Whether a device holds each term of the memory, ``[placements, terms, devices]``."""
        on = self.choices[:, :, None] == np.arange(self.pairwise.n_devices)
        terms = [on[:, list(users)].any(axis=1) for users in self.pairwise.memory]
        return np.stack(terms, axis=1)

    def held_bytes(self, is_held: np.ndarray) -> np.ndarray:
        """Return bytes of weights and states of each device, ``[placements, devices, 2]``."""
        return np.einsum("ntd,tkd->ndk", is_held, [*self.pairwise.memory.values()])

    @cached_property
    def boundary_bytes(self) -> np.ndarray:
        """Bytes of boundary tensors of each device, ``[placements, devices]``."""
        least = self.pairwise.least_bytes
        each = range(self.pairwise.n_devices)
        n_bytes = [least(self.choices, d) - least(self.choices, d, boundaries=False) for d in each]
        return np.stack(n_bytes, axis=1)

    @cached_property
    def own_bytes(self) -> np.ndarray:
        """Bytes of weights, states and boundary tensors, ``[placements, devices, 3]``."""
        return np.dstack([self.held_bytes(self.is_held), self.boundary_bytes])

    def devices(self, number: int) -> np.ndarray:
        """Return the device of every node in a placement."""
        return self.pairwise.devices(self.choices[number])

    def predicted_ms(self, number: int) -> float:
        """Return the time of a placement, with HETERO's partition of it."""
        return self.costs.objective.evaluate(self.devices(number)).value_ns(LATENCY) / 1e6

    def affinity(self, number: int) -> Affinity:
        """Return a placement by op."""
        return self.costs.objective.affinity(self.devices(number))


@dataclass(frozen=True, eq=False)
class _Phases:
    """The prompt and further tokens of one model with states, or of two static ones."""

    first: _Runs
    step: _Runs
    scenario: Scenario
    is_static: bool = False

    @classmethod
    def of(cls, costs: CostModel) -> _Phases:
        if costs.prefill is None or costs.scenario is None:
            raise PlanError(
                "These costs are of one inference: only those of a language model know a first "
                "and a further token. Make them with hetero_lab.calibrate(model, devices, "
                "scenario=…)."
            )
        return cls(_Runs.of(costs.prefill), _Runs.of(costs), costs.scenario)

    @cached_property
    def every(self) -> np.ndarray:
        """The numbers of the placements that both phases support."""
        return np.flatnonzero(self.first.allowed & self.step.allowed)

    def best_plan(self, pools: Pools) -> PhasePlan:
        """Return the best pair of placements; raises PlanError if none keeps to the limits."""
        first, step, new = self.first, self.step, self.scenario.new_tokens - 1
        one, pair = self._best(pools)
        if pair is None:
            raise self.nothing_fits(pools)
        prefill, decode = pair
        if prefill == decode and not self.is_static:
            memory = self.memory(prefill)
        else:
            n_bytes = self.held_bytes(prefill, np.array([decode]))[0]
            memory = device_memory(step.costs.devices, n_bytes)
        one_ms = np.inf
        if one is not None:
            one_ms = first.predicted_ms(one) + new * step.predicted_ms(one)
        return PhasePlan(
            scenario=self.scenario,
            prefill=first.affinity(prefill),
            decode=step.affinity(decode),
            memory=memory,
            ttft_ms=first.predicted_ms(prefill),
            tpot_ms=step.predicted_ms(decode),
            move_ms=float(self.move_ns(prefill, np.array([decode]))[0]) / 1e6,
            one=None if one is None else step.affinity(one),
            one_ms=one_ms,
            differ=prefill != decode,
        )

    def _best(self, pools: Pools) -> tuple[int | None, tuple[int, int] | None]:
        """Return the best placement for both phases and the best pair, None where nothing fits."""
        every = self.every
        first_ns = self.first.latency_ns
        rest_ns = (self.scenario.new_tokens - 1) * self.step.latency_ns
        together = first_ns + rest_ns
        one = min(self.fitting(pools).tolist(), key=together.__getitem__, default=None)
        best = None if one is None else (one, one)
        best_ns = _FOREVER if one is None else int(together[one])
        by_rest = every[np.argsort(rest_ns[every], kind="stable")]
        for prefill in every[np.argsort(first_ns[every], kind="stable")].tolist():
            # Both lists are sorted, so once a prompt placement leaves no time for any decode
            # placement, neither does any later one: the search ends without looking at all pairs.
            n_better = int(np.searchsorted(rest_ns[by_rest], best_ns - first_ns[prefill]))
            if n_better == 0:
                break
            others = by_rest[:n_better]
            total = first_ns[prefill] + rest_ns[others] + self.move_ns(prefill, others)
            others, total = others[total < best_ns], total[total < best_ns]
            fits = _excess(self.held_bytes(prefill, others), pools) == 0
            if fits.any():
                at = int(np.flatnonzero(fits)[total[fits].argmin()])
                best, best_ns = (prefill, int(others[at])), int(total[at])
        return one, best

    def fitting(self, pools: Pools) -> np.ndarray:
        """Return the numbers of the placements that keep to memory limits in both phases."""
        return self.every[_excess(self.held_bytes(self.every, self.every), pools) == 0]

    def nothing_fits(self, pools: Pools) -> PlanError:
        """Return the error that names the placement closest to the limits."""
        n_bytes, devices = self.held_bytes(self.every, self.every), self.step.costs.devices
        nearest = n_bytes[_excess(n_bytes, pools).argmin()].sum(axis=1).tolist()
        each = [f"{bytes_text(n)} on {d}" for n, d in zip(nearest, devices, strict=True) if n]
        both = "both static models " if self.is_static else ""
        return PlanError(
            f"No placement by layer keeps {both}within memory_limit "
            f"({pools_text(devices, pools)}) at a context of {self.scenario.context_tokens} "
            f"tokens: the one that comes nearest holds {' and '.join(each)}. Raise a limit, "
            "shorten the scenario, or add a device."
        )

    def held_bytes(self, prefill: int | np.ndarray, decode: np.ndarray) -> np.ndarray:
        """Return the bytes of weights, states and boundary tensors, ``[n, devices, 3]``.

        ``prefill`` is one placement for all of ``decode``, or one for each.
        """
        first, step = self.first, self.step
        if self.is_static:
            weights = first.own_bytes[prefill] + step.own_bytes[decode]
            weights[:, :, 1] += self._cache_bytes[decode]
            return weights
        shared = step.held_bytes(step.is_held[prefill] | step.is_held[decode])
        both = step.boundary_bytes[prefill] + step.boundary_bytes[decode]
        same = np.asarray(prefill == decode)[:, None]
        return np.dstack([shared, np.where(same, step.boundary_bytes[decode], both)])

    def move_ns(self, prefill: int, others: np.ndarray) -> np.ndarray:
        """Return the cost of handing the key-value cache of the prompt to ``others``."""
        objective, blocks = self.step.costs.objective, self.step.blocks
        count, n_bytes = self._caches
        # A static model reads the cache of all tokens but the one that it computes.
        n_tokens = self.scenario.context_tokens - self.is_static
        source, target = blocks[prefill][None], blocks[others]
        ns = objective.fixed_ns[source, target] * count
        ns = ns + objective.ns_per_byte[source, target] * (
            n_bytes * self.scenario.prompt_tokens / n_tokens
        )
        return np.where(source == target, 0, np.rint(ns)).astype(np.int64).sum(axis=1)

    @cached_property
    def _caches(self) -> tuple[np.ndarray, np.ndarray]:
        """Number and bytes of the key-value caches of each block."""
        graph, n_blocks = self.step.costs.graph, self.step.blocks.shape[1]
        block_of = find_blocks(graph).of_op
        if self.is_static:
            caches = [i for i in graph.parameters if graph.ops[i].name.startswith("past.")]
            users = [[block_of[use.index] for use in graph.consumers[i]] for i in caches]
            blocks = [min(every, default=0) for every in users]
        else:
            caches = [op.index for op in graph if op.type == "ReadValue"]
            blocks = [block_of[i] for i in caches]
        at = np.clip(np.array(blocks, dtype=np.int64), 0, n_blocks - 1)
        sizes = [graph.ops[i].outputs[0].n_bytes or 0 for i in caches]
        return np.bincount(at, minlength=n_blocks), np.bincount(at, sizes, minlength=n_blocks)

    @cached_property
    def _cache_bytes(self) -> np.ndarray:
        """Bytes of the key-value caches on each device, ``[placements, devices]``."""
        on = self.step.blocks[:, :, None] == np.arange(len(self.step.costs.devices))
        return np.einsum("nbd,b->nd", on, self._caches[1].astype(np.int64))

    def memory(self, number: int) -> tuple[DeviceMemory, ...]:
        """Return what each device holds of a placement, with HETERO's partition of it."""
        costs, devices = self.step.costs, self.step.devices(number)
        n_bytes = costs.objective.memory_bytes(costs.objective.evaluate(devices))
        return device_memory(costs.devices, n_bytes, self.step.blocks[number])


def _excess(n_bytes: np.ndarray, pools: Pools) -> np.ndarray:
    """Return by how much rows of bytes ``[rows, devices, 3]`` exceed memory limits, ``[rows]``."""
    excess = np.zeros(len(n_bytes), dtype=np.int64)
    for pool, limit in pools.items():
        excess += np.maximum(pool.held_bytes(n_bytes) - limit, 0)
    return excess
