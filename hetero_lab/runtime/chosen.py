"""What the runtime chose where a placement leaves it a choice: devices, streams, requests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import openvino as ov

from hetero_lab.backend.virtual import named_by_plugin
from hetero_lab.clock import now

_SWITCH_S = 20.0  # the most that AUTO is given to get its device ready


@dataclass(frozen=True)
class Chosen:
    """What really runs a placement.

    Attributes
    ----------
    devices
        Those that OpenVINO says execute it (EXECUTION_DEVICES).
    n_streams
        Inferences that run side by side, of all devices together; ``None`` if they do not tell.
    n_requests
        How many requests in flight OpenVINO advises (OPTIMAL_NUMBER_OF_INFER_REQUESTS).
    from_cache
        Whether the compile was read from the model cache.
    """

    devices: tuple[str, ...] = ()
    n_streams: int | None = None
    n_requests: int | None = None
    from_cache: bool | None = None


def chosen_by(models: Sequence[ov.CompiledModel], core: ov.Core) -> Chosen:
    """Ask compiled models, those of one placement, what runs them."""
    behind = named_by_plugin(core)
    names = [n for model in models for n in _ask(model, "EXECUTION_DEVICES") or ()]
    # AUTO puts the device in brackets that stands in until the chosen one is ready.
    devices = dict.fromkeys(behind.get(n, n) for n in (str(n).strip("()") for n in names))
    streams = [_streams(model) for model in models]
    requests = [_ask(model, "OPTIMAL_NUMBER_OF_INFER_REQUESTS") for model in models]
    cached = [_ask(model, "LOADED_FROM_CACHE") for model in models]
    return Chosen(
        tuple(devices),
        sum(n for n in streams if n) if all(streams) else None,
        min((int(n) for n in requests if n), default=None),
        all(cached) if None not in cached else None,
    )


def settle(model: ov.CompiledModel, infer: Callable[[], object]) -> None:
    """Infer until AUTO has handed over to the device of its choice."""
    until = now() + _SWITCH_S
    while now() < until and any(
        str(name).startswith("(") for name in _ask(model, "EXECUTION_DEVICES") or ()
    ):
        infer()


def _streams(model: ov.CompiledModel) -> int | None:
    own = _ask(model, "NUM_STREAMS")
    if own is None:
        by_device = _ask(model, "DEVICE_PROPERTIES") or {}
        found = [p.get("NUM_STREAMS") for p in by_device.values()]
        own = sum(map(int, found)) if found and None not in found else None
    return None if own is None else int(own)


def _ask(model: ov.CompiledModel, key: str) -> Any:
    with contextlib.suppress(Exception):  # not every device has every property
        return model.get_property(key)
    return None
