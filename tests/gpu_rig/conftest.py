"""Starts the rig before openvino is imported: ``python -m pytest tests/gpu_rig``.

The tests here are collected only when this directory is asked for by name, because the rig
changes the devices of every other test in the same process.
"""

import atexit
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent

if Path.cwd() == HERE or any(HERE.name in argument for argument in sys.argv):
    import rig

    build_dir = tempfile.mkdtemp(prefix="gpu_rig_")
    atexit.register(shutil.rmtree, build_dir, ignore_errors=True)
    rig.start(build_dir)
else:
    collect_ignore_glob = ["test_*.py"]
