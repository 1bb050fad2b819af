"""Starts the rig before openvino is imported: ``python -m pytest tests/gpu_rig``.

The tests here are collected only when this directory is asked for by name, because the rig
changes the devices of every other test in the same process.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

if Path.cwd() == HERE or any(HERE.name in argument for argument in sys.argv):
    import rig

    rig.start_here()
else:
    collect_ignore_glob = ["test_*.py"]
