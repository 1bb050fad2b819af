"""Ctrl-C at random moments of every long function: none lost, none swallowed.

A process calls one function again and again and gets a real SIGINT, with all that it started, as
a terminal sends it. Run by hand:

    python -m tests.proof.interrupts --times 50            # all functions
    python -m tests.proof.interrupts calibrate --times 5 --seed 3

It prints a line for each function: how many interrupts there were, in how many something was kept,
the longest time from Ctrl-C to the end of the call, and what went wrong: calls that returned as if
nothing had happened, results that are not sound, processes that were left behind.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
_SETTLE_S = 15.0  # for processes that end by themselves once their caller is gone


# -- the process that is interrupted -----------------------------------------------------------


def calls() -> dict[str, Callable[[], Any]]:
    """Return each long function as a call that takes a few seconds."""
    import hetero_lab as hl

    model, data = hl.load("digits_inception"), hl.dataset("digits")
    hl.emulate("ACC", unsupported={"Softmax"}, faster_by="auto")
    devices, quiet = ["ACC", "CPU"], {"progress": False}
    automatic = hl.Affinity.automatic(model, devices)
    costs: list[Any] = []

    def planned() -> Any:
        if not costs:
            costs.append(hl.calibrate(model, devices, budget_s=3, **quiet))
        for _ in range(20):
            plan = hl.plan(model, costs[0], budget_s=5, **quiet)
        return plan

    return {
        "profile": lambda: hl.profile(model, automatic, budget_s=3, **quiet),
        "sweep": lambda: hl.sweep(model, [automatic, "CPU"], budget_s=5, **quiet),
        "calibrate": lambda: hl.calibrate(model, devices, budget_s=5, **quiet),
        "plan": planned,
        "optimize": lambda: hl.optimize(model, devices, budget_s=8, **quiet),
        "recover_accuracy": lambda: hl.recover_accuracy(
            model, "ACC", "CPU", data, budget_s=8, **quiet
        ),
        "evaluate": lambda: hl.evaluate(model, automatic, list(data.evaluation) * 4, **quiet),
        "quantize": lambda: hl.quantize(model, list(data.calibration), **quiet),
        "find_refused": lambda: hl.find_refused(model, automatic, **quiet),
        # So that rounding is not right, and everything is searched.
        "find_wrong": lambda: hl.find_wrong(model, automatic, tolerance=1e-9, **quiet),
        "investigate": lambda: hl.investigate(model, automatic, tolerance=1e-9, **quiet),
    }


def recovering_advice() -> Callable[[], Any]:
    """Return a call of advise that takes all from a store but its recovery of accuracy."""
    import hetero_lab as hl
    from tests.exact_digits import QUICK_RECOVERY, exact_digits

    for changed in QUICK_RECOVERY:
        setattr(*changed)
    hl.emulate("BF16", properties={"INFERENCE_PRECISION_HINT": "bf16"}, faster_by="precision")
    model, data = hl.load("digits_inception"), exact_digits(100)
    f32 = {"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}
    store = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, store, ignore_errors=True)

    def call() -> Any:
        for path in [*store.glob("recovered*"), *store.glob("final-*")]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return hl.advise(
            model, ["BF16", "CPU"], data=data, device_properties=f32, budget_s=12, store=store,
            progress=False,
        )  # fmt: skip

    return call


def check(kept: Any, function: str) -> str:
    """Return what of a kept result is not sound; empty if all of it is."""
    import hetero_lab as hl

    if kept is None:
        return ""
    # A search that has measured all its costs keeps them: they are whole, and it goes on from them.
    set_aside = isinstance(kept, hl.CostModel) and function != "calibrate"
    if not getattr(kept, "interrupted", True) and not set_aside:
        return f"{type(kept).__name__} does not say that it was interrupted"
    if isinstance(kept, hl.types.Profile):
        return "" if len(kept.latency) >= 10 and kept.latency.median_us > 0 else "no latency"
    if isinstance(kept, hl.types.Sweep):
        kept.ranking  # noqa: B018 (computes it)
        wrong = [s for s in kept.summary["status"] if s not in ("ok", "not measured: interrupted")]
        return f"status {wrong}" if wrong else ""
    if isinstance(kept, hl.types.Investigation):
        return "" if (kept.symptom, kept.complete) == ("wrong", False) else f"it is {kept!r}"
    if isinstance(kept, hl.CostModel):
        model = hl.load("digits_inception")
        return "" if kept.predict_us(hl.Affinity.uniform(model, "CPU")) > 0 else "predicts nothing"
    repr(kept)
    return ""


def serve(function: str) -> None:
    """Call ``function`` once for each line of the input and say how it ended."""
    import warnings

    import hetero_lab as hl

    warnings.simplefilter("ignore")
    call = recovering_advice() if function == "advise" else calls()[function]
    call()  # what is loaded and compiled for the first time takes longer
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    say("ready")
    for _ in sys.stdin:
        say("begin")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            call()
            how, kept = "returned", None
        except KeyboardInterrupt:
            how, kept = "interrupted", hl.last_interrupted()
        except BaseException as error:
            how, kept = f"{type(error).__name__}: {error}", None
        ended = time.time()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the call was over before it came
        problem = check(kept, function)
        say({"how": how, "kept": type(kept).__name__, "problem": problem, "ended": ended})


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


# -- the one that interrupts it ----------------------------------------------------------------


@dataclass
class Outcome:
    """What became of the interrupts of one function."""

    function: str
    took_s: float = 0.0
    n: int = 0
    n_kept: int = 0
    n_late: int = 0  # the call was over before the signal came
    slowest_s: float = 0.0
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return it as a row of the table."""
        wrong = "; ".join(dict.fromkeys(self.problems)) or "-"
        return (
            f"{self.function:18}{self.took_s:8.1f}{self.n:12}{self.n_kept:8}"
            f"{self.slowest_s:12.2f}   {wrong}"
        )


def interrupt(function: str, times: int, seed: int) -> Outcome:
    """Interrupt a function ``times`` times, each at a random moment of it."""
    shuffle, outcome = random.Random(f"{seed} {function}"), Outcome(function)
    path = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.proof.interrupts", "--serve", function],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        start_new_session=True,  # a group of its own, which Ctrl-C reaches as a whole
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        heard = (json.loads(line) for line in process.stdout)
        assert next(heard) == "ready"
        outcome.took_s = _whole_call_s(process.stdin, heard)
        while outcome.n < times:
            process.stdin.write("\n")
            process.stdin.flush()
            assert next(heard) == "begin"
            time.sleep(shuffle.uniform(0.0, outcome.took_s))
            sent = time.time()
            os.killpg(process.pid, signal.SIGINT)
            _take(outcome, next(heard), sent)
        process.stdin.close()
        started = psutil.Process(process.pid).children(recursive=True)
        process.wait(timeout=60)
        _, left = psutil.wait_procs(started, timeout=_SETTLE_S)
        if left:
            outcome.problems.append(f"{len(left)} processes left behind")
    return outcome


def _whole_call_s(requests: Any, heard: Iterator[Any]) -> float:
    requests.write("\n")
    requests.flush()
    assert next(heard) == "begin"
    began = time.time()
    said = next(heard)
    assert said["how"] == "returned", said
    return said["ended"] - began


def _take(outcome: Outcome, said: dict[str, Any], sent: float) -> None:
    if said["how"] == "returned":
        if said["ended"] > sent:
            outcome.n += 1
            outcome.problems.append("returned as if nothing had happened")
        else:
            outcome.n_late += 1
        return
    outcome.n += 1
    if said["how"] != "interrupted":
        outcome.problems.append(said["how"])
    if said["problem"]:
        outcome.problems.append(said["problem"])
    outcome.n_kept += said["kept"] != "NoneType"
    outcome.slowest_s = max(outcome.slowest_s, said["ended"] - sent)


FUNCTIONS = (
    "profile", "sweep", "calibrate", "plan", "optimize", "recover_accuracy", "evaluate",
    "quantize", "find_refused", "find_wrong", "investigate", "advise",
)  # fmt: skip


def main() -> int:
    """Interrupt the functions that are named, or all; return how many had problems."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("functions", nargs="*", choices=[*FUNCTIONS, []])
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return 0
    print(f"{'function':18}{'whole s':>8}{'interrupts':>12}{'kept':>8}{'slowest s':>12}   wrong")
    wrong = 0
    for function in given.functions or FUNCTIONS:
        outcome = interrupt(function, given.times, given.seed)
        wrong += bool(outcome.problems)
        print(outcome.line(), flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
