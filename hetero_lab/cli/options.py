"""The options of all commands and magics: their flags, and the arguments that they give.

Types and defaults are those of the functions that a command calls (:mod:`hetero_lab.cli.derive`).
"""

from __future__ import annotations

import argparse
from operator import not_

import hetero_lab as hl
from hetero_lab.cli import values
from hetero_lab.cli.derive import Option, many, switch

_DEVICES = "-d --devices", "GPU,CPU"
_PLACEMENT = "HETERO:GPU,CPU, one device, or a file with an affinity"
_ON_DEVICE = "the ops whose name matches the regular expression on a device"
_POSITIVE = {"type": values.positive}


def _costs(given: object) -> object:
    return hl.CostModel.from_json(given) if isinstance(given, str) else given


def _placement(text: str) -> object:
    is_file = text.lower().endswith((".json", ".csv"))
    return values.read_affinity(text) if is_file else text


OPTIONS = {
    # the model
    "model": Option("model", "MODEL", "a sample's name or the path of a model file"),
    "models": Option(
        "model",
        "MODEL",
        "a sample's name or the path of a model file; several that run at the same time are "
        "given as det=det.onnx rec=rec.onnx",
        parse={"nargs": "+"},
    ),
    "shape": many(
        "--shape",
        "[INPUT=]1,3,224,224",
        "static shape of an input, whose name may be left out where there is only one",
    ),
    "input": Option("--input", "FILE", "take the inputs from an .npz file", "inputs"),
    "prompt-tokens": Option(
        "--prompt-tokens",
        "N",
        "of a language model: tokens in the prompt, drawn at random",
        parse=_POSITIVE,
    ),
    "new-tokens": Option(
        "--new-tokens",
        "N",
        "of a language model: tokens to generate; times are then per further token",
        parse=_POSITIVE,
    ),
    # devices and placements
    "device": Option("-d --device", "DEVICE", "HETERO:GPU,CPU or one device"),
    "devices": Option(*_DEVICES, "devices, the first one first", parse={"required": True}),
    "all-devices": Option(*_DEVICES, "devices (all that are here)"),
    "costs-devices": Option(*_DEVICES, "devices, the first one first (those of --costs)"),
    "emulate": many(
        "--emulate",
        "NAME:supported=Convolution,MatMul",
        "register an emulated device; other parts, after a colon each, are unsupported=, base=, "
        "faster_by=auto and properties, KEY=VALUE: ACC:unsupported=Softmax:faster_by=auto",
    ),
    "property": many(
        "--property", "DEVICE.KEY=VALUE", "set a property, CPU.INFERENCE_PRECISION_HINT=f32"
    ),
    "affinity": Option("--affinity", "FILE", "device of every op, from Affinity.to_json or to_csv"),
    "fix": many("--fix", "PATTERN=DEVICE", f"put {_ON_DEVICE}"),
    "before": Option("before", "BEFORE", _PLACEMENT, read=_placement),
    "after": Option("after", "AFTER", _PLACEMENT, read=_placement),
    "stored": Option(
        "stored", "STORED", "an affinity (.json or .csv), or the directory of a frozen placement"
    ),
    "orders": Option(
        "--orders",
        help="measure the order as given, or every order of the devices (%(default)s)",
        parse={"choices": ("given", "all"), "default": "given"},
    ),
    "each-fix": many(
        "--fix",
        "PATTERN=DEVICE",
        f"measure one more placement: the order as given, but {_ON_DEVICE}",
    ),
    "grid": many(
        "--grid",
        "DEVICE.KEY=V1,V2",
        "cross the placements with values of a property; * means every device",
        read=values.grid,
    ),
    "executor": Option(
        "--executor",
        "hetero|parallel",
        "run the subgraphs by OpenVINO, or on all devices at the same time",
    ),
    "executors": Option(
        "--executor",
        "hetero,parallel",
        "run the subgraphs by OpenVINO, on all devices at the same time, or both in turn",
        read=values.names,
    ),
    "requests": Option(
        "--requests",
        "N",
        "requests in flight; with more than one, measure the time between results too",
    ),
    "each-requests": Option(
        "--requests",
        "1,4",
        "requests in flight, each measured (1)",
        parse={"type": values.whole_numbers},
    ),
    "model-cache": switch(
        "--model-cache",
        "measure each compiled and loaded from OpenVINO's model cache",
        read=lambda asked: [False, True] if asked else [False],
    ),
    # how to measure
    "budget": Option("-b --budget", "SECONDS", "most time to measure", "budget_s"),
    "iterations": Option(
        "-n --iterations", "N", "timed inferences (100 without a budget)", parse=_POSITIVE
    ),
    "warmup": Option(
        "-w --warmup", "W", "inferences before the timed ones (until they are steady)"
    ),
    "precision": Option("--precision", "SHARE", "stop sooner if all ratios are known that well"),
    "turns": Option("--turns", "N", "measure that many turns, whatever they show"),
    "sustained": Option("--sustained", "SECONDS", argument="sustained_s"),
    "isolate": Option(
        "--isolate",
        help="measure in separate processes, which may crash",
        parse={"action": argparse.BooleanOptionalAction},
    ),
    "no-counters": switch("--no-counters", "do not measure single ops", "counters", not_),
    "no-reference": switch("--no-reference", "do not compare the outputs", "reference", not_),
    "store": Option("--store", "DIR", "keep measurements there; the same command resumes them"),
    "cache-dir": Option("--cache-dir", "DIR", "keep compiled models there"),
    # what to search for
    "objective": Option(
        "--objective",
        help="best time of one request; between results; or, in a plan, of one request with memory "
        "spread evenly over the devices",
        parse={"choices": ("latency", "throughput", "balanced_memory")},
    ),
    "memory-limit": many(
        "--memory-limit",
        "DEVICES=2GiB",
        "most that weights, states and boundary tensors of a device may take, or of several that "
        "share a memory, for instance GPU.0,CPU=6GiB",
        read=values.memory_limit,
    ),
    "pin": many("--pin", "PATTERN=DEVICE", f"keep {_ON_DEVICE}", read=values.pins),
    "costs": Option("--costs", "FILE", "use these costs, of hetero-lab plan", read=_costs),
    "kept-costs": Option(
        "--costs", "FILE", "take the costs from here; if it is missing, keep what is measured here"
    ),
    "solver": Option("--solver", "NAME", "milp, or a solver of an installed package"),
    "time-limit": Option(
        "--time-limit",
        "SECONDS",
        "most time for planning (%(default)s)",
        parse={"type": values.seconds, "default": 60.0},
    ),
    "tolerance": Option("--tolerance", "ERROR"),
    "data": Option(
        "--data", "NAME", "judge the accuracy on a data set: digits", read=lambda n: hl.dataset(n)
    ),
    "max-drop": Option("--max-drop", "SHARE"),
    "slower": Option(
        "--slower", "SHARE", "how much worse the latency may be, relative to the reference"
    ),
    "across": Option(
        "--across",
        "openvino==2026.2,2026.3",
        "verify with each of these releases, in environments that pip makes and keeps, and name "
        "the one that changed it",
        "releases",
        lambda text: values.names(text.removeprefix("openvino==")),
    ),
    # classify
    "image": Option("image", "IMAGE", "a PNG, JPEG, BMP, GIF, WebP, TIFF or PPM file"),
    "top": Option("-k --top", "N", "best classes shown"),
    "mean": Option(
        "--mean",
        "M[,M,M]",
        "the input is (pixel - mean) / scale, pixels being 0 to 255; one number or three in the "
        "model's order of channels (a sample's own, else 0)",
        parse={"type": values.numbers},
    ),
    "scale": Option(
        "--scale",
        "S[,S,S]",
        "see --mean (a sample's own, else 1)",
        parse={"type": values.numbers},
    ),
    "bgr": switch("--bgr", "the model's first channel is blue", default=None),
    "counters": switch("-pc --counters", "show the counters of each subgraph"),
    # what to write and to show
    "csv": Option("--csv", "FILE", "write the summary as CSV"),
    "export": Option("--export", "DIR", "write all tables as CSV"),
    "fault": Option("--export", "DIR", "write what shows the fault with openvino and numpy alone"),
    "demo": Option(
        "--export",
        "DIR",
        "write there (%(default)s)",
        parse={"dest": "directory", "default": "hetero_lab_demo"},
    ),
    "html": Option("--html", "FILE", "write a page with sentences, figures and tables"),
    "affinity-out": Option("--affinity-out", "FILE", "write the affinity, .json or .csv"),
    "deploy": Option("--deploy", "DIR", "write the advised placement, with its contract"),
    "directory": Option("directory", "DIR", "directory of the deployed model"),
    "show-counters": switch("-pc", "show the counters of every node", dest="show_counters"),
    "table": switch("--table", "show every row"),
    "quiet": switch("-q --quiet", "show nothing", "progress", not_),
    "output": switch("-o --output", "return the result"),
    "variable": Option("-v --variable", "VAR", "store the result in a variable"),
}


def named(words: str) -> list[Option]:
    """Return the options of a command: ``"model device budget"``."""
    return [OPTIONS[word] for word in words.split()]
