"""SIGKILL and SIGTERM at random moments of commands that write: nothing is lost or left behind.

    python -m tests.proof.killed                       # 27 times SIGKILL, 14 times SIGTERM
    python -m tests.proof.killed sweep freeze --kills 4 --terms 2 --seed 3

Each time a command runs as a real process, in a session of its own, and gets the signal alone or
with all that it started. Then no process of it is left; what it was asked to write is there whole
or not at all; SIGTERM has ended it as Ctrl-C does, and has left nothing behind. The same command is
run again: it ends well, goes on with every record of the store, and afterwards the places for
temporary files, the targets and the cache hold nothing that is unfinished.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from hetero_lab.deploy.contract import check_files, frozen_digest, read_contract
from tests.proof.tampered import ROOT

MODEL, DEVICES = "digits_inception", ("-d", "ACC,CPU", "--emulate", "ACC:unsupported=Softmax")
PLACED = ("-d", "HETERO:ACC,CPU", *DEVICES[2:])
# So few turns and seconds that the whole takes some ten seconds.
COMMANDS: dict[str, tuple[str, ...]] = {
    "sweep": (
        "sweep", MODEL, *DEVICES, "--orders", "all", "-b", "60", "--turns", "5", "--store",
        "target/store", "--csv", "target/sweep.csv", "--html", "target/sweep.html",
    ),
    "calibrate": ("plan", MODEL, *DEVICES, "-b", "6", "--costs", "target/costs.json",
        "--affinity-out", "target/plan.json"),
    "optimize": ("optimize", MODEL, *DEVICES, "-b", "5", "--affinity-out", "target/best.json",
        "--csv", "target/best.csv"),
    "advise": ("advise", MODEL, *DEVICES, "-b", "12", "--store", "target/store", "--deploy",
        "target/deploy", "--csv", "target/advice.csv"),
    "freeze": ("freeze", MODEL, "target/deploy", *PLACED),
    "export": ("profile", MODEL, *PLACED, "-b", "3", "--export", "target/profile", "--csv",
        "target/profile.csv"),
    "save": ("export", MODEL, *PLACED, "--for", "benchmark_app", "--placed", "target/placed.xml"),
}  # fmt: skip
_MARK = "HETERO_LAB_OF_PROOF"
_SETTLE_S, _AT_ONCE = 20.0, 4
_SHARED_MEMORY = Path("/dev/shm")


class Run:
    """A command in directories of its own."""

    def __init__(self, command: Sequence[str], at: Path):
        self._command, self._at, self._mark = command, at, uuid.uuid4().hex
        for name in ("target", "tmp"):
            (at / name).mkdir(exist_ok=True)

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command."""
        own = {"TMPDIR": str(self._at / "tmp"), "HETERO_LAB_CACHE": str(self._at / "cache")}
        environment = {**os.environ, **own, "PYTHONPATH": str(ROOT), _MARK: self._mark}
        environment.pop("HETERO_LAB_GUARD", None)
        with open(self._at / "said", "wb") as said:
            return subprocess.Popen(
                [sys.executable, "-m", "hetero_lab", *self._command],
                cwd=self._at, env=environment, stdout=said, stderr=said, start_new_session=True,
            )  # fmt: skip

    @property
    def said(self) -> str:
        """The end of what it printed."""
        return (self._at / "said").read_text(errors="replace")[-1000:]

    def alive(self) -> list[str]:
        """Return the processes of this run that are left when they had time to end."""
        until = time.monotonic() + _SETTLE_S
        while (found := list(self._processes())) and time.monotonic() < until:
            time.sleep(0.2)
        return found

    def _processes(self) -> Iterator[str]:
        for process in psutil.process_iter():
            try:
                is_dead = process.status() == psutil.STATUS_ZOMBIE
                if not is_dead and process.environ().get(_MARK) == self._mark:
                    yield " ".join(process.cmdline())[:200]
            except psutil.Error:
                continue

    def unfinished(self) -> list[str]:
        """Return what lies in the places for temporary files, in the target and in the cache."""
        temporary = (self._at / "tmp").iterdir()
        inside = (
            path
            for name in ("target", "cache")
            for path in (self._at / name).rglob("*")
            if path.name.startswith((".hetero_lab-", "hetero_lab-scratch", ".fetch-", "tmp"))
        )
        return sorted(map(str, [*temporary, *inside]))

    def half_written(self) -> Iterator[str]:
        """Say which targets are neither whole nor absent."""
        target = self._at / "target"
        for path in sorted(target.rglob("*.json")):
            try:
                json.loads(path.read_text())
            except ValueError as error:
                yield f"{path.name}: {error}"
        for path in sorted(target.rglob("*.csv")):
            with open(path, newline="") as file:
                if len({len(row) for row in csv.reader(file)}) != 1:
                    yield f"{path.name} has rows of different length"
        for path in sorted(target.rglob("*.html")):
            if not path.read_text().rstrip().endswith("</html>"):
                yield f"{path.name} is cut off"
        for path in sorted(target.rglob("*.xml")):
            if not path.read_text().rstrip().endswith("</net>"):
                yield f"{path.name} is cut off"
            if not path.with_suffix(".bin").exists():
                yield f"{path.name} has no weights"
        for contract in target.rglob("contract.json"):
            promised = read_contract(contract.parent)
            check_files(contract.parent, {*promised.files, contract.name}, "contract")
            for name, digest in promised.files.items():
                if frozen_digest(contract.parent / name) != digest:
                    yield f"{name} is not the file of the contract"

    def records(self) -> dict[Path, list[bytes]]:
        """Return the whole lines of each store."""
        found = (self._at / "target").rglob("records.jsonl")
        return {path: path.read_bytes().splitlines(keepends=True) for path in found}


def left_in_memory() -> set[Path]:
    """Return the directories in shared memory that belong to no process any more."""
    found = _SHARED_MEMORY.glob("hetero_lab-scratch-*") if _SHARED_MEMORY.is_dir() else ()
    return set(filter(_is_left, found))


def _is_left(directory: Path) -> bool:
    """Tell whether a directory for temporary files belongs to no process any more."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def fault_of(number: int, name: str, after: float, alone: bool, whole_s: float) -> tuple[str, str]:
    """Send a signal to a command; return what happened, and what is wrong, if anything."""
    with tempfile.TemporaryDirectory() as scratch:
        run = Run(COMMANDS[name], Path(scratch))
        process = run.start()
        try:
            process.wait(after)
        except subprocess.TimeoutExpired:
            (os.kill if alone else os.killpg)(process.pid, number)
        sent = time.monotonic()
        code = process.wait(60)
        took = time.monotonic() - sent
        how = f"after {after:.1f} s, {'alone' if alone else 'all'}: code {code}, {took:.1f} s later"
        faults = [f"{len(left)} processes left: {left[0]}" for left in [run.alive()] if left]
        faults += run.half_written()
        if number == signal.SIGTERM:
            if code not in (0, 130, -signal.SIGTERM, -signal.SIGINT) or "Traceback" in run.said:
                faults.append(f"code {code}: {run.said}")
            if left := run.unfinished():
                faults.append(f"left by SIGTERM (code {code}): {left}")
        before = run.records()
        again = run.start()
        if again.wait(120 + 4 * whole_s):
            faults.append(f"the next call ends with {again.returncode}: {run.said}")
        for path, lines in before.items():
            kept = [line for line in lines if line.endswith(b"\n")]
            there = run.records().get(path, [])
            if there[: len(kept)] != kept:
                faults.append(f"{path.name}: {len(kept)} records before, not there any more")
        faults += [f"{fault} after the next call" for fault in run.half_written()]
        faults += [f"{len(left)} processes left by the next call" for left in [run.alive()] if left]
        if left := run.unfinished():
            faults.append(f"left behind after the next call: {left}")
        return how, "; ".join(faults)


def whole_seconds(name: str) -> float:
    """Run a command to its end; return how long that takes."""
    with tempfile.TemporaryDirectory() as scratch:
        run = Run(COMMANDS[name], Path(scratch))
        began = time.monotonic()
        code = run.start().wait(600)
        took = time.monotonic() - began
        left = [*run.unfinished(), *run.alive(), *run.half_written()]
        assert (code, left) == (0, []), (name, code, left, run.said)
        return took


def main() -> int:
    """Kill commands; print how each ended, and return how many went wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("commands", nargs="*", choices=[*COMMANDS, []])
    parser.add_argument("--kills", type=int, default=27)
    parser.add_argument("--terms", type=int, default=14)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    names, shuffle = given.commands or [*COMMANDS], random.Random(given.seed)
    whole_s = {name: whole_seconds(name) for name in names}
    print("seconds without a signal:", {name: round(s, 1) for name, s in whole_s.items()})
    asked = [signal.SIGKILL] * given.kills + [signal.SIGTERM] * given.terms
    waiting = [
        (number, name, shuffle.uniform(0.0, 1.05 * whole_s[name]), shuffle.random() < 0.5)
        for number, name in zip(asked, itertools.cycle(names), strict=False)
    ]
    before, faults = left_in_memory(), []

    def one(given: tuple[signal.Signals, str, float, bool]) -> None:
        how, fault = fault_of(*given, whole_s[given[1]])
        faults.append(fault)
        said = f"{'WRONG' if fault else 'ok':<6}{given[0].name} {given[1]} {how} {fault}"
        print(said.rstrip(), flush=True)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(one, waiting))
    whole_seconds("freeze")  # asks as every command does; then shared memory is clean, too
    in_memory = left_in_memory() - before
    print(f"{len(faults)} signals, {len([*filter(None, faults)])} wrong, {in_memory or 'nothing'}",
        "left in shared memory")  # fmt: skip
    return bool([*filter(None, faults)] or in_memory)


if __name__ == "__main__":
    sys.exit(main())
