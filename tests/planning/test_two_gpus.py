"""The command for two GPUs, with two emulated devices."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_two_equal_devices_share_a_model_evenly():
    command = "-m tests.real_gpu.two_gpus --emulate --layers 8 --width 128 --budget 5"
    done = subprocess.run(
        [sys.executable, *command.split()], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    rows = {row["placement"]: row for row in found if "error" in row}
    assert all(row["error"] < 1e-5 for row in rows.values())
    timed = {row["placement"] for row in found if row.get("latency_us")}
    assert timed == set(rows)

    def held_mb(label: str) -> list[float]:
        return [rows[label][f"{device} counted_mb"] for device in ("SIM0", "SIM1", "CPU")]

    whole = held_mb("SIM0")[0]
    assert held_mb("greedy") == [whole, 0.0, 0.0]
    first, second, last = held_mb("planned, shared by two")
    assert min(first, second) > 0.4 * whole > 10 * last
    # Limits keep, and bind: the devices that they are for do hold something.
    limited = [held_mb("planned, SIM0 40 %")[0], *held_mb("planned, both 40 %")[:2]]
    assert all(0.2 * whole < mb <= 0.4 * whole + 0.01 for mb in limited)
    assert 0.35 * whole < sum(held_mb("planned, pool of both 65 %")[:2]) <= 0.65 * whole + 0.01
    assert all(row["keeps_limits"] is not False for row in rows.values())
