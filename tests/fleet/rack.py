"""A real Dask cluster of processes on this machine; workers can have a host of their own.

A host of its own is a set of Linux namespaces: an address, a name, a boot id and a directory for
temporary files that no other worker has.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

REPO = Path(__file__).parents[2]
_SCHEDULER = "from distributed.cli.dask_scheduler import main; main()"
_WORKER = "from distributed.cli.dask_worker import main; main()"
_subnets = itertools.count(os.getpid() % 200)


def can_make_hosts() -> bool:
    """Whether this machine lets us make namespaces with addresses of their own."""
    if not all(map(shutil.which, ("ip", "unshare", "mount"))) or os.geteuid() != 0:
        return False
    name = f"hl{os.getpid()}t"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    if made:
        tries = f"ip netns exec {name} unshare --mount --uts hostname tried"
        made = subprocess.run(tries.split(), capture_output=True).returncode == 0
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return made


class Rack:
    """A scheduler and its workers; all end with :meth:`close`."""

    def __init__(self, directory: Path):
        self._directory = directory
        self._processes: list[subprocess.Popen] = []
        self._namespaces: list[str] = []
        self.scheduler = self.start_scheduler(0)

    @property
    def address(self) -> str:
        """Of the scheduler, for processes on this host."""
        return f"tcp://127.0.0.1:{self.port}"

    def start_scheduler(self, port: int) -> subprocess.Popen:
        """Start a scheduler, wait until it listens."""
        file = self._directory / "scheduler.json"
        file.unlink(missing_ok=True)
        process = self._start(
            [sys.executable, "-c", _SCHEDULER, "--host", "0.0.0.0", "--port", str(port),
             "--no-dashboard", "--scheduler-file", str(file)],
            "scheduler",
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while not file.exists() or not file.read_text().strip():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self.port = int(json.loads(file.read_text())["address"].rpartition(":")[2])
        return process

    def start_worker(
        self, *options: str, before: str = "", host: str = "", nanny: bool = False
    ) -> subprocess.Popen:
        """Start a worker, on this host or on one of its own that is called ``host``.

        ``before`` is code that runs in the worker's process ahead of all else.
        """
        number = len(self._processes)
        home = self._directory / f"worker{number}"
        home.mkdir()
        scheduler, around = self.address, []
        if host:
            scheduler, around = self._make_host(host, number, home)
        command = [
            *around, sys.executable, "-c", f"{before}\n{_WORKER}", scheduler, "--nthreads", "1",
            "--nanny" if nanny else "--no-nanny", "--local-directory", str(home),
            "--no-dashboard", *options,
        ]  # fmt: skip
        return self._start(command, f"worker{number}", TMPDIR=str(home) if host else None)

    def _make_host(self, name: str, number: int, home: Path) -> tuple[str, list[str]]:
        namespace, subnet = f"hl{os.getpid()}n{number}", f"10.213.{next(_subnets) % 250}"
        ours, theirs = f"hl{os.getpid() % 10000}a{number}", f"hl{os.getpid() % 10000}b{number}"
        for command in (
            f"ip netns add {namespace}",
            f"ip link add {ours} type veth peer name {theirs} netns {namespace}",
            f"ip addr add {subnet}.1/24 dev {ours}",
            f"ip link set {ours} up",
            f"ip -n {namespace} addr add {subnet}.2/24 dev {theirs}",
            f"ip -n {namespace} link set {theirs} up",
            f"ip -n {namespace} link set lo up",
        ):
            subprocess.run(command.split(), check=True, capture_output=True)
            self._namespaces.append(namespace)
        (home / "boot_id").write_text(f"boot-of-{name}\n")
        enter = (
            f"hostname {name} && mount --bind {home}/boot_id /proc/sys/kernel/random/boot_id "
            '&& exec "$@"'
        )
        around = ["ip", "netns", "exec", namespace, "unshare", "--mount", "--uts"]
        return f"tcp://{subnet}.1:{self.port}", [*around, "sh", "-c", enter, "sh"]

    def _start(self, command: list[str], name: str, **environment: str | None) -> subprocess.Popen:
        mine = {k: v for k, v in environment.items() if v is not None}
        path = os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")])
        with open(self._directory / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                env={**os.environ, "PYTHONPATH": path, **mine},
            )
        self._processes.append(process)
        return process

    def close(self) -> None:
        """End all processes and remove the hosts."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()
        for namespace in dict.fromkeys(self._namespaces):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)
