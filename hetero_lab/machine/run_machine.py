"""Run all models of a plan, each on its way: python run_machine.py [SECONDS].

Needs openvino and numpy. Keeps every model as busy as machine.json says, in processes as planned,
and prints how each fared. In a program of your own:

    from run_machine import start

    models = start()  # or start("detect"), in a process for each model
    outputs = models["detect"].infer({"image": array})
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", sys.flags.isolated):
    del sys.path[0]  # the files beside this one are data: no import may run them

import contextlib
import json
import math
import os
import queue
import signal
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hetero_lab.clock import unix_now
from hetero_lab.deploy.machine_file import loads_of, read_machine
from hetero_lab.machine.load_loop import Lane, LoadWindow, keep_busy, window_at
from hetero_lab.runtime.placed_model import load, read_npz
from hetero_lab.runtime.tensors import can_share, checked_inputs, infer
from hetero_lab.terminal import columns, plain_text

HERE = Path(__file__).resolve().parent
_HEADING = ("model", "way", "rate/s", "median ms", "p99 ms", "missed", "")
_START_S, _LATE_S = 0.1, 30.0  # until all have read when to begin; more than a drive takes
_LONGEST_LINE = 100  # "ready", or two numbers


class PlannedModel:
    """A model compiled on its way, with as many requests as planned, which threads may share."""

    def __init__(self, directory: Path, n_requests: int):
        self._example = directory / "inputs.npz"
        self._compiled, self._plan = load(directory)
        self._requests = [self._compiled.create_infer_request() for _ in range(n_requests)]
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for request in self._requests:
            self._free.put(request)

    def infer(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Infer once, from initial states; wait while all requests are busy."""
        arrays = checked_inputs(self._plan["inputs"], self._compiled.inputs, inputs)
        request = self._free.get()
        try:
            for state in request.query_state():
                state.reset()
            return dict(zip(self._plan["outputs"], infer(request, arrays), strict=True))
        finally:
            self._free.put(request)

    def lanes(self) -> list[Lane]:
        """Return the requests with the example inside, warm, for :func:`keep_busy`."""
        example, can = read_npz(self._example), can_share(self._compiled.outputs)
        for _ in self._requests:  # each in its turn
            self.infer(example)
        return [Lane(partial(request.infer, share_outputs=can)) for request in self._requests]


def start(*names: str) -> dict[str, PlannedModel]:
    """Compile models in this process, by default all of the plan."""
    demands = read_machine(HERE)["models"]
    return {name: PlannedModel(HERE / name, demands[name]["requests"]) for name in names or demands}


def _serve(*names: str) -> int:
    """Be a process of models: say when they are ready, read when to begin, say how they fared."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asked ends this process
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a library may print
    machine = read_machine(HERE)
    loads = [loads_of(machine)[name] for name in names]
    lanes = [model.lanes() for model in start(*names).values()]
    print("ready", file=answers, flush=True)
    starts_at, seconds = json.loads(sys.stdin.readline(_LONGEST_LINE))
    windows = keep_busy(lanes, loads, window_at(starts_at), seconds)
    deadlines = [machine["models"][name]["deadline_ms"] for name in names]
    print(json.dumps([*map(_cells, windows, deadlines)]), file=answers, flush=True)
    return 0


def _cells(window: LoadWindow, deadline_ms: float | None) -> list[str]:
    driven, load = window.driven(), window.load
    median_us = np.median(driven.latencies_us) if driven.latencies_us else math.nan
    ms = [f"{us / 1e3:.3g}" for us in (median_us, driven.p99_us(load.patience_s))]
    missed = "" if deadline_ms is None else f"{driven.missed(deadline_ms):.1%}"
    late = f"{driven.behind_us / 1e3:.3g} ms late: more requests than a process can produce"
    note = late if driven.is_behind(load.rate_per_s) else ""
    return [f"{driven.rate_per_s:.4g}", *ms, missed, note]


def run(seconds: float = 10.0) -> list[list[str]]:
    """Keep all models busy, in processes as planned; return a table of how each fared."""
    if not 0 < seconds < math.inf:
        raise ValueError("say for how many seconds: python run_machine.py 10")
    machine = read_machine(HERE)
    models, patient_s = machine["models"], max(d.patience_s for d in loads_of(machine).values())
    groups = [[*models]] if machine["processes"] else [[name] for name in models]
    command, pipe = [sys.executable, str(HERE / "run_machine.py"), "--serve"], subprocess.PIPE
    begin = partial(subprocess.Popen, stdin=pipe, stdout=pipe, encoding="utf-8")
    children: list[Any] = [begin([*command, *group]) for group in groups]
    rows: dict[str, list[str]] = {}
    try:
        for child in children:
            child.stdout.readline(_LONGEST_LINE)  # it is ready, or died
        begins = json.dumps([unix_now() + _START_S, seconds])
        for child in children:
            with contextlib.suppress(OSError):
                print(begins, file=child.stdin, flush=True)
        for child, group in zip(children, groups, strict=True):
            try:
                answer = child.communicate(timeout=seconds + patient_s + _LATE_S)[0]
                rows |= zip(group, json.loads(answer), strict=True)
            except (subprocess.TimeoutExpired, ValueError):
                why = "it hangs" if child.poll() is None else f"exit code {child.returncode}"
                rows |= {name: ["failed", "", "", "", why] for name in group}
    finally:
        for child in children:
            child.kill()
    return [[*_HEADING], *([name, models[name]["way"], *rows[name]] for name in models)]


def main(*arguments: str) -> int:
    """Print how all models fare; return 1 if one failed, 2 for bad input."""
    if arguments[:1] in (("-h",), ("--help",)):
        print(__doc__)
        return 0
    try:
        if arguments[:1] == ("--serve",):
            return _serve(*arguments[1:])
        table = run(*map(float, arguments))
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        print(f"run_machine.py: {plain_text(' '.join(str(error).split()))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(columns(table))
    return int(any(row[2] == "failed" for row in table))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
