"""Placements in fresh processes that know nothing of the lab: openvino and numpy alone.

What such a process computes is what the runtime computes, and what it measures is what somebody
gets who deploys one placement.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hetero_lab.deploy import run_frozen
from hetero_lab.devices.core import BoundModel
from hetero_lab.model.read import input_name
from hetero_lab.placement.placement import Placement, resolve
from hetero_lab.processes import environment_of_a_child
from hetero_lab.runtime.inputs import input_arrays
from hetero_lab.runtime.stored_placement import standalone, write_placed

_PROGRAM = """
import json, sys, time
import numpy as np
sys.path.insert(0, sys.argv[1])
import run
made = {}
clock = time.perf_counter_ns

def load(directory):
    compiled, plan = run.load(directory)
    given = np.load(directory + "/inputs.npz")
    request = compiled.create_infer_request()
    request.infer([given[name] for name in plan["inputs"]])
    made[directory] = request

def forget(directory):
    del made[directory]

def outputs(directory):
    request = made[directory]
    request.infer()
    arrays = [np.array(tensor.data) for tensor in request.output_tensors]
    np.savez(directory + "/outputs.npz", **{f"{i:04d}": a for i, a in enumerate(arrays)})

def turn(directory, discarded, timed):
    infer = made[directory].infer
    for _ in range(discarded):
        infer(share_outputs=True)
    samples = []
    for _ in range(timed):
        began = clock()
        infer(share_outputs=True)
        samples.append((clock() - began) / 1e3)
    return samples

for line in sys.stdin:
    asked = json.loads(line)
    try:
        answer = {"value": globals()[asked["do"]](*asked["args"])}
    except Exception as error:
        answer = {"error": str(error)}
    print("answer", json.dumps(answer), flush=True)
"""


def frozen(
    bound: BoundModel,
    placement: Placement,
    directory: Path,
    arrays: list[np.ndarray] | None = None,
) -> Path:
    """Write a placement as a plain process loads it; generated inputs unless some are given."""
    directory.mkdir(parents=True)
    given = input_arrays(bound, None) if arrays is None else arrays
    write_placed(directory / "model.xml", resolve(bound, placement))
    named: dict[str, Any] = {
        input_name(p): a for p, a in zip(bound.model.inputs, given, strict=True)
    }
    np.savez(directory / "inputs.npz", **named)
    (directory / "run.py").write_text(standalone(run_frozen), encoding="utf-8")
    return directory


def edit_placement(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the placement in a model's file, or frozen directory, as with an editor."""
    file = file / "model.xml" if file.is_dir() else file
    text = file.read_text(encoding="utf-8")
    found = re.search(r'<placement value="([^"]*)"', text)
    assert found
    placed = json.loads(html.unescape(found[1]))
    change(placed)
    file.write_text(text.replace(found[1], html.escape(json.dumps(placed))), encoding="utf-8")


class PlainError(RuntimeError):
    """OpenVINO alone cannot do it either."""


class PlainProcess:
    """A process that loads placements from directories, as ``freeze`` writes them, and runs them.

    Use it with ``with``; ``program`` is any of the directories.
    """

    def __init__(self, program: Path):
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment_of_a_child(),
            text=True,
        )

    def load(self, directory: Path) -> None:
        """Compile a placement and infer once."""
        self._ask("load", str(directory))

    def forget(self, directory: Path) -> None:
        """Let go of a placement."""
        self._ask("forget", str(directory))

    def turn(self, directory: Path, discarded: int = 2, timed: int = 10) -> list[float]:
        """Run one turn; return the time of each inference in µs."""
        return self._ask("turn", str(directory), discarded, timed)

    def outputs(self, directory: Path) -> list[np.ndarray]:
        """Infer once more and return the outputs in order."""
        self._ask("outputs", str(directory))
        with np.load(directory / "outputs.npz") as file:
            return [file[key] for key in sorted(file.files)]

    def close(self) -> None:
        """End it."""
        self._process.communicate()

    def _ask(self, do: str, *args: object):
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, "args": args}) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            kind, _, text = line.partition(" ")
            if kind == "answer":
                answer = json.loads(text)
                if "error" in answer:
                    raise PlainError(answer["error"])
                return answer["value"]
        raise PlainError(f"the process ended with {self._process.wait()}")

    def __enter__(self) -> PlainProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
