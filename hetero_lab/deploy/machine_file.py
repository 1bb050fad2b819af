"""The file of a deployed machine, what each model is asked for; a part of run_machine.py too."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetero_lab.measure.loads import MOST_RATE, Load, load_for
from hetero_lab.runtime.placed_model import file_of

MACHINE_FILES = "machine.json", "run_machine.py", "model_server.json", "model_server.txt"
FILE, PROGRAM, SERVER_FILE, SERVER_NOTE = MACHINE_FILES
ABOUT = {"kind": "machine", "schema_version": 1}
_MOST_BYTES = 1 << 20  # some ten thousand models; the file may be anybody's
_NAME = re.compile(r"[a-z0-9_][a-z0-9_-]*", re.I | re.A)


def read_machine(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the demands and the number of processes; ValueError for what makes no sense.

    ``models`` maps names, which are directories, to ``way``, ``requests``, ``rate_per_s`` and
    ``deadline_ms``.
    """
    try:
        return _parse(file_of(Path(directory) / FILE, _MOST_BYTES).read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{FILE}: {error}.") from error


def loads_of(machine: Mapping[str, Any]) -> dict[str, Load]:
    """Return the load of each model."""
    return {
        name: load_for(d["way"], d["requests"], d["rate_per_s"], d["deadline_ms"], number)
        for number, (name, d) in enumerate(machine["models"].items())
    }


def _parse(content: bytes) -> dict[str, Any]:
    machine = json.loads(content)
    if not isinstance(machine, dict) or {key: machine.get(key) for key in ABOUT} != ABOUT:
        raise ValueError(f"it does not say {json.dumps(ABOUT)}")
    if machine.get("processes") not in (None, 1):
        raise ValueError("processes is 1, or null for a process each")
    models = machine.get("models")
    if not isinstance(models, dict) or not models:
        raise ValueError("models maps names to demands")
    for name, demand in models.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r:.80} cannot name a model")
        _check_demand(name, demand)
    return machine


def _check_demand(name: str, demand: Any) -> None:
    keys = {"way", "requests", "rate_per_s", "deadline_ms"}
    if not isinstance(demand, dict) or set(demand) != keys:
        raise ValueError(f"{name} has to have {', '.join(sorted(keys))}, and nothing else")
    if not isinstance(demand["way"], str):
        raise ValueError(f"way of {name} is text")
    if type(demand["requests"]) is not int or demand["requests"] < 1:
        raise ValueError(f"requests of {name} is a whole number above 0")
    rate, deadline = demand["rate_per_s"], demand["deadline_ms"]
    if not (rate is None or _is_above_0(rate, MOST_RATE)):
        raise ValueError(f"rate_per_s of {name} is null, or above 0 and at most {MOST_RATE:g}")
    if not (deadline is None or _is_above_0(deadline)):
        raise ValueError(f"deadline_ms of {name} is null or a number above 0")
    if rate is None and deadline is not None:
        raise ValueError(f"deadline_ms of {name} needs rate_per_s")


def _is_above_0(value: Any, most: float = math.inf) -> bool:
    return type(value) in (int, float) and 0 < value <= most and value != math.inf
