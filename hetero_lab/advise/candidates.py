"""The ways to run a model on the devices here, the simplest first, and which are measured again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hetero_lab.advise.advice import Judged, by_label
from hetero_lab.devices.core import BoundModel, emulated_devices
from hetero_lab.devices.devices import precisions, supported_ops, takes_ratio
from hetero_lab.devices.properties import PRECISION_HINT, merged_properties
from hetero_lab.errors import DeviceError, HeteroLabError, names_at_hand
from hetero_lab.model.opgraph import NOT_OPS, OpGraph
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.memory_limits import (
    MemoryLimit,
    excess_text,
    held_bytes,
    memory_pools,
)
from hetero_lab.placement.placement import Placement, PlacementLike, resolve
from hetero_lab.placement.priorities import priority_orders
from hetero_lab.planning.simplify import simplified_placements, simplify_graph
from hetero_lab.results.evidence import BEST, MAY_BE_BEST
from hetero_lab.results.sweep_row import BUDGET_ENDED
from hetero_lab.runtime.pieces import leave_cores

if TYPE_CHECKING:
    import openvino as ov

_MOST_ORDERS = 6  # all orders of three devices
_MOST = 4  # finalists beside the reference and the results of searches
_OF_THE_REST = 0.25  # share of the time left that a further compile may take


def candidates_for(
    bound: BoundModel,
    devices: Sequence[str],
    *,
    requests: int,
    device_properties: Mapping[str, Mapping[str, Any]],
    memory_limit: MemoryLimit | None,
) -> tuple[dict[str, Placement], dict[str, str]]:
    """Return placements that need no search, the reference first, and why others are left out.

    ``requests`` are in flight where the objective is throughput, and 0 for latency.
    DeviceError, if no device supports some op, so that the model runs nowhere here.
    """
    every, core = [op for op in bound.graph if op.type not in NOT_OPS], bound.core
    able = {device: supported_ops(bound, device) for device in devices}
    nowhere = [
        f"{op.name} ({op.type})" for op in every if not any(op.name in s for s in able.values())
    ]
    if nowhere:
        raise DeviceError(
            f"The model runs nowhere here: none of {', '.join(devices)} supports "
            f"{names_at_hand(nowhere, 5)}."
        )
    placements: dict[str, Placement] = {}
    left_out: dict[str, str] = {}

    def offer(
        what: PlacementLike, label: str, changes: Mapping[str, Mapping[str, Any]]
    ) -> Placement | None:
        try:
            placement = resolve(bound, what).placement
            together = merged_properties(device_properties, placement.device_properties, changes)
            keys = {*placement.devices, *placement.device_properties}
            keys |= {placement.virtual.kind} if placement.virtual else set()
            properties = {d: p for d, p in together.items() if d in keys and p}
            placement = replace(placement, label=label, device_properties=properties)
            resolve(bound, placement)  # the properties, too
        except HeteroLabError as error:
            left_out[label] = str(error)
            return None
        if excess := over_limit(bound.graph, placement, devices, memory_limit):
            left_out[label] = excess
        elif placement.direct or len(placement.affinity.devices) > 1:
            same = _what_runs(placement), placement.direct
            if same not in [(_what_runs(p), p.direct) for p in placements.values()]:
                placements.setdefault(label, placement)
        return placement

    whole = [d for d in devices if all(op.name in able[d] for op in every)]
    # CPU is the reference, and placements on it alone are compiled soonest.
    for device in sorted(whole, key=lambda name: name != "CPU"):
        offer(device, device, {})
        for label, properties in _variations(device, requests, core).items():
            offer(device, f"{device}{label}", {device: properties})
    for device in devices:
        if device not in whole:
            lacks = [op.name for op in every if op.name not in able[device]]
            left_out[device] = f"it does not support {names_at_hand(lacks)}"
    if len(devices) > 1:
        together = ",".join(devices)
        hint = {"AUTO": {"PERFORMANCE_HINT": "CUMULATIVE_THROUGHPUT"}} if requests else {}
        offer(f"AUTO:{together}", f"AUTO:{together}", hint)
        if requests:
            offer(f"MULTI:{together}", f"MULTI:{together}", {})
        if requests >= len(devices):
            name, changes = over_all(devices, requests, device_properties, core)
            offer(name, name, changes)
        gpus = [device for device in devices if takes_ratio(core, device)]
        if requests and len(gpus) > 1:
            label = f"HETERO:{','.join(gpus)} · equal weights"
            hints = {gpu: device_properties.get(gpu, {}) for gpu in gpus}
            try:
                offer(
                    Placement.balanced(bound, gpus, device_properties=hints, core=core), label, {}
                )
            except HeteroLabError as error:
                left_out[label] = str(error)
        # Without this a split lets requests wait for each other.
        free = {d: {"EXCLUSIVE_ASYNC_REQUESTS": False} for d in devices} if requests else {}
        greedy = [
            offer(str(order), str(order), free)
            for order in priority_orders(devices, core=core)[:_MOST_ORDERS]
        ]
        first = next((p for p in greedy if p is not None and len(p.affinity.devices) > 1), None)
        if first is not None:
            simpler = simplify_graph(bound.graph, first.affinity, able)
            for label, affinity in simplified_placements(simpler, first.label).items():
                offer(affinity, label, free)
            if requests:  # as HETERO does by itself
                offer(first.label, f"{first.label} · exclusive requests", {})
    return placements, left_out


def over_all(
    devices: Sequence[str],
    requests: int,
    device_properties: Mapping[str, Mapping[str, Any]],
    core: ov.Core,
) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return a MULTI that has requests in flight on all devices, and properties for it.

    By itself MULTI fills the first device, so that few requests never reach another one. Here all
    but the first have one in flight at a time, as fast as they can.
    """
    first, *others = devices
    one_at_a_time = {device: {"PERFORMANCE_HINT": "LATENCY"} for device in others}
    properties = {device: device_properties.get(device, {}) for device in devices}
    merged = merged_properties(one_at_a_time, properties)
    parts = [f"{first}({requests - len(others)})", *(f"{device}(1)" for device in others)]
    return f"MULTI:{','.join(parts)}", leave_cores(merged, core, n_left=requests)


def _variations(device: str, requests: int, core: ov.Core) -> dict[str, dict[str, Any]]:
    """Return properties worth a try on a device alone, by what they add to its label."""
    variations: dict[str, dict[str, Any]] = {}
    if len(precisions(device, core=core)) > 1:
        variations[" (f32)"] = {PRECISION_HINT: "f32"}
    spec = emulated_devices(core).get(device)
    is_cpu = (spec.base if spec else device) == "CPU"
    if requests > 1:
        variations[" · throughput hint"] = {"PERFORMANCE_HINT": "THROUGHPUT"}
        if is_cpu:
            variations[f" · {requests} streams"] = {"NUM_STREAMS": requests}
    elif is_cpu and (os.cpu_count() or 1) > 1:
        variations[" · 1 thread"] = {"INFERENCE_NUM_THREADS": 1}
    return variations


def over_limit(
    graph: OpGraph,
    placement: Placement,
    devices: Sequence[str],
    memory_limit: MemoryLimit | None,
) -> str:
    """Say which of ``devices`` would hold more than they may; empty if none would."""
    pools = memory_pools(devices, memory_limit)
    return excess_text(devices, held_bytes(graph, placement, devices), pools) if pools else ""


def compile_times(candidates: Sequence[Judged]) -> dict[str, float]:
    """Return how long devices take to compile the model and infer once, in seconds.

    Of several candidates on a device alone the longest counts; ``""`` is any other device, which
    counts as the slowest one.
    """
    times_s = {"": 0.0}
    for candidate in candidates:
        profile, devices = candidate.row.profile, candidate.placement.devices
        if profile is not None and len(devices) == 1:
            took_s = (profile.compile_ms + profile.first_inference_ms) / 1e3
            times_s[devices[0]] = max(took_s, times_s.get(devices[0], 0.0))
            times_s[""] = max(took_s, times_s[""])
    return times_s


def choose_finalists(
    candidates: Sequence[Judged],
    results: Mapping[str, Placement | None],
    *,
    left_s: float,
    n_models: int = 1,
) -> dict[str, Placement]:
    """Return placements to measure again by label, the reference first; empty without time for it.

    ``candidates`` were raced, the reference first; one is the best of them. A candidate that the
    race did not reach may be the best as well: it comes last. ``results`` are those of searches,
    which were measured to be faster than the candidates of their kind.

    The reference, the best and ``results`` have to fit into ``left_s`` seconds. Any other candidate
    is taken unless its compiles, one for each of ``n_models`` variants, would need too much of the
    time that is left then.
    """
    compile_s = compile_times(candidates)

    def expected_s(placement: Placement) -> float:
        return n_models * sum(compile_s.get(d, compile_s[""]) for d in placement.devices)

    placements = {c.row.label: c.placement for c in candidates}
    best = by_label(candidates, BEST)[0].row.label
    finalists = {label: placements[label] for label in (candidates[0].row.label, best)}
    runs = [_what_runs(placement) for placement in finalists.values()]
    extra = {
        label: replace(p, label=label)
        for label, p in results.items()
        if p is not None and _what_runs(p) not in runs
    }
    needed_s = sum(expected_s(p) for p in [*finalists.values(), *extra.values()])
    if needed_s >= left_s:
        return {}
    others = [c for c in candidates if c.judgement in MAY_BE_BEST or c.row.status == BUDGET_ENDED]
    others.sort(key=lambda c: c.us)
    for candidate in others[: _MOST + 1 - len(finalists)]:
        extra_s = expected_s(candidate.placement)
        if extra_s <= _OF_THE_REST * (left_s - needed_s):
            finalists[candidate.row.label] = candidate.placement
            needed_s += extra_s
    return {label: p for label, p in placements.items() if label in finalists} | extra


def fast_and_accurate(
    fastest_first: Iterable[Placement], keeps_accuracy: Callable[[Placement], bool]
) -> tuple[str, str] | None:
    """Return the device that loses accuracy and the fastest one that keeps it.

    ``None`` where there is nothing to recover: the fastest placement keeps it, or only the same
    device with other properties does. The choices of AUTO and MULTI cannot be mixed.
    """
    lossy: Placement | None = None
    for placement in fastest_first:
        if placement.virtual or (lossy is not None and not placement.direct):
            continue
        if keeps_accuracy(placement):
            others = [d for d in (lossy.devices if lossy else ()) if d not in placement.devices]
            return (others[0], placement.devices[0]) if others else None
        lossy = lossy or placement
    return None


def _what_runs(placement: Placement) -> tuple[Affinity, dict[str, Any]]:
    return placement.affinity, {d: p for d, p in placement.device_properties.items() if p}
