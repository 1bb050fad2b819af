"""ONNX's own backend tests as models, on both executors: ``python -m tests.proof.onnx_cases``.

By hand, and with the ``onnx`` package, which the lab does not need: ``pip install onnx``. A case
counts if it has two or more ops and if OpenVINO alone, on CPU in f32, gives what ONNX expects.
Each is run by HETERO and by the parallel executor on four placements over CPU and an emulated
device: by priorities, every other op, and two at random. Their outputs are compared with those of
OpenVINO alone. Prints how many runs were equal, refused (and why), failed, or wrong; the exit
code is 1 after a wrong or a failed one. ``--rounds 0`` goes on until it is stopped, with other
random placements in each round. ``--only`` is a regular expression of names.
"""

from __future__ import annotations

import collections
import faulthandler
import importlib
import itertools
import re
import sys
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

import hetero_lab as hl
from hetero_lab.errors import HeteroLabError
from hetero_lab.model.read import PreparedModel, prepare
from tests.scripts import F32, options

DEVICES = ("FREE", "CPU")  # FREE takes every op, ACC does not
EXECUTORS = ("hetero", "parallel")
_HANG_S = 300


@dataclass(frozen=True)
class Case:
    """A model as ONNX bytes, inputs in its order, and the outputs that ONNX expects."""

    name: str
    model: bytes
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    rtol: float
    atol: float


def read_cases() -> Iterator[Case]:
    """Yield the cases of the onnx package that are there without a download.

    The graphs of well-known networks come without weights and outputs; OpenVINO alone is
    what they are compared with.
    """
    onnx = importlib.import_module("onnx")  # not among the lab's requirements
    loader = importlib.import_module("onnx.backend.test.loader")
    collect_testcases = importlib.import_module("onnx.backend.test.case.node").collect_testcases

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = collect_testcases(None)
    for case in made:
        for inputs, outputs in case.data_sets[:1]:
            yield Case(
                case.name, case.model.SerializeToString(), tuple(inputs), tuple(outputs),
                case.rtol, case.atol,
            )  # fmt: skip
    for kind in ("simple", "pytorch-operator", "pytorch-converted"):
        for case in loader.load_model_tests(kind=kind):
            directory = Path(case.model_dir)
            data = directory / "test_data_set_0"
            inputs, outputs = (_arrays(data, side, onnx) for side in ("input", "output"))
            model = (directory / "model.onnx").read_bytes()
            yield Case(case.name, model, inputs, outputs, case.rtol, case.atol)
    rng = np.random.default_rng(0)
    for path in sorted((Path(loader.DATA_DIR) / "light").glob("*.onnx")):
        model = onnx.load(path)
        fixed = {tensor.name for tensor in model.graph.initializer}
        inputs = tuple(
            rng.random([d.dim_value for d in port.type.tensor_type.shape.dim]).astype(np.float32)
            for port in model.graph.input
            if port.name not in fixed
        )
        yield Case(path.stem, path.read_bytes(), inputs, (), 1e-3, 1e-5)


def _arrays(directory: Path, side: str, onnx: Any) -> tuple[Any, ...]:
    found = []
    for number in itertools.count():
        path = directory / f"{side}_{number}.pb"
        if not path.exists():
            return tuple(found)
        tensor = onnx.TensorProto.FromString(path.read_bytes())
        found.append(onnx.numpy_helper.to_array(tensor))
    raise AssertionError


def alone(case: Case, core: ov.Core) -> tuple[PreparedModel, list[Any], list[np.ndarray]] | None:
    """Run a case with OpenVINO alone; None if it is too small or OpenVINO gets it wrong.

    Returns the model as the lab prepares it, the inputs as arrays that the lab takes, and the
    outputs.
    """
    if not all(isinstance(array, np.ndarray) for array in case.inputs + case.outputs):
        return None  # sequences and optional values
    try:
        model = core.read_model(case.model)
        if len(model.inputs) != len(case.inputs) or any(0 in a.shape for a in case.inputs):
            return None
        compiled = core.compile_model(model, "CPU", F32)
        request = compiled.create_infer_request()
        for index, array in enumerate(case.inputs):
            element_type = model.inputs[index].get_element_type()
            request.set_input_tensor(index, _tensor(array, element_type))
        request.infer()
        found = [np.array(request.get_output_tensor(i).data) for i in range(len(model.outputs))]
    except RuntimeError:
        return None
    for value, wanted in zip(found, case.outputs, strict=False):
        if value.shape != wanted.shape:
            return None
        if wanted.dtype.kind in "fiub" and value.dtype == wanted.dtype:
            with np.errstate(all="ignore"):
                if not np.allclose(value, wanted, case.rtol, case.atol, equal_nan=True):
                    return None
    shapes = {
        port.get_node().get_friendly_name(): list(array.shape)
        for port, array in zip(model.inputs, case.inputs, strict=True)
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            prepared = prepare(model, shapes)
    except HeteroLabError:
        return None
    ops = [op for op in prepared.graph if op.type not in ("Parameter", "Constant", "Result")]
    return (prepared, list(case.inputs), found) if len(ops) >= 2 else None


def _tensor(array: np.ndarray, element_type: ov.Type) -> ov.Tensor:
    """Make a tensor of any element type: NumPy has no bf16 and no f8, their bits are handed on."""
    if element_type == ov.Type.string:
        return ov.Tensor(array.astype(str))
    if array.dtype.kind == "V" or array.dtype.name not in np.sctypeDict:
        array = array.view(f"u{array.dtype.itemsize}")
    tensor = ov.Tensor(element_type, ov.Shape(array.shape))
    tensor.data.view(array.dtype)[...] = array
    return tensor


def placements(prepared: PreparedModel, seed: int, core: ov.Core) -> dict[str, hl.Affinity]:
    """Return the four placements of a model."""
    rng = np.random.default_rng([seed, zlib.crc32(prepared.fingerprint.encode())])
    automatic = hl.Affinity.automatic(prepared, "HETERO:ACC,CPU", core=core)
    ops = automatic.ops

    def fixed(devices: list[str]) -> hl.Affinity:
        return automatic.fix(ops=dict(zip(ops, devices, strict=True)), core=core)

    return {
        "automatic": automatic,
        "alternating": fixed([DEVICES[index % 2] for index in range(len(ops))]),
        "random 1": fixed(rng.choice(DEVICES, len(ops)).tolist()),
        "random 2": fixed(rng.choice(DEVICES, len(ops), p=[0.8, 0.2]).tolist()),
    }


def run(
    prepared: PreparedModel, affinity: hl.Affinity, executor: str, inputs: list[Any], core: ov.Core
) -> list[np.ndarray]:
    """Run a placement once; return its outputs in order."""
    placement = hl.Placement(affinity, "case", dict.fromkeys(affinity.devices, F32))
    if executor == "hetero":
        return list(hl.compile(prepared, placement, core=core)(inputs).values())
    with hl.ParallelExecutor(prepared, placement, core=core) as parallel:
        return list(parallel(inputs).values())


def same(found: list[np.ndarray], wanted: list[np.ndarray]) -> bool:
    """Say whether outputs are those of OpenVINO alone, up to rounding."""
    for value, other in zip(found, wanted, strict=True):
        if value.shape != other.shape:
            return False
        if other.dtype.kind in "SU":
            if not np.array_equal(value, other):
                return False
        elif value.dtype != other.dtype:
            continue  # an element type that NumPy does not have
        elif not np.allclose(value, other, rtol=1e-3, atol=1e-5, equal_nan=True):
            return False
    return True


def check(case: Case, seed: int, core: ov.Core, tally: collections.Counter[Any]) -> list[str]:
    """Run all placements of a case; return what was wrong or failed."""
    problems: list[str] = []
    runs = alone(case, core)
    if runs is None:
        tally["cases left out"] += 1
        return problems
    tally["cases"] += 1
    prepared, inputs, wanted = runs
    try:
        affinities = placements(prepared, seed, core)
    except HeteroLabError as error:
        tally["no placement", _reason(error)] += 1
        return problems
    for (label, affinity), executor in itertools.product(affinities.items(), EXECUTORS):
        faulthandler.dump_traceback_later(_HANG_S, exit=False)
        try:
            found = run(prepared, affinity, executor, inputs, core)
            outcome = "equal" if same(found, wanted) else "WRONG"
        except HeteroLabError as error:
            outcome = f"refused: {_reason(error)}"
        except Exception as error:
            outcome = f"FAILED: {type(error).__name__}: {_reason(error)}"
        faulthandler.cancel_dump_traceback_later()
        tally[executor, outcome] += 1
        if outcome[0] in "WF":
            problems.append(f"{case.name}, {label}, {executor}: {outcome}")
    return problems


def _reason(error: Exception) -> str:
    text = (str(error).strip().splitlines() or [""])[-1]
    text = re.sub(r"'[^']*'|\d+", "…", text)
    return re.sub(r"(…, )+…", "…", text)[:100]


def main() -> int:
    """Run all cases and print the table."""
    given = options(__doc__, rounds=1, seed=0, only="")
    faulthandler.enable()
    try:
        cases = [case for case in read_cases() if re.search(given.only, case.name)]
    except ImportError:
        print("This needs ONNX's own tests: pip install onnx")
        return 2
    core = ov.Core()
    hl.emulate("ACC", unsupported={"Softmax", "Concat", "Add"}, core=core)
    hl.emulate("FREE", core=core)
    failed = False
    for number in itertools.count() if not given.rounds else range(given.rounds):
        tally: collections.Counter[Any] = collections.Counter()
        for case in cases:
            for problem in check(case, given.seed + number, core, tally):
                failed = True
                print(problem, flush=True)
        for key, n in sorted(tally.items(), key=str):
            print(f"{n:6} {key if isinstance(key, str) else ': '.join(key)}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
