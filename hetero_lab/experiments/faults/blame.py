"""The smallest set of settings, or of ops, without which a placement shows no symptom.

Each search is :func:`.minimal_set` over another kind of item: a setting that is left out has its
exact value, an op runs on another device or is cut away.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hetero_lab.backend.bound import BoundModel
from hetero_lab.backend.core import scratch_core
from hetero_lab.backend.devices import device_names, property_of, supported_ops
from hetero_lab.backend.emulation import bases_of
from hetero_lab.backend.properties import merged_properties
from hetero_lab.errors import DeviceError
from hetero_lab.experiments.faults.wrong_sets import minimal_set
from hetero_lab.model.opgraph import OpGraph, Tensor
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.partition import predict
from hetero_lab.placement.placement import BoundPlacement, Placement
from hetero_lab.runtime.pieces import FLOATS, TensorKey, incoming

# With these values, a device computes as the reference does, and one request at a time.
EXACT: Mapping[str, Any] = {
    "INFERENCE_PRECISION_HINT": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    "KV_CACHE_PRECISION": "f32",
    "NUM_STREAMS": 1,
    "ENABLE_CPU_PINNING": False,
}


@dataclass(frozen=True)
class Setting:
    """A property of a device; ``exact`` is the value without the symptom, None if it is not set.

    A value that the placement does not set is the device's default.
    """

    device: str
    key: str
    value: str
    exact: Any = None

    def __str__(self) -> str:
        other = "without it" if self.exact is None else f"with {self.exact}"
        return f"{self.device}.{self.key}={self.value} (not {other})"


def exact_properties(device: str, placed: BoundPlacement) -> dict[str, Any]:
    """Return the exact values of the properties that a device has."""
    real = bases_of([device], placed.core).get(device, device)
    access = scratch_core().get_property(real, "SUPPORTED_PROPERTIES")
    return {key: value for key, value in EXACT.items() if access.get(key) == "RW"}


def settings_of(placed: BoundPlacement) -> list[Setting]:
    """Return the settings of a placement that can be left out, and defaults that are not exact."""
    found: list[Setting] = []
    for device in placed.devices:
        real = bases_of([device], placed.core).get(device, device)
        given, exact = placed.properties[device], exact_properties(device, placed)
        own = placed.placement.device_properties.get(device, {})
        for key in dict.fromkeys([*given, *exact]):
            value = given[key] if key in given else property_of(scratch_core(), real, key)
            same = key in exact and _text(value) == _text(exact[key])
            if not same and (key in exact or key in own):
                found.append(Setting(device, key, _text(value), exact.get(key)))
    return found


def without(placement: Placement, settings: Iterable[Setting]) -> Placement:
    """Return a placement without some settings."""
    properties = merged_properties(placement.device_properties)
    for setting in settings:
        own = properties.setdefault(setting.device, {})
        if setting.exact is None:
            own.pop(setting.key, None)
        else:
            own[setting.key] = setting.exact
    return replace(placement, device_properties=properties)


def smallest_settings(
    placed: BoundPlacement, shows: Callable[[Placement], bool]
) -> tuple[Setting, ...]:
    """Return the fewest settings that make a symptom; empty if it shows without any of them."""
    settings = settings_of(placed)
    if not settings or shows(without(placed.placement, settings)):
        return ()

    return tuple(
        minimal_set(
            settings,
            lambda chosen: shows(
                without(placed.placement, [each for each in settings if each not in chosen])
            ),
        )
    )


@dataclass(frozen=True)
class BlamedOps:
    """Ops of a device that show a symptom together, none of which can be left out.

    ``told`` is the evidence; with the ops on the device ``target`` the symptom is gone.
    """

    device: str
    ops: tuple[str, ...]
    told: str
    target: str


def smallest_ops(
    bound: BoundModel,
    affinity: Affinity,
    shows: Callable[[Affinity], str],
    fallback: str | None = None,
) -> BlamedOps | None:
    """Find the fewest ops on one device that show a symptom while the others run elsewhere.

    ``shows`` returns the evidence for an affinity, or nothing. The other ops run on ``fallback``,
    by default a device that supports them. The answer is ``None`` if no device shows it alone.
    """
    leaders = {node.name for node in affinity.nodes if node.leader == node.name}
    for device in affinity.devices:
        ops = [op for op in affinity.ops if affinity[op] == device and op in leaders]
        target = fallback or _fallback(bound, ops, device)
        if target is None or target == device:
            continue
        background = affinity.fix(ops=dict.fromkeys(affinity.ops, target), core=bound.core)

        def probe(
            chosen: Sequence[str], background: Affinity = background, device: str = device
        ) -> str:
            return shows(background.fix(ops=dict.fromkeys(chosen, device), core=bound.core))

        if probe([]) or not probe(ops):
            continue
        # Most faults lie within one subgraph, which is far less to search.
        for subgraph in predict(bound.graph, affinity).subgraphs:
            inside = [op for op in subgraph.ops if op in leaders]
            if subgraph.device == device and len(inside) < len(ops) and probe(inside):
                ops = inside
                break
        minimal = minimal_set(ops, lambda chosen: bool(probe(chosen)))
        return BlamedOps(device, tuple(minimal), probe(minimal), target)
    return None


def _fallback(bound: BoundModel, ops: Sequence[str], device: str) -> str | None:
    here = [d for d in device_names(bound.core) if d != device]
    for other in sorted(here, key=lambda name: name != "CPU"):
        try:
            if set(ops) <= supported_ops(bound, other):
                return other
        except DeviceError:
            continue
    return None


def smallest_piece(
    placed: BoundPlacement, shows: Callable[[str, Collection[str]], bool]
) -> tuple[str, tuple[str, ...]] | None:
    """Find the fewest ops that show a symptom when they are cut out of the model.

    ``shows`` runs a set of ops on a device. This needs no other device, but the shapes of all
    tensors: the answer is ``None`` if one is dynamic, or if no device shows the symptom so.
    """
    affinity, graph = placed.affinity, placed.graph
    members: dict[str, list[str]] = {}
    placeable = {graph.ops[index].name for index in graph.placeable}
    for node in affinity.nodes:
        if node.name in placeable:
            members.setdefault(node.leader, []).append(node.name)
    for device in affinity.devices:
        leaders = [leader for leader in members if affinity[leader] == device]

        def fails(chosen: Sequence[str], device: str = device) -> bool:
            return shows(device, [op for leader in chosen for op in members[leader]])

        if leaders and fails(leaders):
            chosen = minimal_set(leaders, fails)
            return device, tuple(op for leader in chosen for op in members[leader])
    return None


def made_up(
    graph: OpGraph, ops: Collection[str], known: Mapping[TensorKey, np.ndarray], seed: int = 0
) -> dict[TensorKey, np.ndarray] | None:
    """Return a value for each tensor that a set of ops reads; ``None`` if a shape is not known.

    ``known`` holds those of the model's inputs; floating-point values are normal, others 1.
    """
    rng, values = np.random.default_rng(seed), dict(known)
    for key in incoming(graph, ops):
        if key not in values:
            value = _drawn(graph.ops[graph.index_of[key[0]]].outputs[key[1]], rng)
            if value is None:
                return None
            values[key] = value
    return values


def _drawn(tensor: Tensor, rng: np.random.Generator) -> np.ndarray | None:
    kind = tensor.element_type
    if tensor.shape is None or kind == "string":
        return None
    if kind in FLOATS:  # pieces read them all as f32
        return rng.normal(size=tensor.shape).astype(np.float32)
    name = {"b": "bool", "i": f"int{kind[1:]}", "u": f"uint{kind[1:]}"}.get(kind[0], kind)
    try:
        return np.ones(tensor.shape, np.dtype(name))
    except TypeError:  # packed in 4 bits
        return None


def _text(value: Any) -> str:
    text = getattr(value, "get_type_name", lambda: str(value))()
    return {"True": "1", "False": "0", "YES": "1", "NO": "0", "float32": "f32"}.get(text, text)
