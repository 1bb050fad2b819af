"""What a bench would answer, and how long that would take, by times that a test says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from hetero_lab.intervals import ASSUMED_NOISE, Noise
from hetero_lab.measure.stopping import RunOptions
from hetero_lab.measure.sweep_schedule import SweepSchedule
from hetero_lab.measure.worker_process import WorkerError
from hetero_lab.results.records import Compiled, Counters, Ledger, Trial, Turn, by_key

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


CRASH = WorkerError("crashed (signal 11)", "SIGSEGV", died=True, crashed=True)
REFUSED = WorkerError("failed", "not supported", died=False)


class Scripted:
    """What was asked and recorded in a test that says how long each request takes, and what fails.

    Times are in s.
    """

    def __init__(self, **times: float):
        self.times = {**TIMES, **times}
        self.now_s = 0.0
        self.fault: Callable[[str, str], WorkerError | None] = lambda kind, key: None
        self.asked: list[tuple[str, str]] = []  # the kind of request and the key
        self.records: list[Any] = []

    def schedule(
        self, keys: str, *, budget_s: float | None = None, group: int = 8, at_once: int = 1,
        records: Any = (), devices: Mapping[str, str] | None = None, noise: Noise = ASSUMED_NOISE,
        **options: Any,
    ) -> SweepSchedule:  # fmt: skip
        """Return a schedule of trials with these keys, the first of them the reference."""
        self.records = list(records)
        return SweepSchedule(
            trials=by_key(trials(keys, devices)), reference=keys[0],
            ledger=Ledger(records, self.records.append),
            options=RunOptions(**{"counters": False, "reference": False, "turns": 2, **options}),
            group_size=group, budget_s=budget_s, noise=lambda devices: noise, at_once=at_once,
        )  # fmt: skip

    def fail(self, kind: str, key: str, failure: WorkerError, times: int = 99) -> None:
        """Let requests of a kind and key fail, the first ``times`` times."""
        left = [failure] * times

        def fault(asked_kind: str, asked_key: str) -> WorkerError | None:
            return left.pop() if (asked_kind, asked_key) == (kind, key) and left else None

        self.fault = fault

    def of(self, kind: type) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]

    def entries(self, kind: type) -> list[str]:
        return [record.entry for record in self.of(kind)]

    def turns(self) -> dict[str, int]:
        return dict(Counter(self.entries(Turn)))

    def keys(self, kind: str) -> list[str]:
        return [key for asked, key in self.asked if asked == kind]
