"""The mode that is like Windows refuses what Windows does, to hetero_lab alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from other_process import run_python
from package_source import PACKAGE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="an imitation on Linux")

PLUGIN = Path(__file__).parent / "windows_like"
CASES = {
    "os.fork()": "OSError",
    "open('/proc/self/status', 'rb')": "FileNotFoundError",
    "os.stat('/dev/shm')": "FileNotFoundError",
    "os.symlink('a', 'b')": "OSError",
    "open('text')": "EncodingWarning",
    "Path('text').read_text()": "EncodingWarning",
    "subprocess.run(['true'], text=True)": "EncodingWarning",
    "open('a:b', 'wb')": "OSError",
    "Path('NUL.txt').write_bytes(b'')": "OSError",
    "os.mkdir('ends in a dot.')": "OSError",
    "open('TEXT', 'wb')": "FileExistsError",
    "os.replace('other', 'mapped')": "PermissionError",
    "os.unlink('mapped')": "PermissionError",
    "shutil.rmtree('held')": "PermissionError",
    "ctypes.CDLL(None)": "TypeError",
    "__import__('fcntl', globals())": "ModuleNotFoundError",
}
CODE = """
import ctypes, mmap, os, shutil, subprocess, sys
from pathlib import Path
cases, package, refused = sys.argv[1].split("|"), sys.argv[2], []
os.mkdir("held")
for name in ("text", "other", "mapped", "held/file"):
    Path(name).write_bytes(b"text")
with open("mapped", "rb") as file:
    kept = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), open("held/file", "rb")
for case in cases:
    try:
        here = {**globals(), "__file__": package}
        child = eval(compile(case, package, "eval"), here)
        if case == "os.fork()" and not child:
            os._exit(0)
    except Exception as error:
        refused.append(type(error).__name__)
    else:
        refused.append("")
print("|".join(refused))
"""


@pytest.mark.parametrize(
    ("where", "errors"), [("views/made_up.py", True), ("../made_up.py", False)]
)
def test_it_refuses_what_hetero_lab_must_do_without(tmp_path, where, errors):
    path = os.pathsep.join([str(PLUGIN), os.environ.get("PYTHONPATH", "")])
    file = os.path.normpath(PACKAGE / where)
    done = run_python(CODE, "|".join(CASES), file, cwd=tmp_path, PYTHONPATH=path)
    found = dict(zip(CASES, done.stdout.strip().split("|"), strict=True))
    assert found == (CASES if errors else dict.fromkeys(CASES, ""))
