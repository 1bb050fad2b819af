"""Calls with one wrong argument each, and what the error has to say. Data for the test beside."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from small_models import chain, dynamic, stateful

import hetero_lab as hl
from hetero_lab.devices.core import shared_core
from hetero_lab.devices.devices import precisions
from hetero_lab.errors import (
    AffinityError,
    ArgumentError,
    DeviceError,
    HeteroLabError,
    InputError,
    ModelError,
    OutputPathError,
    PlanError,
    PropertyError,
    StoredFileError,
)
from hetero_lab.placement.priorities import Priorities

F32 = {"INFERENCE_PRECISION_HINT": "f32"}
# A CPU that has both lacks nothing that there is.
HAS = precisions("CPU", core=shared_core())
LACKING = next((p for p in ("f16", "bf16") if p not in HAS), "f33")
EXAMPLE = np.zeros((1, 8), np.float32)
# As benchmark_app writes it, of one op.
REPORT = """layerName;execStatus;layerType;execType;realTime (ms);cpuTime (ms);
left;Status.EXECUTED;Sigmoid;jit_f32;0.010;0.010;
Total;;;;0.010;0.010;
"""


@dataclass(frozen=True)
class Row:
    """A wrong call of ``k`` (the good things at hand): the error's kind and parts of its text."""

    name: str
    call: Callable[[SimpleNamespace], Any]
    kind: type[HeteroLabError]
    says: tuple[str, ...]


# Good arguments by name; what is callable is made of ``k``.
GOOD = {
    "accurate": "CPU",
    "after": lambda k: k.affinity,
    "before": "CPU",
    "calibration": [EXAMPLE],
    "core": lambda k: k.core,
    "costs": lambda k: k.costs,
    "data": [EXAMPLE],
    "decode": lambda k: k.costs,
    "demands": lambda k: {"one": hl.Demand(k.model)},
    "devices": ["ACC", "CPU"],
    "directory": lambda k: k.tmp / "frozen",
    "fast": "ACC",
    "file": lambda k: k.files("benchmark_average_counters_report.csv", REPORT),
    "image": lambda k: k.files("digit.ppm", "P2 2 2 255 0 255 255 0\n"),
    "memory_limit": {"ACC": "1MiB"},
    "model": lambda k: k.model,
    "name": "ACC2",
    "placement": lambda k: k.affinity,
    "placements": lambda k: [k.affinity],
    "prefill": lambda k: k.costs,
    "progress": False,
    "scenario": lambda k: hl.Scenario(8, 8),
    "source": lambda k: k.model,
    "text": "Hello",
    "token_ids": [[1, 2]],
}
_BLOCKS = {"model": "digits_inception"}  # it has blocks
_OWN = {
    "advise": {"devices": ["ACC", "CPU"]},
    "Affinity.by_block": _BLOCKS,
    "block_cuts": _BLOCKS,
    "classify": {"model": "digits_inception", "placement": "CPU"},
    "distribution": {"placement": ["CPU"]},
    "fit_blocks": _BLOCKS,
    "recover_accuracy": {"data": lambda k: hl.dataset("digits")},
    "interop.recipe": {"runtime": "ovms"},
    "save": {"file": lambda k: k.tmp / "placed.xml"},
    "sweep": {"store": lambda k: k.tmp / "store"},
    "verify": {"directory": lambda k: k.tmp},
}


def _call(function: str, wrong: Any) -> Callable[[Any], Any]:
    """Return a call of a public function: good arguments, some of them replaced."""

    def call(k: Any) -> Any:
        called = attrgetter(function)(hl)
        needed = {
            name: GOOD[name]
            for name, parameter in inspect.signature(called).parameters.items()
            if name in ("core", "progress") or (parameter.default is parameter.empty)
            if name in GOOD
        }
        every = {**needed, **_OWN.get(function, {}), **wrong}
        return called(**{name: v(k) if callable(v) else v for name, v in every.items()})

    return call


def _other(k: Any) -> Any:
    return hl.Affinity.uniform(chain("r"), "CPU", core=k.core)


def _with(properties: Any) -> Callable[[Any], Any]:
    return lambda k: hl.Placement(k.affinity, device_properties=properties)


def _named(*names: str) -> dict[str, Any]:
    return {"demands": lambda k: {name: hl.Demand(k.model) for name in names}}


# Every function that takes a model and a placement refuses these in the same words.
_MODELS = {
    "a number": (5, ModelError, ["not int", "openvino.Model"]),
    "a missing file": ("missing.xml", ModelError, ["'missing.xml' does not exist", "Samples: "]),
    "a misspelt sample": ("digits_incepton", ModelError, ["Did you mean 'digits_inception'"]),
    "a file of another kind": (__file__, ModelError, ["bad_calls.py", ".onnx"]),
    "a directory": ("/", ModelError, ["is a directory, not a model file"]),
    "a dynamic model": (dynamic(-1, -1), ModelError, ["'x [?,?]'", 'shapes={"x": ']),
}
_PLACEMENTS = {
    "a number": (5, ArgumentError, ["not int", "'HETERO:GPU,CPU'"]),
    "an absent device": ("XPU", DeviceError, ["'XPU'", "ACC, CPU", "emulate()"]),
    "a device in lower case": ("cpu", DeviceError, ["'cpu'", "Did you mean 'CPU'"]),
    "HETERO in lower case": ("hetero:CPU", DeviceError, ["'hetero:CPU'"]),
    "an absent priority": ("HETERO:ACC,NPU7", DeviceError, ["'NPU7'", "ACC, CPU"]),
    "bare HETERO": ("HETERO", DeviceError, ["names no device", "'HETERO:GPU,CPU'"]),
    "no priorities": ("HETERO:", DeviceError, ["'HETERO:' names no device"]),
    "an empty end": ("HETERO:ACC,", DeviceError, ["empty place", "in order"]),
    "an empty place": ("HETERO:ACC,,CPU", DeviceError, ["empty place", "in order of priority"]),
    "a device twice": ("HETERO:CPU,CPU", DeviceError, ["'CPU' twice", "in order of priority"]),
    "no HETERO": ("ACC,CPU", DeviceError, ["'HETERO:ACC,CPU'"]),
    "an op that the device lacks": ("ACC", DeviceError, ["'left (Sigmoid)'", "fix(ops="]),
    "another model's affinity": (_other, AffinityError, ["'r'", "Affinity.automatic("]),
    "an unknown property": (
        _with({"CPU": {"NUM_STREAMZ": 1}}),
        PropertyError,
        ["'NUM_STREAMZ'", "Did you mean 'NUM_STREAMS'"],
    ),
    "a wrong value": (
        _with({"CPU": {"INFERENCE_NUM_THREADS": "two"}}),
        PropertyError,
        ["'two'", "INFERENCE_NUM_THREADS of CPU"],
    ),
    "a precision that the device lacks": (
        _with({"CPU": {"INFERENCE_PRECISION_HINT": LACKING}}),
        PropertyError,
        [LACKING, "INFERENCE_PRECISION_HINT", "CPU"],
    ),
    "a property that is part of another": (
        _with({"CPU": {"INFERENCE_PRECISION": "f32"}}),
        PropertyError,
        ["'INFERENCE_PRECISION'", "CPU", "'INFERENCE_PRECISION_HINT'"],
    ),
    "properties of an absent device": (_with({"GPU": F32}), DeviceError, ["'GPU'", "ACC, CPU"]),
    "properties that are no mapping": (_with(3), ArgumentError, ["{'CPU': {"]),
}
# Inputs of a call and of a profile.
_INPUTS = {
    "an unknown input": ({"z": EXAMPLE}, ["'z'", "'x'"]),
    "a missing input": ({}, ["'x'"]),
    "a wrong shape": ([EXAMPLE[0]], ["'x'", "[1, 8]", "[8]"]),
    "a wrong element type": ([EXAMPLE.astype(float)], ["'x'", "float64", "astype('float32')"]),
    "too many inputs": ([EXAMPLE, EXAMPLE], ["has 1 inputs ('x')", "2 were"]),
    "a number": (5, ["not int", ".npz"]),
    "a missing file": ("gone.npz", ["'gone.npz'"]),
}
_BOTH = ["compile", "partition", "interop.hetero_dumps", "interop.recipe", "save", "freeze",
         "profile", "find_wrong", "ParallelExecutor", "lint", "simplify", "find_refused",
         "investigate"]  # fmt: skip
_PROFILED: list[tuple[Any, ...]] = [
    *(
        (f"iterations of {n!r}", {"iterations": n}, "iterations=", repr(n))
        for n in (0, -5, "many", "10", True, 1.5)
    ),
    ("a negative warm-up", {"warmup": -1}, "warmup=", "at least 0", "-1"),
    ("no budget", {"budget_s": 0}, "time budget", "more than 0 seconds", "not 0"),
    ("a budget as text", {"budget_s": "1 min"}, "time budget", "'1 min'"),
    ("no request", {"requests": 0}, "requests=", "at least 1, not 0"),
    ("half a request", {"requests": 1.5}, "not 1.5"),
    ("an unknown executor", {"executor": "paralel"}, "There is no executor 'paralel'. Did you "
     "mean 'parallel'? Executors: 'hetero', 'parallel'."),
    ("no executor", {"executor": None}, "There is no executor 'None'"),
    ("states in several requests", {"model": stateful(), "placement": "CPU", "requests": 2},
     "Use requests=1"),
    ("a seed as text", {"seed": "s"}, "seed=", "'s'"),
]  # fmt: skip
_THOROUGH = ("compile", "profile", "sweep")
_SOME = ("an absent device", "another model's affinity", "a number")


def _shared() -> Iterator[Row]:
    for function in [*_BOTH, "sweep", "calibrate", "optimize", "plan"]:
        for what, (value, kind, says) in _MODELS.items():
            if function in _THOROUGH or what in ("a number", "a dynamic model"):
                call = _call(function, {"model": value})
                yield Row(f"{function}: {what} as model", call, kind, tuple(says))
    for function in _BOTH:
        for what, (value, kind, says) in _PLACEMENTS.items():
            if function in _THOROUGH or what in _SOME:
                call = _call(function, {"placement": value})
                yield Row(f"{function}: {what} as placement", call, kind, tuple(says))
    for what, (value, says) in _INPUTS.items():
        yield Row(f"call: {what}", lambda k, v=value: k.compiled(v), InputError, tuple(says))
        call = _call("profile", {"inputs": value})
        yield Row(f"profile: {what} as inputs", call, InputError, tuple(says))
    for isolate, (what, wrong, *says) in itertools.product((False, True), _PROFILED):
        call = _call("profile", {"executor": "parallel", "isolate": isolate, **wrong})
        where = "in a process of its own" if isolate else "here"
        yield Row(f"profile: {what} {where}", call, ArgumentError, tuple(says))


# The functions that are called so, what is wrong, the wrong arguments, the error and parts of its
# text.
# fmt: off
SHARED: list[tuple[Any, ...]] = [
    ("support, priority_orders, calibrate, fit_blocks, advise, machine", "an absent device",
     {"devices": ["ACC", "XPU"]}, DeviceError, "'XPU'", "ACC, CPU"),
    ("Affinity.uniform, measure_noise", "an absent device", {"device": "XPU"}, DeviceError, "'XPU'",
     "ACC, CPU"),
    ("Affinity.from_json, CostModel.from_json", "a missing file",
     {"file": lambda k: k.tmp / "no.json"}, StoredFileError, "no.json"),
    ("measure_noise, advise, machine", "no time", {"budget_s": 0}, ArgumentError,
     "more than 0 seconds"),
    ("sweep, calibrate", "a wrong input", {"inputs": {"z": EXAMPLE}}, InputError, "'z'", "'x'"),
    ("read_sweep, read_profile, read_wrong, interop.read_recording", "nothing there",
     {"directory": lambda k: k.tmp / "nothing"}, StoredFileError, "nothing"),
    ("calibrate, optimize", "one device", {"devices": ["CPU"]}, ArgumentError, "two devices"),
    ("calibrate, optimize", "no budget", {"budget_s": 0}, ArgumentError, "time budget", "not 0"),
    ("optimize, plan, advise", "an unknown objective", {"objective": "fun"}, ArgumentError, "'fun'",
     "latency"),
    ("optimize, plan, explain", "no costs", {"costs": "fast"}, ArgumentError, "(str)",
     "calibrate("),
    ("optimize, plan", "a pin that matches nothing", {"pin": {"^block": "CPU"}}, PlanError,
     "'^block'", "matches no op"),
    ("optimize, plan", "a limit for another device", {"memory_limit": {"GPU": 5}}, PlanError,
     "'GPU'", "Devices: ACC, CPU"),
    ("optimize, plan, advise", "a limit as a riddle", {"memory_limit": {"CPU": "lots"}}, PlanError,
     "'lots'", "'2GiB'"),
    ("blocks, explain, quantize, compress_weights, classify", "no model", {"model": 5}, ModelError,
     "not int"),
    ("llm.tokenize, llm.detokenize, llm.static_phases", "no language model", {}, ModelError,
     "no states"),
    ("llm.block_curve, llm.plan_phases", "one inference", {}, PlanError, "further token",
     "scenario="),
    ("llm.block_curve, lint", "costs that are text", {"costs": "fast"}, ArgumentError, "costs=",
     "str"),
    ("dataset", "an unknown one", {"name": "digit"}, ArgumentError, "'digit'",
     "Did you mean 'digits'"),
    ("dataset", "a number", {"name": 3}, ArgumentError, "3", "digits"),
    ("support", "no device", {"devices": []}, DeviceError, "names no device", "['GPU', 'CPU']"),
    ("support", "no list", {"devices": 5}, DeviceError, "5", "for instance"),
    ("priority_orders", "no device", {"devices": []}, ArgumentError, "no device"),
    ("priority_orders", "a number", {"devices": 5}, ArgumentError, "5", "['GPU', 'CPU']"),
    ("Affinity.automatic", "an op that nobody can run", {"priorities": "HETERO:ACC"}, DeviceError,
     "'left (Sigmoid)'", "hetero_lab.support("),
    ("Affinity.uniform", "a number", {"device": 3}, DeviceError, "'3' is not a device", "ACC, CPU"),
    ("Affinity.from_json", "another kind",
     {"file": lambda k: k.files("k.json", '{"kind": "sweep", "rows": []}')}, StoredFileError,
     "k.json", "not a stored affinity"),
    ("Affinity.from_json", "a list", {"file": lambda k: k.files("l.json", "[1]")}, StoredFileError,
     "l.json", "not a stored affinity"),
    ("Affinity.from_csv", "other columns", {"file": lambda k: k.files("c.csv", "a,b\n1,2\n")},
     StoredFileError, "c.csv", "'device'"),
    ("compile", "a property of the call that nobody knows", {"compile_properties": {"SPEED": 1}},
     PropertyError, "'SPEED'", "NUM_STREAMS"),
    ("compile", "properties of the call that are a list", {"compile_properties": ["a"]},
     ArgumentError, "properties= is a mapping of text to"),
    ("compile", "a wrong value of the call",
     {"compile_properties": {"INFERENCE_PRECISION_HINT": "f33"}}, PropertyError, "'f33'"),
    ("compile", "a wrong value of the call on one device",
     {"placement": "CPU", "compile_properties": {"INFERENCE_PRECISION_HINT": "f33"}},
     PropertyError, "'f33'"),
    ("bisect", "no script", {"script": "gone.py"}, ArgumentError, "'gone.py'", "neither a script"),
    ("freeze", "a place that is a file", {"directory": lambda k: k.files("taken", "x")},
     OutputPathError, "taken"),
    ("freeze", "no example", {"examples": []}, ArgumentError, "examples="),
    ("save", "another format", {"file": "m.onnx"}, ArgumentError, "'m.onnx'", ".xml"),
    ("save", "no directory", {"file": "gone/m.xml"}, OutputPathError, "does not exist"),
    ("read_placement", "a file that is not there", {"file": "gone.xml"}, ModelError, "gone.xml"),
    ("interop.npuw", "a pipeline", {"pipeline": "FAST"}, ArgumentError, "'FAST'", "'REG'"),
    ("interop.npuw", "an op type", {"avoid": {"Sofmax": "NPU"}}, AffinityError, "'Sofmax'"),
    ("interop.read_npuw_plan", "no plan", {"file": lambda k: k.files("p.xml", "<ensemble/>")},
     StoredFileError, "p.xml", "no plan of NPUW"),
    ("interop.recipe", "a runtime", {"runtime": "genia"}, ArgumentError, "'genia'", "'genai'"),
    ("interop.hetero_dumps", "no time", {"timeout_s": 0}, ArgumentError, "timeout_s=", "above 0"),
    ("find_refused", "an absent fallback", {"fallback": "XPU"}, DeviceError, "'XPU'"),
    ("compare", "no sweep", {"before": lambda k: k.sweep, "after": 3}, ArgumentError, "int",
     "sweep"),
    ("optimize", "pins that are no mapping", {"pin": ["left"]}, PlanError, "pin= maps"),
    ("llm.tokenize", "no text", {"text": ""}, InputError, "non-empty"),
    ("llm.detokenize", "a flat list", {"token_ids": [1, 2]}, ArgumentError, "token_ids="),
    ("llm.measure_memory", "one inference", {}, PlanError, "generation", "scenario="),
    ("llm.measure_memory", "no costs", {"costs": 7}, ArgumentError, "costs=", "int"),
    ("llm.plan_phases", "no costs", {"costs": None}, ArgumentError, "costs="),
    ("llm.static_phases", "no scenario", {"scenario": 8}, ArgumentError, "scenario="),
    ("explain", "an absent device", {"after": "XPU"}, DeviceError, "'XPU'", "ACC, CPU"),
    ("explain", "another model's affinity", {"before": _other}, AffinityError, "'r'"),
    ("compress_weights", "an unknown mode", {"mode": "int3"}, ArgumentError, "'int3'", "int8_sym"),
    ("compress_weights", "an op to leave out that is not there", {"ignored": "Softmaxx"},
     ArgumentError, "'Softmaxx'", "matches no op"),
]
# Of one function, the same.
CASES: dict[str, list[tuple[Any, ...]]] = {
    "load": [
        ("no source", {"source": None}, ModelError, "not NoneType", "path"),
        ("bytes", {"source": b"model.xml"}, ModelError, "not bytes", "path"),
        ("a shape of no input", {"shapes": {"y": [1, 8]}}, ModelError, "no input 'y'",
         "Inputs: 'x "),
        ("a negative shape", {"shapes": {"x": [1, -8]}}, ModelError, "'x'", "at least 0"),
        ("a shape of another rank", {"shapes": {"x": [1, 8, 1]}}, ModelError,
         "'x' takes [1,8]", "[1, 8, 1]"),
        ("a shape that is text", {"shapes": {"x": "1,8"}}, ModelError, "'x'", "whole numbers"),
        ("shapes that are no mapping", {"shapes": {1, 8}}, ModelError, "shapes=", '{"x": ['),
        ("a shape of half a row", {"shapes": {"x": [0.5, 8]}}, ModelError, "'x'", "at least 0"),
    ],
    "Affinity.by_block": [
        ("an overlap", {"devices": {"0-1": "ACC", 1: "CPU"}}, AffinityError, "Block 1", "ACC",
         "CPU"),
        ("a block left out", {"devices": {"1": "ACC"}}, AffinityError, "block 0", "0-1"),
        ("a block too many", {"devices": {"0-2": "ACC"}}, AffinityError, "no blocks '0-2'", "0-1"),
        ("a range backwards", {"devices": {"1-0": "ACC"}}, AffinityError, "no blocks '1-0'", "0-1"),
        ("no range", {"devices": {"first": "ACC", "0-1": "CPU"}}, AffinityError, "'first'",
         "'before'"),
        ("an absent device", {"devices": {"0-1": "XPU"}}, DeviceError, "'XPU'"),
        ("no repeated layers", {"model": lambda k: k.model, "devices": {"0": "CPU"}}, AffinityError,
         "no repeated layers"),
    ],
    "block_cuts": [
        ("no cut there", {"after": [1]}, AffinityError, "after block 1", "2 blocks"),
        ("a mapping as a list", {"after": {"0": 1}}, ArgumentError,
         "after= is a list of a whole number or None, not {'0': 1} (dict)"),
        ("no repeated layers", {"model": lambda k: k.model}, AffinityError, "no repeated layers"),
        ("one device", {"devices": ["CPU"]}, DeviceError, "two devices"),
    ],
    "emulate": [
        ("a name in use", {"name": "GPU"}, DeviceError, "'GPU'", "name"),
        ("a dot in the name", {"name": "A.B"}, DeviceError, "'A.B'", "letters"),
        ("no name", {"name": ""}, DeviceError, "''", "letters"),
        ("a number as name", {"name": 7}, DeviceError, "7", "letters"),
        ("an absent base", {"base": "XPU"}, DeviceError, "'XPU'"),
        ("supported and unsupported", {"supported": ["Add"], "unsupported": ["Add"]}, ArgumentError,
         "supported", "unsupported"),
        ("one op type as text", {"unsupported": "Softmax"}, ArgumentError, "unsupported=",
         "{'Softmax'}"),
        ("an op type without a name", {"supported": [""]}, ArgumentError, "not ''"),
        ("an op type that is a number", {"supported": [5]}, ArgumentError, "supported= is"),
        ("properties as text", {"properties": "PERF_COUNT"}, ArgumentError,
         "properties= is a mapping of text to"),
        ("a precision that the base lacks", {"properties": {"INFERENCE_PRECISION_HINT": LACKING}},
         PropertyError, LACKING, "INFERENCE_PRECISION_HINT"),
        ("an unknown property", {"properties": {"SPEED": 9}}, PropertyError, "'SPEED'",
         "NUM_STREAMS"),
        ("an unknown way to be faster", {"faster_by": "magic"}, ArgumentError, "'magic'",
         "precision", "threads"),
    ],
    "find_wrong": [
        ("no tolerance", {"tolerance": 0}, ArgumentError, "tolerance=", "above 0"),
        ("no time", {"budget_s": 0}, ArgumentError, "0"),
        ("inputs of another shape", {"inputs": [EXAMPLE[:, :3]]}, InputError, "shape"),
    ],
    "investigate": [
        ("no tolerance", {"tolerance": 0}, ArgumentError, "tolerance=", "above 0"),
        ("no time", {"budget_s": 0}, ArgumentError, "0"),
        ("inputs of another shape", {"inputs": [EXAMPLE[:, :3]]}, InputError, "shape"),
        ("a virtual device", {"placement": "AUTO:CPU"}, ArgumentError, "by itself: CPU"),
    ],
    "sweep": [
        ("no placement", {"placements": []}, ArgumentError, "no placement"),
        ("a number", {"placements": 3}, ArgumentError, "is a list"),
        ("an absent device", {"placements": ["HETERO:FOO"]}, DeviceError, "'FOO'"),
        ("another model's affinity", {"placements": lambda k: [_other(k)]}, AffinityError, "'r'"),
        ("no model", {"model": {}}, ArgumentError, "mapping of variants is empty"),
        ("an unknown dimension", {"grid": {"speed": [1]}}, ArgumentError, "'speed'", "CPU."),
        ("a dimension without values", {"grid": {"CPU.NUM_STREAMS": []}}, ArgumentError,
         "CPU.NUM_STREAMS", "list of values"),
        ("an unknown property", {"grid": {"CPU.SPEED": [1]}}, PropertyError, "'SPEED'"),
        ("a precision that a device lacks",
         {"grid": {"*.INFERENCE_PRECISION_HINT": ["f32", LACKING]}}, PropertyError, LACKING,
         "INFERENCE_PRECISION_HINT"),
        ("no request", {"grid": {"requests": [0]}}, ArgumentError, "requests", "at least 1"),
        ("a label that is a number", {"placements": lambda k: {3: k.affinity}}, ArgumentError,
         "maps labels to placements", "'3' is not a label"),
        ("a group of one", {"workers": lambda k: hl.Workers(group=1)}, ArgumentError, "group=",
         "from 2"),
        ("one turn", {"turns": 1}, ArgumentError, "turns=", "at least 2"),
        ("turns as text", {"turns": "few"}, ArgumentError, "turns=", "'few'"),
        ("no precision", {"precision": 0}, ArgumentError, "precision=", "above 0"),
        ("a negative budget", {"budget_s": -1}, ArgumentError, "time budget", "more than 0", "-1"),
        ("no time", {"workers": lambda k: hl.Workers(timeout_s=0)}, ArgumentError, "timeout_s=",
         "above 0"),
        ("a negative memory limit", {"workers": lambda k: hl.Workers(memory_limit=-1)},
         ArgumentError, "memory_limit:", "-1"),
        ("an unknown executor", {"grid": {"executor": ["hetero", "warp"]}}, ArgumentError, "'warp'",
         "'hetero', 'parallel'"),
        ("executors without values", {"grid": {"executor": []}}, ArgumentError,
         "The dimension executor needs a list of values"),
        ("no executor", {"grid": {"executor": [None]}}, ArgumentError,
         "There is no executor 'None'"),
        ("no request in parallel", {"grid": {"executor": ["parallel"], "requests": [0]}},
         ArgumentError, "at least 1"),
        ("states in several requests",
         {"model": stateful(), "placements": ["CPU"],
          "grid": {"executor": ["hetero", "parallel"], "requests": [1, 2]}},
         ArgumentError, "requests=1"),
        ("a property of a device that is not used",
         {"placements": ["CPU"], "grid": {"ACC.NUM_STREAMS": [1]}}, PropertyError, "does not use"),
        ("a model cache without values", {"grid": {"model_cache": []}}, ArgumentError,
         "list of values"),
        ("a model cache of 3", {"grid": {"model_cache": [3]}}, ArgumentError, "True and False"),
        ("a directory of blobs as a property", {"grid": {"CPU.CACHE_DIR": ["x"]}}, PropertyError,
         "model_cache"),
        ("a placement that is a number", {"placements": {"mine": 3}}, ArgumentError,
         "'mine' has to be a hetero_lab.Placement", "not int"),
        ("a store that is a file", {"store": lambda k: k.files("taken", "x")}, OutputPathError,
         "taken"),
    ],
    "evaluate": [
        ("no data", {"data": []}, ArgumentError, "no examples"),
        ("a number as data", {"data": 3}, ArgumentError, "not int", "hetero_lab"),
        ("no metric", {"metric": 3}, ArgumentError, "metric=", "not int"),
    ],
    "recover_accuracy": [
        ("one device", {"fast": "CPU"}, ArgumentError, "both CPU"),
        ("no device", {"accurate": "XPU"}, DeviceError, "'XPU'"),
        ("no share", {"max_drop": 3}, ArgumentError, "max_drop=", "3"),
        ("a list", {"data": [EXAMPLE]}, ArgumentError, "(list)", "dataset("),
        ("no costs", {"costs": 3}, ArgumentError, "(int)", "calibrate("),
        ("endless", {"budget_s": float("inf")}, ArgumentError, "budget_s=", "inf"),
    ],
    "calibrate": [
        ("no device", {"devices": []}, DeviceError, "names no device"),
        ("a property", {"device_properties": 3}, ArgumentError, "{'CPU': {"),
        ("properties of another device", {"device_properties": {"XPU": {}}}, DeviceError, "XPU"),
        ("unknown property", {"device_properties": {"CPU": {"SPEED": 1}}}, PropertyError,
         "'SPEED'"),
        ("a precision that a device lacks",
         {"device_properties": {"CPU": {"INFERENCE_PRECISION_HINT": LACKING}}}, PropertyError,
         LACKING, "INFERENCE_PRECISION_HINT"),
    ],
    "plan": [
        ("an unknown executor", {"executor": "warp"}, ArgumentError, "'warp'", "'parallel'"),
        ("a pin to another device", {"pin": {"left": "GPU"}}, PlanError, "GPU", "CPU"),
        ("no time", {"budget_s": 0}, ArgumentError, "budget_s", "above 0"),
        ("limits for parallel", {"executor": "parallel", "pin": {"left": "CPU"}}, ArgumentError,
         "pin="),
        ("costs of another model", {"model": lambda k: chain("r")}, PlanError, "another model",
         "calibrate"),
        ("an empty pool", {"memory_limit": {(): 5}}, PlanError, "pool without devices"),
        ("a pool with a stranger", {"memory_limit": {("CPU", "GPU"): 5}}, PlanError, "'GPU'",
         "not planned for"),
    ],
    "distribution": [
        ("a device twice", {"placement": ["CPU", "CPU"]}, DeviceError, "twice"),
        ("another policy", {"policy": "TENSOR_PARALLEL"}, PropertyError, "PIPELINE_PARALLEL"),
        ("no GPU", {"policy": "PIPELINE_PARALLEL"}, PropertyError, "only GPUs"),
        ("no size", {"memory": {"CPU": "much"}}, PlanError, "memory: 'much'"),
    ],
    "fit_blocks": [
        ("a device twice", {"devices": ["CPU", "CPU"]}, DeviceError, "twice"),
        ("no mapping", {"memory_limit": "1MiB"}, PlanError, "memory_limit="),
        ("no tokens", {"context_tokens": 0}, PlanError, "context_tokens="),
        ("no sequence", {"batch": 0}, PlanError, "batch="),
        ("no blocks", {"model": lambda k: k.model}, PlanError, "no repeated"),
    ],
    "llm.plan_static_phases": [
        ("no costs", {"decode": None}, ArgumentError, "decode="),
        ("no scenario", {"scenario": None}, ArgumentError, "scenario="),
        ("an unknown device in a limit", {"memory_limit": {"XPU": "1GiB"}}, PlanError, "XPU"),
    ],
    "quantize": [
        ("no example", {"calibration": []}, InputError, "no example"),
        ("a used-up iterator", {"calibration": lambda k: iter(())}, InputError,
         "no examples to calibrate with"),
        *((f"{type(given).__name__} as data", {"calibration": given}, ArgumentError,
           "Calibration data are a sequence of inputs", f"not {type(given).__name__}")
          for given in (5, "data", {"x": EXAMPLE}, None)),
        ("a whole data set", {"calibration": lambda k: hl.dataset("digits")}, ArgumentError,
         "pass its .calibration"),
        ("an example that is a number", {"calibration": [3]}, InputError, "example 0: "),
        ("an example of two inputs", {"calibration": [[EXAMPLE] * 2]}, InputError,
         "example 0: The model has 1 inputs"),
        ("an example of an unknown input", {"calibration": [{"y": EXAMPLE}]}, InputError,
         "example 0: The model has no input 'y'"),
        ("an example of a wrong shape", {"calibration": [EXAMPLE[0]]}, InputError,
         "example 0: Input 'x' has the shape [1, 8], the given array [8]"),
        ("a late example of a wrong type", {"calibration": [*[EXAMPLE] * 4, EXAMPLE.astype(float)]},
         InputError, "example 4: Input 'x' has the element type float32"),
        ("a late example with a hole", {"calibration": [EXAMPLE, EXAMPLE, EXAMPLE + np.nan]},
         InputError, "example 2: input 'x' holds NaN or infinity"),
        *((f"{ignored!r} to leave out", {"ignored": ignored}, ArgumentError, says)
          for ignored, says in {
              "Sigmoyd": "'Sigmoyd' in ignored= matches no op. Did you mean 'Sigmoid'",
              "(": "or a regular expression: ", ("",): "matches no op",
              (3,): "ignored= is text or a list of text",
              3: "not 3 (int). For instance ['Softmax'",
          }.items()),
        ("an unknown preset", {"preset": "best"}, ArgumentError,
         "preset= is 'mixed' or 'performance', not 'best'"),
        ("no preset", {"preset": None}, ArgumentError, "preset= is"),
        ("an unknown target", {"target_device": "TPU"}, ArgumentError,
         "target_device= is 'ANY' or 'CPU'"),
        ("no samples", {"subset_size": 0}, ArgumentError, "subset_size=", "0"),
        ("true samples", {"subset_size": True}, ArgumentError, "subset_size= is a whole number"),
    ],
    "classify": [
        ("a model without a picture", {"model": lambda k: k.model}, ModelError, "'x' 1x8",
         "1x3x224x224"),
        ("an absent device", {"placement": "XPU"}, DeviceError, "'XPU'", "ACC, CPU"),
        ("no such picture", {"image": lambda k: k.tmp / "cat.png"}, InputError, "cat.png",
         "does not exist"),
        ("a text as picture", {"image": lambda k: k.files("cat.png", "meow")}, InputError,
         "cat.png' is not a picture", "JPEG"),
        ("half a picture", {"image": lambda k: k.files("cat.ppm", "P2 2 2 255 0")}, InputError,
         "cat.ppm' cannot be decoded"),
        ("no class", {"top": 0}, ArgumentError, "top=", "not 0"),
        ("a text as mean", {"mean": "grey"}, ArgumentError, "mean=", "'grey'"),
        ("two means", {"mean": [1, 2]}, ArgumentError, "mean=", "1.0, 2.0"),
        ("a mean a channel", {"mean": [1, 2, 3]}, ArgumentError, "one channel"),
        ("scale 0", {"scale": 0}, ArgumentError, "scale=", "cannot be 0"),
    ],
    "interop.read_benchmark_app": [
        ("nothing there", {"file": lambda k: k.tmp / "nothing"}, StoredFileError,
         "nothing' does not exist"),
        ("a folder without a report", {"file": Path(__file__).parent}, StoredFileError,
         "holds no report", "-report_folder"),
        ("another file", {"file": lambda k: k.files("notes.csv", "a;b\n1;2\n")}, StoredFileError,
         "notes.csv", "benchmark_average_counters_report"),
        ("half a report", {"file": lambda k: k.files("half.csv", REPORT[:110])}, StoredFileError,
         "half.csv", "half written", "Run benchmark_app again"),
        ("no model", {"model": 5, "placement": "CPU"}, ModelError, "int"),
        ("where, but not what", {"placement": "CPU"}, ArgumentError, "name it too, model="),
        ("what, but not where", {"model": lambda k: k.model}, ArgumentError, "placement='CPU'"),
        ("an absent device", {"model": lambda k: k.model, "placement": "XPU"}, DeviceError, "'XPU'",
         "ACC, CPU"),
        ("another model", {"model": lambda k: chain("r"), "placement": "CPU"}, ArgumentError,
         "another model", "'left'"),
    ],
    "advise": [
        ("no data", {"metric": lambda k: max}, ArgumentError, "give data="),
        ("no examples", {"data": []}, ArgumentError, "data= has no examples"),
        ("several models", {"model": lambda k: {"det": k.model}}, ArgumentError,
         "hetero_lab.machine(", "hetero-lab machine"),
    ],
    "machine": [
        ("no models", {"demands": {}}, ArgumentError, "models by name", "hl.Demand"),
        ("a model alone", {"demands": lambda k: {"one": k.model}}, ArgumentError,
         "{'detect': hetero_lab.Demand(model)}"),
        ("a path as a name", _named("../x"), ArgumentError, "cannot name a model"),
        ("a device of Windows as a name", _named("Con"), ArgumentError, "cannot name a model"),
        ("names that Windows finds alike", _named("det", "Det"), ArgumentError, "differ in case"),
        ("an unknown objective", {"objective": "shares"}, ArgumentError, "Did you mean 'share'"),
        ("no deadlines", {"objective": "deadlines"}, ArgumentError, "deadline_ms=", "'one'"),
        ("two processes", {"processes": 2}, ArgumentError, "1, or None"),
        ("a limit as a riddle", {"devices": ["CPU"], "memory_limit": {"CPU": "lots"}}, PlanError,
         "'lots'", "'2GiB'"),
    ],
    "Demand": [
        ("a deadline of no clock", {"deadline_ms": 5}, ArgumentError, "needs rate_per_s="),
        ("no rate", {"rate_per_s": 0}, ArgumentError, "rate_per_s="),
        ("a rate that nothing produces", {"rate_per_s": 1e9}, ArgumentError, "can produce"),
        ("no request", {"requests": 0}, ArgumentError, "requests="),
        ("a way that is no list", {"ways": "GPU"}, ArgumentError, "list of placements"),
    ],
    "verify": [
        ("no contract", {}, StoredFileError, "contract.json"),
        ("an edited contract",
         {"directory": lambda k: k.files("contract.json", '{"kind": "contract"}').parent},
         StoredFileError, "schema version None"),
        ("no share", {"tolerance": -1}, ArgumentError, "tolerance="),
        ("no drop", {"max_drop": 2}, ArgumentError, "max_drop="),
        ("no labels", {"data": [{}]}, ArgumentError, "labels"),
        ("no version", {"releases": ["latest"]}, ArgumentError, "'latest'"),
    ],
}
# Whole calls.
CALLS: list[tuple[Any, ...]] = [
    ("Priorities.parse: a number", lambda k: Priorities.parse(5, k.core), DeviceError, "5",
     "['GPU', 'CPU']"),
    ("fix: an unknown op", lambda k: k.affinity.fix(ops={"lefft": "CPU"}, core=k.core),
     AffinityError, "'lefft'", "Did you mean 'left'"),
    ("fix: an unknown type", lambda k: k.affinity.fix(types={"sigmoid": "CPU"}, core=k.core),
     AffinityError, "'sigmoid'", "Did you mean 'Sigmoid'"),
    ("fix: a pattern that matches nothing",
     lambda k: k.affinity.fix(patterns={"^block": "CPU"}, core=k.core), AffinityError,
     "'^block' matches no op", "'left'"),
    ("fix: a broken pattern", lambda k: k.affinity.fix(patterns={"(": "CPU"}, core=k.core),
     AffinityError, "'(' is not a regular expression"),
    ("fix: an absent device", lambda k: k.affinity.fix(ops={"left": "XPU"}, core=k.core),
     DeviceError, "'XPU'", "ACC, CPU"),
    ("fix: ops that are no mapping", lambda k: k.affinity.fix(ops=["left"], core=k.core),
     ArgumentError, "ops=", "{"),
    ("fix: subgraphs that are none", lambda k: k.affinity.fix(subgraphs={0: "CPU"}, core=k.core),
     AffinityError, "hl.partition("),
    ("diff: another model", lambda k: k.affinity.diff(_other(k)), AffinityError, "another model",
     "'r'"),
    ("diff: no affinity", lambda k: k.affinity.diff("CPU"), ArgumentError, "(str)"),
    ("Placement: no affinity", lambda k: hl.Placement("CPU"), ArgumentError, "(str)",
     "Affinity.automatic("),
    ("Placement: direct on two devices", lambda k: hl.Placement(k.affinity, direct=True),
     ArgumentError, "direct=True", "one device"),
    ("Affinity.to_json: a directory that is not there",
     lambda k: k.affinity.to_json(k.tmp / "no" / "a.json"), OutputPathError, "no' does not exist"),
    ("Affinity.to_csv: a directory", lambda k: k.affinity.to_csv(k.tmp), OutputPathError,
     "is a directory; name a file"),
    ("Sweep.profile: an unknown label", lambda k: k.sweep.profile("slow"), ArgumentError, "'slow'",
     "'affinity'"),
    ("Sweep.export: an unknown format", lambda k: k.sweep.export(k.tmp / "out", format="xlsx"),
     ArgumentError, "'xlsx'", "parquet"),
    ("Sweep.to_csv: no directory", lambda k: k.sweep.to_csv(k.tmp / "no" / "s.csv"),
     OutputPathError, "does not exist"),
    ("Profile.to_csv: no directory", lambda k: k.profile.to_csv(k.tmp / "no" / "s.csv"),
     OutputPathError, "does not exist"),
    ("Profile.export: a file", lambda k: k.profile.export(k.files("taken", "x")), OutputPathError,
     "taken"),
    ("Profile.to_trace: a directory", lambda k: k.counted.to_trace(k.tmp), OutputPathError,
     "is a directory; name a file"),
    ("CostModel.predict_us: another model", lambda k: k.costs.predict_us(_other(k)), AffinityError,
     "another model"),
    ("placement_graph: no profile", lambda k: hl.views.placement_graph(3), ArgumentError, "int",
     "hetero_lab.profile("),
    ("hotspots: a placement beside a profile",
     lambda k: hl.hotspots(k.counted, placement=k.affinity), ArgumentError, "its own placement"),
    ("hotspots: no measurement", lambda k: hl.hotspots(3), ArgumentError, "hetero_lab.profile("),
    ("placement_graph: no model", lambda k: hl.views.placement_graph(k.affinity), ArgumentError,
     "placement_graph(placed, model)"),
    ("latency_samples: no profile", lambda k: hl.views.latency_samples([]), ArgumentError,
     "profile"),
    ("latency_ranking: no sweep", lambda k: hl.views.latency_ranking(k.profile), ArgumentError,
     "Profile", "hetero_lab.sweep("),
    ("timeline: a sweep", lambda k: hl.views.timeline(k.sweep), ArgumentError, "not Sweep",
     "hetero_lab.profile("),
    ("predicted_measured: a profile", lambda k: hl.views.predicted_measured(k.profile),
     ArgumentError, "not Profile", "hetero_lab.calibrate("),
    ("errors_along_model: no search", lambda k: hl.views.errors_along_model("wrong"), ArgumentError,
     "find_wrong(model"),
    ("placement_latency: an unknown axis", lambda k: hl.views.placement_latency(k.sweep, x="speed"),
     ArgumentError, "'speed'", "'subgraphs'"),
    ("page: nothing", lambda k: hl.views.page([], k.tmp / "p.html"), ArgumentError, "result"),
    ("page: no result", lambda k: hl.views.page([3], k.tmp / "p.html"), ArgumentError, "int"),
    ("page: a number", lambda k: hl.views.page(3, k.tmp / "p.html"), ArgumentError, "int"),
    ("page: no directory", lambda k: hl.views.page([k.profile], k.tmp / "no" / "p.html"),
     OutputPathError, "does not exist"),
    ("gallery: no result", lambda k: hl.views.gallery("x"), ArgumentError, "str"),
]
# fmt: on


def _bare(function: str) -> str:
    return function.removeprefix("llm.").removeprefix("interop.")


ROWS = [
    *_shared(),
    *(
        Row(f"{_bare(function)}: {what}", _call(function, wrong), kind, tuple(says))
        for functions, what, wrong, kind, *says in SHARED
        for function in functions.split(", ")
    ),
    *(
        Row(f"{_bare(function)}: {what}", _call(function, wrong), kind, tuple(says))
        for function, cases in CASES.items()
        for what, wrong, kind, *says in cases
    ),
    *(Row(what, call, kind, tuple(says)) for what, call, kind, *says in CALLS),
]
