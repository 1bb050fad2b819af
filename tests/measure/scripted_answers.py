"""What a bench would answer, and how long that would take, by times that a test says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero_lab.results.records import Compiled, Counters, Trial, Turn

TIMES = {"start": 0.1, "compile": 0.1, "inference": 0.001, "counters": 0.0}


def answered(key: str, request: Any, times: Mapping[str, float]) -> tuple[float, Any]:
    """Return the seconds and the answer."""
    inference_s, compile_s = times["inference"], times["compile"]
    given = {"discarded": 2, "timed": 10, "group": 0, "round": 0, **request.keywords}
    match request.func.__name__:
        case "compile":
            return compile_s + inference_s, Compiled(
                entry=key, compile_ms=1e3 * compile_s, first_inference_ms=1e3 * inference_s,
                partition={}, as_predicted=True, agreement=(), peak_rss_bytes=1,
            )  # fmt: skip
        case "warm_up":
            return min(given["at_most_s"], 30 * inference_s), inference_s
        case "run_turn":
            at = {"group": given["group"], "round": given["round"]}
            turn = Turn(entry=key, samples_us=(1e6 * inference_s,) * given["timed"], **at)
            return (given["discarded"] + given["timed"]) * inference_s, turn
        case "compile_counted":
            return compile_s, None
        case "read_counters":
            return times["counters"], Counters(entry=key, rows=())
    return 0.0, None


def trials(keys: str, devices: Mapping[str, str] | None = None) -> list[Trial]:
    """Return trials with these keys; one with a digit is of a variant of its own."""
    return [
        Trial(
            key=key, label=f"the {key}", variant=key if key.isdigit() else "",
            affinity=((devices or {}).get(key, "CPU"),), devices=("CPU",), device_properties={},
            direct=True,
        )
        for key in keys
    ]  # fmt: skip
