"""What the guard of a model's first query and compile costs, once and later.

Run by hand: ``python tests/benchmarks/benchmark_guard.py [MODEL …]``; by default two samples and
a chain of matmuls with 400 MB of weights. Each figure is of a process of its own with an empty
cache. The guard may cost once as much again as the first query and compile, or 1 s if that is
more, and nothing later.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

_CHILD = """
import json, sys, time
import numpy as np
import openvino as ov
import hetero_lab as hl

def big():
    x = p = ov.opset13.parameter([1, 2048], np.float32, name="x")
    rng = np.random.default_rng(0)
    for _ in range(24):
        w = ov.opset13.constant(rng.standard_normal((2048, 2048), np.float32) / 50)
        x = ov.opset13.relu(ov.opset13.matmul(x, w, False, False))
    return ov.Model([ov.opset13.result(x)], [p], "big")

model = hl.load(big() if sys.argv[1] == "big" else sys.argv[1])
hl.devices()  # loads the plugins
times = {}
for when in ("first", "later"):
    for name, call in {"support": lambda: hl.support(model, ["CPU"]),
                       "compile": lambda: hl.compile(model, "CPU")}.items():
        began = time.perf_counter()
        call()
        times[f"{name} {when}"] = time.perf_counter() - began
print(json.dumps(times))
"""


def times(model: str, guard: str, cache: str) -> dict[str, float]:
    """Return the seconds of the first and the second query and compile in a new process."""
    environment = {**os.environ, "CI": "true", "HETERO_LAB_GUARD": guard, "XDG_CACHE_HOME": cache}
    command = [sys.executable, "-c", _CHILD, model]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main(models: list[str]) -> int:
    """Print the seconds without guard, with it, and in a second session; 1 if a limit is broken."""
    broken = False
    for model in models or ["digits_inception", "inception_like", "big"]:
        with tempfile.TemporaryDirectory() as cache:
            off, on, again = (times(model, guard, cache) for guard in "011")
        first, later = (
            [t[f"support {when}"] + t[f"compile {when}"] for t in (off, on, again)]
            for when in ("first", "later")
        )
        added = first[1] - first[0]
        allowed = max(1.0, first[0])
        broken |= added > allowed
        print(
            f"{model}: first {first[0]:.2f} s, guarded {first[1]:.2f} s (+{added:.2f} of at most "
            f"{allowed:.2f}), next session {first[2]:.2f} s; later {later[0]:.3f}, {later[1]:.3f}, "
            f"{later[2]:.3f} s"
        )
    return int(broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
