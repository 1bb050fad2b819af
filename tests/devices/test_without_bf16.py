"""What the lab makes of a CPU without bf16, wherever the tests run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ASK = """
import json
import hetero_lab as hl
from hetero_lab.devices.core import shared_core
from hetero_lab.devices.devices import precisions
from hetero_lab.errors import PropertyError

spec = hl.emulate("ACC", faster_by="auto")
try:
    hl.emulate("LOW", properties={"INFERENCE_PRECISION_HINT": "bf16"})
    refusal = ""
except PropertyError as error:
    refusal = str(error)
compiled = hl.compile("digits_inception", "CPU").compiled_model
print(json.dumps({
    "precisions": precisions("CPU", core=shared_core()),
    "by": sorted(spec.properties),
    "refusal": refusal,
    "default": compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name(),
}))
"""


def test_a_cpu_without_bf16():
    if not sys.platform.startswith("linux") or not (shutil.which("cc") and shutil.which("objdump")):
        pytest.skip("hiding bf16 needs Linux, a C compiler and objdump")
    done = subprocess.run(
        [sys.executable, "-m", "tests.without_bf16", sys.executable, "-c", ASK],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["precisions"] == ["f32"]
    assert found["default"] == "f32"
    assert "INFERENCE_NUM_THREADS" in found["by"]
    assert "CPU does not compute in bf16" in found["refusal"]
