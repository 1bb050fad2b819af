"""Show that a device computes wrong numbers, refuses a model, crashes, hangs or is slow.

Needs openvino, numpy, and the files beside it. Each side runs in a process of its own.
"""

import importlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import openvino as ov

if not hasattr(ov, "Core"):  # before 2023.1
    ov = importlib.import_module("openvino.runtime")

HERE = Path(__file__).resolve().parent
RAISED = 3  # the exit code of a side whose device raises an error
OTHER = 125  # the exit code if it cannot be told whether the fault is there, as for git bisect
TIMED, DISCARDED = 60, 10  # inferences: the first ones are slower


def infer(fault, side, file):
    """Run one side and store its outputs; a process ends with this."""
    core = ov.Core()
    for device, (library, internal) in fault["emulated"].items():
        if library not in [f"openvino_intel_{base}_plugin" for base in ("cpu", "gpu", "npu")]:
            sys.exit(f"fault.json names the plugin {library!r}, which is none of OpenVINO's.")
        core.register_plugin(
            library,
            internal,
            {
                "PROXY_CONFIGURATION_ALIAS": device,
                "PROXY_CONFIGURATION_PRIORITY": "0",
                "PROXY_CONFIGURATION_INTERNAL_NAME": internal,
            },
        )
    model = core.read_model(HERE / "model.xml")
    with np.load(HERE / "inputs.npz") as stored:
        arrays = [stored[f"in{index}"] for index in range(len(stored.files))]
    device, properties = fault[side]["device"], fault[side]["properties"]
    shapes = [output.get_partial_shape() for output in model.outputs]
    homes = fault[side]["affinities"]
    if side == "right" and fault["symptom"] in ("wrong", "NaN"):
        # A device fuses no ops whose tensors are outputs, so its own fusions are seen as well.
        for node in model.get_ordered_ops():
            if node.get_type_name() not in ("Constant", "Result", "Parameter", "Assign"):
                model.add_outputs(node.outputs())
    for node in model.get_ordered_ops() if homes else ():
        node.get_rt_info()["affinity"] = homes[node.get_friendly_name()]
    # A missing device raises here, outside the try, so that it does not count as the fault.
    names = device.partition(":")[2].split(",") if ":" in device else [device]
    full_names = ", ".join(core.get_property(name, "FULL_DEVICE_NAME") for name in names)
    print(f"{side}: {device} ({full_names}) {properties}", flush=True)
    try:
        request = core.compile_model(model, device, properties).create_infer_request()
        results, n_inputs, undeclared = {}, len(model.inputs), False
        for start in range(0, len(arrays) or 1, n_inputs or 1):
            pairs = zip(model.inputs, arrays[start : start + n_inputs])
            request.infer([as_input(port, array) for port, array in pairs])
            for index in range(len(shapes)):  # HETERO and plugins may rename outputs
                results[f"out{len(results)}"] = np.array(request.get_output_tensor(index).data)
                shape, declared = request.get_output_tensor(index).shape, shapes[index]
                if not declared.compatible(ov.PartialShape(list(shape))):
                    print(f"{side}: an output has the shape {list(shape)}, declared is {declared}")
                    undeclared = True
        clock = [time.perf_counter()]
        while len(clock) <= TIMED and fault["symptom"] == "slower":
            request.infer()
            clock.append(time.perf_counter())
        results["undeclared"] = np.array(undeclared)
        results["seconds"] = np.median(np.diff(clock)[DISCARDED:] if clock[1:] else 0.0)
    except (RuntimeError, MemoryError) as error:
        print(error, file=sys.stderr)
        return RAISED
    np.savez(file, **results)
    return 0


def as_input(port, array):
    """Return an array, or its bits as a tensor of a type that numpy lacks."""
    kind = port.get_element_type()
    if array.dtype == kind.to_dtype():
        return array
    tensor = ov.Tensor(kind, ov.Shape(array.shape))
    tensor.data.view(array.dtype)[...] = array
    return tensor


def run(fault, side, file):
    """Return the symptom of a side that fails with its text, or neither, and its outputs."""
    command = [sys.executable, str(HERE / "show_fault.py"), side, file]
    try:
        wait = {"capture_output": True, "errors": "replace", "timeout": fault["timeout_s"]}
        child = subprocess.run(command, **wait)
    except subprocess.TimeoutExpired:
        return "hang", f"gave no answer in {fault['timeout_s']:g} s", {}
    print(child.stdout, end="", flush=True)
    if child.returncode == RAISED:
        lines = child.stderr.strip().splitlines()
        return "refused", f"raised: {lines[-1] if lines else ''}", {}
    if child.returncode == 1:
        sys.exit(child.stderr)  # the script itself failed: the device is missing, for instance
    if child.returncode:
        return "crash", f"crashed (exit code {child.returncode})", {}
    with np.load(file) as stored:
        return "", "", {name: stored[name] for name in stored.files}


def compare(fault, right, wrong):
    """Print both outputs; return the symptom that they show."""
    worst, nan, names = 0.0, False, fault["outputs"]
    seconds = [float(side.pop("seconds")) for side in (right, wrong)]
    undeclared = [bool(side.pop("undeclared")) for side in (right, wrong)][1]
    if fault["symptom"] == "slower":
        ratio = seconds[1] / seconds[0]
        print(f"{ratio:.2f} times as long")
        return "slower" if ratio > (1 + fault["ratio"]) / 2 else ""
    for number, key in enumerate(right):
        a, b = right[key].astype(np.float64), wrong[key].astype(np.float64)
        exact = right[key].dtype.kind in "iub"  # equal or not: the share that differs counts
        if a.shape != b.shape:
            print(f"{names[number % len(names)]}: shape {b.shape}, right {a.shape}")
            worst = np.inf
            continue
        finite = np.isfinite(a) & np.isfinite(b)
        error = np.linalg.norm((a - b)[finite]) / (np.linalg.norm(a[finite]) or 1.0)
        error = np.mean(right[key] != wrong[key]) if exact and a.size else error
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            error = np.inf
            nan = nan or bool(np.isnan(b).any() and not np.isnan(a).any())
        worst = max(worst, error)
        step, output = divmod(number, len(names))
        when = f" of inference {step + 1}" if len(right) > len(names) else ""
        with np.printoptions(precision=6, threshold=8):
            print(f"{names[output]}{when}: relative error {error:.3g}")
            print(f"  right {a.ravel()}\n  wrong {b.ravel()}")
    return "NaN" if nan else "wrong" if undeclared or worst > fault["relative_error"] / 2 else ""


def main():
    """Print what both sides do; return 1 if the fault is there, 0 if not, 125 if unknown."""
    sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
    fault = json.loads((HERE / "fault.json").read_text(encoding="utf-8"))
    if len(sys.argv) > 1:
        return infer(fault, *sys.argv[1:])
    print(f"openvino {ov.get_version()} (found with {fault['openvino_version']})")
    print(f"ops: {', '.join(fault['ops'])}")
    with tempfile.TemporaryDirectory() as scratch:
        right = {}
        if fault["right"]:
            failed, text, right = run(fault, "right", f"{scratch}/right.npz")
            if failed:
                print(f"{fault['right']['device']} {text}, so there is nothing to compare with.")
                return OTHER
        symptom, text, wrong = run(fault, "wrong", f"{scratch}/wrong.npz")
    if text:
        print(f"{fault['wrong']['device']} {text}")
    elif right:
        symptom = compare(fault, right, wrong)
    elif any(value.dtype.kind == "f" and np.isnan(value).any() for value in wrong.values()):
        symptom = "NaN"
    expected = fault["symptom"]
    # What reads a wrong address may crash or not; an error that is raised is another matter.
    is_other = (symptom == "refused") != (expected == "refused")
    if symptom and is_other and expected != "out of memory":
        print(f"The fault is another one: it was {expected}.")
        return OTHER
    print("The fault is there." if symptom else "The fault is not there.")
    return 1 if symptom else 0


if __name__ == "__main__":
    sys.exit(main())
