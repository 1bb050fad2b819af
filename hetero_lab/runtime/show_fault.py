"""Show that a device computes wrong numbers or refuses a model.

Needs openvino, numpy, and the files beside it.
"""

import json
import sys
from pathlib import Path

import numpy as np
import openvino as ov


def run(directory):
    """Return the fault, the right outputs, and those of the device or its error."""
    fault = json.loads((directory / "fault.json").read_text(encoding="utf-8"))
    core = ov.Core()
    for device, (library, internal) in fault["emulated"].items():
        core.register_plugin(
            library,
            internal,
            {
                "PROXY_CONFIGURATION_ALIAS": device,
                "PROXY_CONFIGURATION_PRIORITY": "0",
                "PROXY_CONFIGURATION_INTERNAL_NAME": internal,
            },
        )
    model = core.read_model(directory / "model.xml")
    with np.load(directory / "inputs.npz") as stored:
        inputs = [stored[f"in{index}"] for index in range(len(model.inputs))]
    outputs = []
    for side in ("right", "wrong"):
        device, properties = fault[side]["device"], fault[side]["properties"]
        # A missing device raises here, outside the try, so that it does not count as the fault.
        full_name = core.get_property(device, "FULL_DEVICE_NAME")
        # If the device crashes, this is the last line.
        print(f"{side}: {device} ({full_name}) {properties}", flush=True)
        try:
            answer = core.compile_model(model, device, properties)(inputs)
        except RuntimeError as error:
            if side == "right":
                raise
            return fault, outputs[0], error
        # By index, since HETERO and plugins may rename outputs.
        outputs.append([np.array(answer[index]) for index in range(len(model.outputs))])
    return fault, *outputs


def main():
    """Print both outputs and their difference; return 1 if the fault is there."""
    fault, right, wrong = run(Path(__file__).resolve().parent)
    print(f"openvino {ov.get_version()} (found with {fault['openvino_version']})")
    print(f"ops: {', '.join(fault['ops'])}")
    if isinstance(wrong, RuntimeError):
        print(f"{fault['wrong']['device']} raised: {wrong}")
        there = "there" if fault["refusal"] else "another one: it was wrong numbers"
        print(f"The fault is {there}.")
        return 1
    worst = 0.0
    for name, a, b in zip(fault["outputs"], right, wrong):
        a, b = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(a) & np.isfinite(b)
        error = np.linalg.norm((a - b)[finite]) / (np.linalg.norm(a[finite]) or 1.0)
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            error = np.inf
        worst = max(worst, error)
        with np.printoptions(precision=6, threshold=8):
            print(f"{name}: relative error {error:.3g}\n  right {a.ravel()}\n  wrong {b.ravel()}")
    shown = not fault["refusal"] and worst > fault["relative_error"] / 2
    print("The fault is there." if shown else "The fault is not there.")
    return 1 if shown else 0


if __name__ == "__main__":
    sys.exit(main())
