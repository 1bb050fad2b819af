"""Replay public reports of OpenVINO: ``python -m tests.proof.replays``.

Each is rebuilt as a model of our own (:mod:`tests.proof.replays.reports`), beside a release that
shows its symptom. ``investigate`` finds the symptom and the fewest ops, the exported script shows
it with openvino and numpy alone, and ``bisect`` finds the release that brought or mended it. That
needs pip, a few GB of disk, and for the reports on GPU the OpenCL rig (the extra ``gpu-rig``).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.gpu_rig import rig
from tests.scripts import options


def main() -> int:
    asked = options(__doc__, only=list, keep=str, offline=False)
    no_gpu = _start_rig()  # before openvino is imported
    from tests.proof.replays.environments import is_installed
    from tests.proof.replays.replay import HEAD, replayed
    from tests.proof.replays.reports import REPORTS

    rows: list[Sequence[str]] = [HEAD, ["---"] * len(HEAD)]
    n_good, n = 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        kept = Path(asked.keep or scratch).resolve()
        for report in REPORTS:
            if asked.only and report.name not in asked.only:
                continue
            why = no_gpu if report.device == "GPU" else ""
            if asked.offline and not is_installed(report.release):
                why = f"OpenVINO {report.release} is not installed here."
            if why:
                print(f"{report.name} was left out: {why}", file=sys.stderr)
                continue
            row, good = replayed(report, Path(scratch), kept, offline=asked.offline)
            print(" · ".join(row), file=sys.stderr, flush=True)
            rows.append(row)
            n, n_good = n + 1, n_good + good
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))
    print(f"\n{n_good} of {n} reports were replayed.")
    return 0 if n_good == n else 1


def _start_rig() -> str:
    """Start the OpenCL rig; return why there is none."""
    try:
        rig.start_here()
    except rig.RigError as error:
        return str(error)
    return "" if rig.is_running() else "The rig does not start beside a real GPU."


if __name__ == "__main__":
    sys.exit(main())
