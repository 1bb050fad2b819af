"""Ways: the placements of which a machine chooses one for each of its models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hetero_lab.devices.core import BoundModel, emulated_devices
from hetero_lab.devices.devices import supported_ops
from hetero_lab.errors import DeviceError, HeteroLabError, shorten
from hetero_lab.machine.demand import Demand
from hetero_lab.measure.trial_grid import trial_of
from hetero_lab.model.opgraph import NOT_OPS
from hetero_lab.placement.placement import BoundPlacement, PlacementLike, resolve
from hetero_lab.processes import available_cores
from hetero_lab.results.records import Trial
from hetero_lab.runtime.executors import check_placed
from hetero_lab.terminal import count_of

_FEW = 3 / 8  # of the cores: 6 of 16
_ROOM = 0.6  # of the cores, up to which threads find free ones
_LEFT = 2  # cores left free for the threads that drive other devices
_MANY = 8  # cores, from which on that is worth a way of its own


@dataclass(frozen=True)
class Way:
    """One way to run a model: a placement as it is compiled, with its key."""

    label: str
    placed: BoundPlacement
    trial: Trial

    @property
    def key(self) -> str:
        """Identifies model, placement, properties and requests."""
        return self.trial.key

    @property
    def one_key(self) -> str:
        """Identifies it with one request in flight, however many its demand has."""
        return self.key if self.trial.requests == 1 else f"{self.key}-1"

    @property
    def has_few_threads(self) -> bool:
        """Whether it leaves cores of the CPU free for others."""
        properties = self.placed.placement.device_properties.get("CPU", {})
        n = properties.get("INFERENCE_NUM_THREADS")
        return self.hardware() == {"CPU"} and n is not None and int(n) <= _ROOM * available_cores()

    def hardware(self) -> frozenset[str]:
        """Return the devices that its work lands on; an emulated one is its base."""
        specs = emulated_devices(self.placed.core)
        names = (d.partition("(")[0] for d in self.placed.placement.devices)
        return frozenset(specs[d].base if d in specs else d for d in names)


def ways_of(
    name: str, demand: Demand, bound: BoundModel, devices: Sequence[str]
) -> tuple[dict[str, Way], dict[str, str]]:
    """Return the ways of a model by label, single devices first, and why others are left out."""
    ways: dict[str, Way] = {}
    left_out: dict[str, str] = {}
    for label, what in _offers(demand, bound, devices):
        try:
            placement = resolve(bound, what).placement
            bound_placement = resolve(bound, replace(placement, label=label))
            check_placed(bound_placement)
        except HeteroLabError as error:
            left_out[label] = str(error)
            continue
        if label in ways:  # of two placements
            label = f"{label} ({len(ways) + 1})"
        # Two models of one file are one variant, so that what was measured of it is kept.
        trial = trial_of(bound_placement, label, bound.fingerprint, requests=demand.requests)
        if trial.key not in {way.key for way in ways.values()}:
            ways[label] = Way(label, bound_placement, trial)
    if not ways:
        reasons = "; ".join(f"{label}: {why}" for label, why in left_out.items())
        raise DeviceError(f"{shorten(name)} runs nowhere here. {reasons}".strip())
    return ways, left_out


def _offers(
    demand: Demand, bound: BoundModel, devices: Sequence[str]
) -> Iterable[tuple[str, PlacementLike]]:
    if demand.ways is not None:
        for what in demand.ways:
            yield (getattr(what, "label", "") or str(what)), what
        return
    every = [op.name for op in bound.graph if op.type not in NOT_OPS]
    whole = [d for d in devices if {*every} <= {*supported_ops(bound, d)}]
    for device in whole:
        yield device, device
        if device == "CPU":
            placement = resolve(bound, device).placement
            for label, properties in _variations(demand.requests, alone=len(devices) < 2):
                variation = replace(placement, device_properties={device: properties})
                yield f"{device} · {label}", variation
    if len(devices) > 1:
        yield f"AUTO:{','.join(devices)}", f"AUTO:{','.join(devices)}"
        if demand.requests > 1:
            yield f"MULTI:{','.join(devices)}", f"MULTI:{','.join(devices)}"


def _variations(requests: int, *, alone: bool) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield properties worth a try where several models share a CPU, with a label for each."""
    n_cores = available_cores()
    few = max(1, int(_FEW * n_cores))
    counts = [few] if few < n_cores else []
    if not alone and n_cores >= _MANY:
        counts.append(n_cores - _LEFT)
    for count in counts:
        # Pinned threads of two processes sit on the same cores.
        properties = {"INFERENCE_NUM_THREADS": count, "ENABLE_CPU_PINNING": False}
        yield count_of(count, "thread"), properties
    if requests > 1:
        yield f"{requests} streams", {"NUM_STREAMS": requests}
