"""Ops of extensions: known wherever a model is read, if their file is named."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from odd_models import Twice
from openvino import opset13 as op
from small_models import chain

import hetero_lab as hl
from hetero_lab.deploy import run_frozen
from hetero_lab.errors import CompileError, MeasurementError, ModelError
from hetero_lab.model.extension_ops import FILES, core_with_ops, unknown_op

HEAD = """
from __future__ import annotations
from typing import Any
import numpy as np
import openvino as ov

"""
X = np.array([-1, 1, 2, 3], np.float32)


@pytest.fixture
def model() -> ov.Model:
    x = op.parameter([4], np.float32, name="x")
    twice = Twice([op.relu(x).output(0)])
    twice.set_friendly_name("twice")
    return ov.Model([op.result(twice.output(0), name="out")], [x], "extended")


def test_a_file_with_ops_is_known_to_workers_and_deployments(model, monkeypatch, tmp_path):
    file = tmp_path / "twice.py"
    file.write_text(HEAD + inspect.getsource(Twice))
    monkeypatch.setenv(FILES, str(file))
    profile = hl.profile(model, "CPU", iterations=3, isolate=True, progress=False)
    assert [a.verdict for a in profile.agreement] == ["equal"]
    directory = hl.freeze(model, "CPU", tmp_path / "frozen", tolerance=None, progress=False)
    (output,) = run_frozen.run(directory, {"x": X}).values()
    assert output.tolist() == [0, 2, 4, 6]
    assert hl.load(directory / "model.xml").get_friendly_name() == "extended"
    monkeypatch.delenv(FILES)
    with pytest.raises(ModelError, match=f"'Twice' is an op of an extension.*{FILES}=FILE"):
        hl.load(directory / "model.xml")


@pytest.mark.parametrize("call", ["profile", "freeze", "investigate"])
def test_where_an_op_is_unknown_the_way_out_is_told(model, monkeypatch, tmp_path, call):
    monkeypatch.delenv(FILES, raising=False)
    calls = {
        "profile": lambda: hl.profile(model, "CPU", iterations=3, isolate=True, progress=False),
        "freeze": lambda: hl.freeze(model, "CPU", tmp_path / "frozen", tolerance=None),
        "investigate": lambda: hl.investigate(model, "CPU", progress=False),
    }
    kinds = (CompileError, MeasurementError, ModelError)
    with pytest.raises(kinds, match=rf"'Twice' is an op of an ext.*{FILES}=FILE.*isolate=False"):
        calls[call]()
    profile = hl.profile(model, "CPU", iterations=3, isolate=False, progress=False)
    assert [a.verdict for a in profile.agreement] == ["equal"]


def test_the_library_of_the_tokenizers(monkeypatch):
    pytest.importorskip("openvino_tokenizers")
    import openvino_tokenizers

    (library,) = Path(openvino_tokenizers.__file__).parent.glob("lib/*openvino_tokenizers*")
    code = f"import os; os.environ['{FILES}'] = {str(library)!r}\n"
    code += "from hetero_lab.model.extension_ops import core_with_ops; core_with_ops()"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_file_that_is_no_extension(monkeypatch, tmp_path):
    monkeypatch.setenv(FILES, str(tmp_path / "none.so"))
    with pytest.raises(RuntimeError, match=r"none\.so"):
        core_with_ops()
    path = tmp_path / "m.xml"
    ov.save_model(chain("relu"), path)
    with pytest.raises(ModelError, match=r"none\.so"):
        hl.load(path)
    assert unknown_op(RuntimeError("Cannot create a tensor")) == ""  # that is another error
