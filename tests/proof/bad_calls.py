"""Calls with one wrong argument each, and what the error has to say. Data for the test beside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from small_models import chain, dynamic

import hetero_lab as hl
from hetero_lab.backend.core import shared_core
from hetero_lab.backend.devices import precisions
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
GOOD = np.zeros((1, 8), np.float32)
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


def row(name: str, call: Callable[[Any], Any], kind: type[HeteroLabError], *says: str) -> Row:
    return Row(name, call, kind, says)


def _asked(function: str, **good: Any) -> Callable[..., Callable[[Any], Any]]:
    """Return a maker of calls of a public function: good arguments, some of them replaced."""

    def wrong(**changed: Any) -> Callable[[Any], Any]:
        def call(k: Any) -> Any:
            every = {**{key: make(k) for key, make in good.items()}}
            for key, value in changed.items():
                every[key] = value(k) if callable(value) else value
            return attrgetter(function)(hl)(**every)

        return call

    return wrong


_BASIC = {"model": lambda k: k.model, "placement": lambda k: k.affinity, "core": lambda k: k.core}
_compile = _asked("compile", **_BASIC)
_partition = _asked("partition", **_BASIC)
_dumps = _asked("hetero_dumps", **_BASIC)
_executor = _asked(
    "ParallelExecutor",
    model=lambda k: k.model,
    placement=lambda k: k.affinity,
    core=lambda k: k.core,
)
_freeze = _asked("freeze", **_BASIC, directory=lambda k: k.tmp / "frozen")
_profile = _asked("profile", **_BASIC, progress=lambda k: False)
_find = _asked(
    "find_refused",
    model=lambda k: k.model,
    placement=lambda k: k.affinity,
    core=lambda k: k.core,
    progress=lambda k: False,
)
_wrong = _asked("find_wrong", **_BASIC, progress=lambda k: False)
_lint = _asked(
    "lint", model=lambda k: k.model, placement=lambda k: k.affinity, core=lambda k: k.core
)
_sweep = _asked(
    "sweep",
    model=lambda k: k.model,
    placements=lambda k: [k.affinity],
    core=lambda k: k.core,
    progress=lambda k: False,
)
_calibrate = _asked(
    "calibrate",
    model=lambda k: k.model,
    devices=lambda k: ["ACC", "CPU"],
    core=lambda k: k.core,
    progress=lambda k: False,
)
_blocks = _asked("blocks", model=lambda k: k.model)
_fit_blocks = _asked(
    "fit_blocks",
    model=lambda k: "digits_inception",  # it has blocks
    devices=lambda k: ["ACC", "CPU"],
    memory_limit=lambda k: {"ACC": "1MiB"},
    core=lambda k: k.core,
)
_noise = _asked("measure_noise", core=lambda k: k.core, progress=lambda k: False)
_evaluate = _asked(
    "evaluate",
    model=lambda k: k.model,
    placement=lambda k: k.affinity,
    data=lambda k: [GOOD],
    progress=lambda k: False,
    core=lambda k: k.core,
)
_recover = _asked(
    "recover_accuracy",
    model=lambda k: k.model,
    fast=lambda k: "ACC",
    accurate=lambda k: "CPU",
    data=lambda k: hl.dataset("digits"),
    progress=lambda k: False,
    core=lambda k: k.core,
)
_advise = _asked(
    "advise",
    model=lambda k: k.model,
    devices=lambda k: ["ACC", "CPU"],
    core=lambda k: k.core,
    progress=lambda k: False,
)
_optimize = _asked(
    "optimize",
    model=lambda k: k.model,
    devices=lambda k: ["ACC", "CPU"],
    core=lambda k: k.core,
    progress=lambda k: False,
)
_explain = _asked(
    "explain",
    model=lambda k: k.model,
    before=lambda k: "CPU",
    after=lambda k: k.affinity,
    core=lambda k: k.core,
)
_quantize = _asked(
    "quantize", model=lambda k: k.model, calibration=lambda k: [GOOD], progress=lambda k: False
)
_compress = _asked("compress_weights", model=lambda k: k.model, progress=lambda k: False)
_plan = _asked("plan", model=lambda k: k.model, costs=lambda k: k.costs)
_tokens = _asked("llm.tokenize", model=lambda k: k.model, text=lambda k: "Hello")
_text = _asked("llm.detokenize", model=lambda k: k.model, token_ids=lambda k: [[1, 2]])
_curve = _asked("llm.block_curve", costs=lambda k: k.costs)
_memory = _asked("llm.measure_memory", model=lambda k: k.model, costs=lambda k: k.costs)
_phases = _asked("llm.plan_phases", costs=lambda k: k.costs)
_static = _asked("llm.static_phases", model=lambda k: k.model, scenario=lambda k: hl.Scenario(8, 8))
_both = _asked(
    "llm.plan_static_phases", prefill=lambda k: k.costs, decode=lambda k: k.costs,
    scenario=lambda k: hl.Scenario(8, 8),
)  # fmt: skip
_emulate = _asked("emulate", name=lambda k: "ACC2", core=lambda k: k.core)
_classify = _asked(
    "classify",
    model=lambda k: "digits_inception",
    image=lambda k: k.files("digit.ppm", "P2 2 2 255 0 255 255 0\n"),
    placement=lambda k: "CPU",
    core=lambda k: k.core,
)
_read_report = _asked(
    "interop.read_benchmark_app",
    file=lambda k: k.files("benchmark_average_counters_report.csv", REPORT),
    core=lambda k: k.core,
)


def _other(k: Any) -> Any:
    return hl.Affinity.uniform(chain("r"), "CPU", core=k.core)


def _with(properties: Any) -> Callable[[Any], Any]:
    return lambda k: hl.Placement(k.affinity, device_properties=properties)


def _file(k: Any, name: str, text: str) -> Path:
    return k.files(name, text)


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
    "an absent priority": ("HETERO:ACC,NPU7", DeviceError, ["'NPU7'", "ACC, CPU"]),
    "bare HETERO": ("HETERO", DeviceError, ["names no device", "'HETERO:GPU,CPU'"]),
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
    "properties of an absent device": (_with({"GPU": F32}), DeviceError, ["'GPU'", "ACC, CPU"]),
    "properties that are no mapping": (_with(3), ArgumentError, ["{'CPU': {"]),
}
_BOTH = {
    "compile": _compile,
    "partition": _partition,
    "hetero_dumps": _dumps,
    "freeze": _freeze,
    "profile": _profile,
    "find_wrong": _wrong,
}
_SOME = ("an absent device", "another model's affinity", "a number")

SHARED = [
    row(f"{name}: {what} as model", wrong(model=value), kind, *says)
    for name, wrong in {
        **_BOTH,
        "sweep": _sweep,
        "calibrate": _calibrate,
        "optimize": _optimize,
        "plan": _plan,
        "lint": _lint,
        "find_refused": _find,
        "ParallelExecutor": _executor,
    }.items()
    for what, (value, kind, says) in _MODELS.items()
    if name in ("compile", "sweep") or what in ("a number", "a dynamic model")
] + [
    row(f"{name}: {what} as placement", wrong(**{argument: value}), kind, *says)
    for name, wrong, argument in [
        *((name, wrong, "placement") for name, wrong in _BOTH.items()),
        ("ParallelExecutor", _executor, "placement"),
        ("lint", _lint, "placement"),
        ("find_refused", _find, "placement"),
    ]
    for what, (value, kind, says) in _PLACEMENTS.items()
    if name == "compile" or what in _SOME
]

LOADING = [
    row("load: no source", lambda k: hl.load(None), ModelError, "not NoneType", "path"),
    row(
        "load: bytes",
        lambda k: hl.load(b"model.xml"),
        ModelError,
        "not bytes",
        "path",
    ),
    row(
        "load: a shape of no input",
        lambda k: hl.load(k.model, shapes={"y": [1, 8]}),
        ModelError,
        "no input 'y'",
        "Inputs: 'x ",
    ),
    row(
        "load: a negative shape",
        lambda k: hl.load(k.model, shapes={"x": [1, -8]}),
        ModelError,
        "'x'",
        "at least 1",
    ),
    row(
        "load: a shape of another rank",
        lambda k: hl.load(k.model, shapes={"x": [1, 8, 1]}),
        ModelError,
        "'x' has 2 dimensions",
        "has 3",
    ),
    row(
        "load: a shape that is text",
        lambda k: hl.load(k.model, shapes={"x": "1,8"}),
        ModelError,
        "'x'",
        "whole numbers",
    ),
    row(
        "load: shapes that are no mapping",
        lambda k: hl.load(k.model, shapes={1, 8}),
        ModelError,
        "shapes=",
        '{"x": [',
    ),
    row(
        "load: a shape that does not fit",
        lambda k: hl.load(chain("a", "b"), shapes={"x": [0, 4]}),
        ModelError,
        "'x'",
        "at least 1",
    ),
    row(
        "dataset: an unknown one",
        lambda k: hl.dataset("digit"),
        ArgumentError,
        "'digit'",
        "Did you mean 'digits'",
    ),
    row("dataset: a number", lambda k: hl.dataset(3), ArgumentError, "3", "digits"),
]

DEVICES = [
    row(
        "support: an absent device",
        lambda k: hl.support(k.model, ["XPU"], core=k.core),
        DeviceError,
        "'XPU'",
        "ACC, CPU",
    ),
    row(
        "support: no device",
        lambda k: hl.support(k.model, [], core=k.core),
        DeviceError,
        "names no device",
        "['GPU', 'CPU']",
    ),
    row(
        "support: no list",
        lambda k: hl.support(k.model, 5, core=k.core),
        DeviceError,
        "5",
        "for instance",
    ),
    row(
        "priority_orders: an absent device",
        lambda k: hl.priority_orders(["ACC", "XPU"], core=k.core),
        DeviceError,
        "'XPU'",
        "ACC, CPU",
    ),
    row(
        "priority_orders: no device",
        lambda k: hl.priority_orders([], core=k.core),
        ArgumentError,
        "no device",
    ),
    *(
        row(
            f"Affinity.by_block: {what}",
            lambda k, given=given: hl.Affinity.by_block("digits_inception", given, core=k.core),
            AffinityError,
            *says,
        )
        for what, given, says in (
            ("an overlap", {"0-1": "ACC", 1: "CPU"}, ("Block 1", "ACC", "CPU")),
            ("a block left out", {"1": "ACC"}, ("block 0", "0-1")),
            ("a block too many", {"0-2": "ACC"}, ("no blocks '0-2'", "0-1")),
            ("a range backwards", {"1-0": "ACC"}, ("no blocks '1-0'", "0-1")),
            ("no range", {"first": "ACC", "0-1": "CPU"}, ("'first'", "'before'")),
        )
    ),
    row(
        "Affinity.by_block: an absent device",
        lambda k: hl.Affinity.by_block("digits_inception", {"0-1": "XPU"}, core=k.core),
        DeviceError,
        "'XPU'",
    ),
    row(
        "Affinity.by_block: no repeated layers",
        lambda k: hl.Affinity.by_block(k.model, {"0": "CPU"}, core=k.core),
        AffinityError,
        "no repeated layers",
    ),
    row(
        "block_cuts: no cut there",
        lambda k: hl.block_cuts("digits_inception", ["ACC", "CPU"], after=[1], core=k.core),
        AffinityError,
        "after block 1",
        "2 blocks",
    ),
    row(
        "block_cuts: no repeated layers",
        lambda k: hl.block_cuts(k.model, ["ACC", "CPU"], core=k.core),
        AffinityError,
        "no repeated layers",
    ),
    row(
        "block_cuts: one device",
        lambda k: hl.block_cuts("digits_inception", ["CPU"], core=k.core),
        DeviceError,
        "two devices",
    ),
    row(
        "priority_orders: a number",
        lambda k: hl.priority_orders(5, core=k.core),
        ArgumentError,
        "5",
        "['GPU', 'CPU']",
    ),
    row(
        "Priorities.parse: a number",
        lambda k: Priorities.parse(5, k.core),
        DeviceError,
        "5",
        "['GPU', 'CPU']",
    ),
    row("emulate: a name in use", _emulate(name="GPU"), DeviceError, "'GPU'", "name"),
    row("emulate: a dot in the name", _emulate(name="A.B"), DeviceError, "'A.B'", "letters"),
    row("emulate: no name", _emulate(name=""), DeviceError, "''", "letters"),
    row("emulate: a number as name", _emulate(name=7), DeviceError, "7", "letters"),
    row("emulate: an absent base", _emulate(base="XPU"), DeviceError, "'XPU'"),
    row(
        "emulate: supported and unsupported",
        _emulate(supported=["Add"], unsupported=["Add"]),
        ArgumentError,
        "supported",
        "unsupported",
    ),
    row(
        "emulate: one op type as text",
        _emulate(unsupported="Softmax"),
        ArgumentError,
        "unsupported=",
        "{'Softmax'}",
    ),
    row(
        "emulate: a precision that the base lacks",
        _emulate(properties={"INFERENCE_PRECISION_HINT": LACKING}),
        PropertyError,
        LACKING,
        "INFERENCE_PRECISION_HINT",
    ),
    row(
        "emulate: an unknown property",
        _emulate(properties={"SPEED": 9}),
        PropertyError,
        "'SPEED'",
        "NUM_STREAMS",
    ),
    row(
        "emulate: an unknown way to be faster",
        _emulate(faster_by="magic"),
        ArgumentError,
        "'magic'",
        "precision",
        "threads",
    ),
]

AFFINITIES = [
    row(
        "Affinity.automatic: an op that nobody can run",
        lambda k: hl.Affinity.automatic(k.model, "HETERO:ACC", core=k.core),
        DeviceError,
        "'left (Sigmoid)'",
        "hetero_lab.support(",
    ),
    row(
        "Affinity.uniform: an absent device",
        lambda k: hl.Affinity.uniform(k.model, "XPU", core=k.core),
        DeviceError,
        "'XPU'",
        "ACC, CPU",
    ),
    row(
        "Affinity.uniform: a number",
        lambda k: hl.Affinity.uniform(k.model, 3, core=k.core),
        DeviceError,
        "'3' is not a device",
        "ACC, CPU",
    ),
    row(
        "fix: an unknown op",
        lambda k: k.affinity.fix(ops={"lefft": "CPU"}, core=k.core),
        AffinityError,
        "'lefft'",
        "Did you mean 'left'",
    ),
    row(
        "fix: an unknown type",
        lambda k: k.affinity.fix(types={"sigmoid": "CPU"}, core=k.core),
        AffinityError,
        "'sigmoid'",
        "Did you mean 'Sigmoid'",
    ),
    row(
        "fix: a pattern that matches nothing",
        lambda k: k.affinity.fix(patterns={"^block": "CPU"}, core=k.core),
        AffinityError,
        "'^block' matches no op",
        "'left'",
    ),
    row(
        "fix: a broken pattern",
        lambda k: k.affinity.fix(patterns={"(": "CPU"}, core=k.core),
        AffinityError,
        "'(' is not a regular expression",
    ),
    row(
        "fix: an absent device",
        lambda k: k.affinity.fix(ops={"left": "XPU"}, core=k.core),
        DeviceError,
        "'XPU'",
        "ACC, CPU",
    ),
    row(
        "fix: ops that are no mapping",
        lambda k: k.affinity.fix(ops=["left"], core=k.core),
        AffinityError,
        "ops=",
        "{",
    ),
    row(
        "fix: subgraphs that are none",
        lambda k: k.affinity.fix(subgraphs={0: "CPU"}, core=k.core),
        AffinityError,
        "hl.partition(",
    ),
    row(
        "diff: another model",
        lambda k: k.affinity.diff(_other(k)),
        AffinityError,
        "another model",
        "'r'",
    ),
    row("diff: no affinity", lambda k: k.affinity.diff("CPU"), AffinityError, "not str"),
    row(
        "Placement: no affinity",
        lambda k: hl.Placement("CPU"),
        ArgumentError,
        "not str",
        "Affinity.automatic(",
    ),
    row(
        "Placement: direct on two devices",
        lambda k: hl.Placement(k.affinity, direct=True),
        ArgumentError,
        "direct=True",
        "one device",
    ),
    row(
        "Affinity.from_json: a missing file",
        lambda k: hl.Affinity.from_json(k.tmp / "no.json"),
        StoredFileError,
        "no.json",
    ),
    row(
        "Affinity.from_json: another kind",
        lambda k: hl.Affinity.from_json(_file(k, "k.json", '{"kind": "sweep"}')),
        StoredFileError,
        "k.json",
        "not a stored affinity",
    ),
    row(
        "Affinity.from_json: a list",
        lambda k: hl.Affinity.from_json(_file(k, "l.json", "[1]")),
        StoredFileError,
        "l.json",
        "not a stored affinity",
    ),
    row(
        "Affinity.from_csv: other columns",
        lambda k: hl.Affinity.from_csv(_file(k, "c.csv", "a,b\n1,2\n")),
        StoredFileError,
        "c.csv",
        "'device'",
    ),
    row(
        "Affinity.to_json: a directory that is not there",
        lambda k: k.affinity.to_json(k.tmp / "no" / "a.json"),
        OutputPathError,
        "no' does not exist",
    ),
    row(
        "Affinity.to_csv: a directory",
        lambda k: k.affinity.to_csv(k.tmp),
        OutputPathError,
        "is a directory; name a file",
    ),
]

RUNNING = [
    row("measure_noise: an absent device", _noise(device="XPU"), DeviceError, "'XPU'"),
    row("measure_noise: no time", _noise(budget_s=0), ArgumentError, "more than 0 seconds"),
    row(
        "compile: a property of the call that nobody knows",
        _compile(compile_properties={"SPEED": 1}),
        PropertyError,
        "'SPEED'",
        "NUM_STREAMS",
    ),
    row("call: an unknown input", lambda k: k.compiled({"z": GOOD}), InputError, "'z'", "'x'"),
    row("call: a missing input", lambda k: k.compiled({}), InputError, "'x'"),
    row(
        "call: a wrong shape",
        lambda k: k.compiled([GOOD[0]]),
        InputError,
        "'x'",
        "[1, 8]",
    ),
    row(
        "call: a wrong element type",
        lambda k: k.compiled([GOOD.astype(float)]),
        InputError,
        "'x'",
        "astype('float32')",
    ),
    row("call: too many inputs", lambda k: k.compiled([GOOD, GOOD]), InputError, "2", "'x'"),
    row("call: a number", lambda k: k.compiled(5), InputError, "int"),
    row("call: a missing file", lambda k: k.compiled("no.npz"), InputError, "no.npz"),
    row("profile: no iterations", _profile(iterations=0), ArgumentError, "iterations=", "0"),
    row("profile: iterations as text", _profile(iterations="many"), ArgumentError, "iterations="),
    row("profile: a negative warm-up", _profile(warmup=-1), ArgumentError, "warmup=", "-1"),
    row("profile: no budget", _profile(budget_s=0), ArgumentError, "time budget", "not 0"),
    row(
        "profile: a budget as text",
        _profile(budget_s="1 min"),
        ArgumentError,
        "time budget",
        "'1 min'",
    ),
    row("profile: no request", _profile(requests=0), ArgumentError, "requests=", "0"),
    row(
        "profile: an unknown executor",
        _profile(executor="warp"),
        ArgumentError,
        "'warp'",
        "hetero, parallel",
    ),
    row("profile: a wrong input", _profile(inputs={"z": GOOD}), InputError, "'z'", "'x'"),
    row("profile: a seed as text", _profile(seed="s"), ArgumentError, "seed=", "'s'"),
    row(
        "freeze: a place that is a file",
        _freeze(directory=lambda k: _file(k, "taken", "x")),
        OutputPathError,
        "taken",
    ),
    row(
        "export_model_explorer: a sweep",
        lambda k: hl.interop.export_model_explorer(k.sweep, "explorer"),
        ArgumentError,
        "profile=",
        "not Sweep",
    ),
    row(
        "hetero_dumps: no time",
        _dumps(timeout_s=0),
        ArgumentError,
        "timeout_s=",
        "above 0",
    ),
    row("find_wrong: no tolerance", _wrong(tolerance=0), ArgumentError, "tolerance=", "above 0"),
    row("find_wrong: no time", _wrong(budget_s=0), ArgumentError, "0"),
    row("find_wrong: inputs of another shape", _wrong(inputs=[GOOD[:, :3]]), InputError, "shape"),
    row("find_refused: an absent fallback", _find(fallback="XPU"), DeviceError, "'XPU'"),
]

SWEEPS = [
    row("sweep: no placement", _sweep(placements=[]), ArgumentError, "no placement"),
    row("sweep: a number", _sweep(placements=3), ArgumentError, "is a list"),
    row("sweep: an absent device", _sweep(placements=["HETERO:FOO"]), DeviceError, "'FOO'"),
    row(
        "sweep: another model's affinity",
        _sweep(placements=lambda k: [_other(k)]),
        AffinityError,
        "'r'",
    ),
    row(
        "sweep: no model", _sweep(model=lambda k: {}), ArgumentError, "mapping of variants is empty"
    ),
    row(
        "sweep: an unknown dimension",
        _sweep(grid={"speed": [1]}),
        ArgumentError,
        "'speed'",
        "CPU.",
    ),
    row(
        "sweep: a dimension without values",
        _sweep(grid={"CPU.NUM_STREAMS": []}),
        ArgumentError,
        "CPU.NUM_STREAMS",
        "list of values",
    ),
    row("sweep: an unknown property", _sweep(grid={"CPU.SPEED": [1]}), PropertyError, "'SPEED'"),
    row(
        "sweep: a precision that a device lacks",
        _sweep(grid={"*.INFERENCE_PRECISION_HINT": ["f32", LACKING]}),
        PropertyError,
        LACKING,
        "INFERENCE_PRECISION_HINT",
    ),
    row(
        "sweep: no request", _sweep(grid={"requests": [0]}), ArgumentError, "requests", "at least 1"
    ),
    row(
        "sweep: a label that is a number",
        _sweep(placements=lambda k: {3: k.affinity}),
        ArgumentError,
        "maps labels to placements",
        "'3' is not a label",
    ),
    row(
        "sweep: a group of one",
        _sweep(workers=lambda k: hl.Workers(group=1)),
        ArgumentError,
        "group=",
        "from 2",
    ),
    row("sweep: one turn", _sweep(turns=1), ArgumentError, "turns=", "at least 2"),
    row("sweep: turns as text", _sweep(turns="few"), ArgumentError, "turns=", "'few'"),
    row("sweep: no precision", _sweep(precision=0), ArgumentError, "precision=", "above 0"),
    row(
        "sweep: a negative budget",
        _sweep(budget_s=-1),
        ArgumentError,
        "time budget",
        "more than 0",
        "-1",
    ),
    row(
        "sweep: no time",
        _sweep(workers=lambda k: hl.Workers(timeout_s=0)),
        ArgumentError,
        "timeout_s=",
        "above 0",
    ),
    row(
        "sweep: a negative memory limit",
        _sweep(workers=lambda k: hl.Workers(memory_limit=-1)),
        ArgumentError,
        "memory_limit:",
        "-1",
    ),
    row(
        "sweep: an unknown executor",
        _sweep(grid={"executor": ["warp"]}),
        ArgumentError,
        "'warp'",
        "hetero, parallel",
    ),
    row(
        "sweep: a store that is a file",
        _sweep(store=lambda k: _file(k, "taken", "x")),
        OutputPathError,
        "taken",
    ),
    row("sweep: a wrong input", _sweep(inputs={"z": GOOD}), InputError, "'z'", "'x'"),
    row(
        "read_sweep: nothing there",
        lambda k: hl.read_sweep(k.tmp / "nothing"),
        StoredFileError,
        "nothing",
    ),
    row(
        "read_profile: nothing there",
        lambda k: hl.read_profile(k.tmp / "nothing"),
        StoredFileError,
        "nothing",
    ),
    row(
        "read_wrong: nothing there",
        lambda k: hl.read_wrong(k.tmp / "nothing"),
        StoredFileError,
        "nothing",
    ),
    row("compare: no sweep", lambda k: hl.compare(k.sweep, 3), ArgumentError, "int", "sweep"),
    row(
        "Sweep.profile: an unknown label",
        lambda k: k.sweep.profile("slow"),
        ArgumentError,
        "'slow'",
        "'affinity'",
    ),
    row(
        "Sweep.export: an unknown format",
        lambda k: k.sweep.export(k.tmp / "out", format="xlsx"),
        ArgumentError,
        "'xlsx'",
        "parquet",
    ),
    row(
        "Sweep.to_csv: no directory",
        lambda k: k.sweep.to_csv(k.tmp / "no" / "s.csv"),
        OutputPathError,
        "does not exist",
    ),
    row(
        "Profile.to_csv: no directory",
        lambda k: k.profile.to_csv(k.tmp / "no" / "s.csv"),
        OutputPathError,
        "does not exist",
    ),
    row(
        "Profile.export: a file",
        lambda k: k.profile.export(_file(k, "taken", "x")),
        OutputPathError,
        "taken",
    ),
    row(
        "Profile.to_trace: a directory",
        lambda k: k.counted.to_trace(k.tmp),
        OutputPathError,
        "is a directory; name a file",
    ),
]

ACCURACY = [
    row("evaluate: no data", _evaluate(data=[]), ArgumentError, "no examples"),
    row("evaluate: a number as data", _evaluate(data=3), ArgumentError, "not int", "hetero_lab"),
    row("evaluate: no metric", _evaluate(metric=3), ArgumentError, "metric=", "not int"),
    row("recover_accuracy: one device", _recover(fast="CPU"), ArgumentError, "both CPU"),
    row("recover_accuracy: no share", _recover(max_drop=3), ArgumentError, "max_drop=", "3"),
    row("recover_accuracy: a list", _recover(data=[GOOD]), ArgumentError, "not list", "dataset("),
]

PLANNING = [
    row("calibrate: one device", _calibrate(devices=["CPU"]), ArgumentError, "two devices"),
    row("calibrate: an absent device", _calibrate(devices=["CPU", "XPU"]), DeviceError, "'XPU'"),
    row("calibrate: no budget", _calibrate(budget_s=0), ArgumentError, "time budget", "not 0"),
    row(
        "calibrate: unknown property",
        _calibrate(device_properties={"CPU": {"SPEED": 1}}),
        PropertyError,
        "'SPEED'",
    ),
    row(
        "calibrate: a precision that a device lacks",
        _calibrate(device_properties={"CPU": {"INFERENCE_PRECISION_HINT": LACKING}}),
        PropertyError,
        LACKING,
        "INFERENCE_PRECISION_HINT",
    ),
    row("calibrate: a wrong input", _calibrate(inputs={"z": GOOD}), InputError, "'z'", "'x'"),
    row("optimize: one device", _optimize(devices=["CPU"]), ArgumentError, "two devices"),
    row(
        "optimize: an unknown objective",
        _optimize(objective="fun"),
        ArgumentError,
        "'fun'",
        "latency",
    ),
    row("optimize: no costs", _optimize(costs="fast"), ArgumentError, "not str", "calibrate("),
    row("recover_accuracy: no costs", _recover(costs=3), ArgumentError, "not int", "calibrate("),
    row(
        "recover_accuracy: endless",
        _recover(budget_s=float("inf")),
        ArgumentError,
        "budget_s=",
        "inf",
    ),
    row("optimize: no budget", _optimize(budget_s=0), ArgumentError, "time budget", "not 0"),
    row(
        "optimize: a pin that matches nothing",
        _optimize(pin={"^block": "CPU"}),
        PlanError,
        "'^block'",
        "matches no op",
    ),
    row(
        "guess_costs: no costs",
        lambda k: hl.guess_costs(k.model, []),
        ArgumentError,
        "known=",
        "at least one",
    ),
    row(
        "guess_costs: paths",
        lambda k: hl.guess_costs(k.model, ["costs.json"]),
        ArgumentError,
        "known=",
    ),
    row("plan: no costs", _plan(costs="fast"), ArgumentError, "not str", "hetero_lab.calibrate("),
    row("plan: an unknown objective", _plan(objective="fun"), ArgumentError, "'fun'", "latency"),
    row("plan: an unknown executor", _plan(executor="warp"), ArgumentError, "'warp'", "'parallel'"),
    row(
        "plan: a pin that matches nothing",
        _plan(pin={"^block": "CPU"}),
        PlanError,
        "'^block'",
        "matches no op",
    ),
    row("plan: a pin to another device", _plan(pin={"left": "GPU"}), PlanError, "GPU", "CPU"),
    row(
        "plan: a limit for another device",
        _plan(memory_limit={"GPU": 5}),
        PlanError,
        "'GPU'",
        "Devices: ACC, CPU",
    ),
    row(
        "optimize: a limit for another device",
        _optimize(memory_limit={"GPU": 5}),
        PlanError,
        "'GPU'",
        "Devices: ACC, CPU",
    ),
    row(
        "optimize: a limit as a riddle",
        _optimize(memory_limit={"CPU": "lots"}),
        PlanError,
        "'2GiB'",
    ),
    row("optimize: pins that are no mapping", _optimize(pin=["left"]), PlanError, "pin= maps"),
    row("plan: a limit as a riddle", _plan(memory_limit={"CPU": "lots"}), PlanError, "'lots'"),
    row("plan: no time", _plan(budget_s=0), ArgumentError, "budget_s", "above 0"),
    row(
        "plan: limits for parallel",
        _plan(executor="parallel", pin={"left": "CPU"}),
        ArgumentError,
        "pin=",
    ),
    row(
        "plan: costs of another model",
        _plan(model=lambda k: chain("r")),
        PlanError,
        "another model",
        "calibrate",
    ),
    row(
        "CostModel.predict_us: another model",
        lambda k: k.costs.predict_us(_other(k)),
        AffinityError,
        "another model",
    ),
    row(
        "CostModel.from_json: a missing file",
        lambda k: hl.CostModel.from_json(k.tmp / "no.json"),
        StoredFileError,
        "no.json",
    ),
    row("blocks: no model", _blocks(model=3), ModelError, "not int"),
    row("fit_blocks: an absent device", _fit_blocks(devices=["ACC", "XPU"]), DeviceError, "'XPU'"),
    row("fit_blocks: a device twice", _fit_blocks(devices=["CPU", "CPU"]), DeviceError, "twice"),
    row("fit_blocks: no mapping", _fit_blocks(memory_limit="1MiB"), PlanError, "memory_limit="),
    row("fit_blocks: no tokens", _fit_blocks(context_tokens=0), PlanError, "context_tokens="),
    row("fit_blocks: no sequence", _fit_blocks(batch=0), PlanError, "batch="),
    row("fit_blocks: no blocks", _fit_blocks(model=lambda k: k.model), PlanError, "no repeated"),
    row("tokenize: no text", _tokens(text=""), InputError, "not empty"),
    row("tokenize: no language model", _tokens(), ModelError, "no states"),
    row("detokenize: a flat list", _text(token_ids=[1, 2]), ArgumentError, "token_ids="),
    row("detokenize: no language model", _text(), ModelError, "no states"),
    row("block_curve: one inference", _curve(), PlanError, "further token", "scenario="),
    row("block_curve: costs that are none", _curve(costs="fast"), ArgumentError, "costs=", "str"),
    row("measure_memory: one inference", _memory(), PlanError, "generation", "scenario="),
    row("measure_memory: no costs", _memory(costs=7), ArgumentError, "costs=", "int"),
    row("plan_phases: one inference", _phases(), PlanError, "further token", "scenario="),
    row("plan_phases: no costs", _phases(costs=None), ArgumentError, "costs="),
    row("static_phases: no language model", _static(), ModelError, "no states"),
    row("static_phases: no scenario", _static(scenario=8), ArgumentError, "scenario="),
    row("plan_static_phases: no costs", _both(decode=None), ArgumentError, "decode="),
    row("plan_static_phases: no scenario", _both(scenario=None), ArgumentError, "scenario="),
    row(
        "plan_static_phases: an unknown device in a limit",
        _both(memory_limit={"XPU": "1GiB"}),
        PlanError,
        "XPU",
    ),
    row("plan: an empty pool", _plan(memory_limit={(): 5}), PlanError, "pool without devices"),
    row(
        "plan: a pool with a stranger",
        _plan(memory_limit={("CPU", "GPU"): 5}),
        PlanError,
        "'GPU'",
        "not planned for",
    ),
    row("lint: costs that are none", _lint(costs="fast"), ArgumentError, "costs=", "str"),
]

EXPLAINING = [
    row("explain: no model", _explain(model=5), ModelError, "not int"),
    row("explain: an absent device", _explain(after="XPU"), DeviceError, "'XPU'", "ACC, CPU"),
    row("explain: another model's affinity", _explain(before=_other), AffinityError, "'r'"),
    row("explain: no costs", _explain(costs="fast"), ArgumentError, "not str", "calibrate("),
]

QUANTISING = [
    row("quantize: no model", _quantize(model=5), ModelError, "not int"),
    row("quantize: no example", _quantize(calibration=[]), InputError, "no example"),
    row("quantize: a number", _quantize(calibration=5), ArgumentError, "not int"),
    row(
        "quantize: an example of a wrong shape",
        _quantize(calibration=[GOOD[0]]),
        InputError,
        "example 0",
        "[1, 8]",
    ),
    row(
        "quantize: an example with a hole",
        _quantize(calibration=[GOOD + np.nan]),
        InputError,
        "example 0",
        "'x' holds NaN",
    ),
    row(
        "quantize: an op to leave out that is not there",
        _quantize(ignored=["Softmaxx"]),
        ArgumentError,
        "'Softmaxx'",
        "matches no op",
    ),
    row("quantize: an unknown preset", _quantize(preset="best"), ArgumentError, "'best'", "mixed"),
    row("quantize: no samples", _quantize(subset_size=0), ArgumentError, "subset_size=", "0"),
    row("compress_weights: no model", _compress(model=5), ModelError, "not int"),
    row(
        "compress_weights: an unknown mode",
        _compress(mode="int3"),
        ArgumentError,
        "'int3'",
        "int8_sym",
    ),
    row(
        "compress_weights: an op to leave out that is not there",
        _compress(ignored="Softmaxx"),
        ArgumentError,
        "'Softmaxx'",
        "matches no op",
    ),
]

CLASSIFYING = [
    row("classify: a number as model", _classify(model=5), ModelError, "not int"),
    row(
        "classify: a model without a picture",
        _classify(model=lambda k: k.model),
        ModelError,
        "'x' 1x8",
        "1x3x224x224",
    ),
    row("classify: an absent device", _classify(placement="XPU"), DeviceError, "'XPU'", "ACC, CPU"),
    row(
        "classify: no such picture",
        _classify(image=lambda k: k.tmp / "cat.png"),
        InputError,
        "cat.png",
        "does not exist",
    ),
    row(
        "classify: a text as picture",
        _classify(image=lambda k: _file(k, "cat.png", "meow")),
        InputError,
        "cat.png' is not a picture",
        "JPEG",
    ),
    row(
        "classify: half a picture",
        _classify(image=lambda k: _file(k, "cat.ppm", "P2 2 2 255 0")),
        InputError,
        "cat.ppm' cannot be decoded",
    ),
    row("classify: no class", _classify(top=0), ArgumentError, "top=", "not 0"),
    row("classify: a text as mean", _classify(mean="grey"), ArgumentError, "mean=", "'grey'"),
    row("classify: two means", _classify(mean=[1, 2]), ArgumentError, "mean=", "1.0, 2.0"),
    row("classify: a mean a channel", _classify(mean=[1, 2, 3]), ArgumentError, "one channel"),
    row("classify: scale 0", _classify(scale=0), ArgumentError, "scale=", "cannot be 0"),
]

REPORTS = [
    row(
        "read_benchmark_app: nothing there",
        _read_report(file=lambda k: k.tmp / "nothing"),
        StoredFileError,
        "nothing' does not exist",
    ),
    row(
        "read_benchmark_app: a folder without a report",
        _read_report(file=Path(__file__).parent),
        StoredFileError,
        "holds no report",
        "-report_folder",
    ),
    row(
        "read_benchmark_app: another file",
        _read_report(file=lambda k: _file(k, "notes.csv", "a;b\n1;2\n")),
        StoredFileError,
        "notes.csv",
        "benchmark_average_counters_report",
    ),
    row(
        "read_benchmark_app: half a report",
        _read_report(file=lambda k: _file(k, "half.csv", REPORT[:110])),
        StoredFileError,
        "half.csv",
        "half written",
        "Run benchmark_app again",
    ),
    row(
        "read_benchmark_app: rows that are missing",
        _read_report(
            file=lambda k: _file(k, "less.csv", REPORT.replace("Total;;;;0.0", "Total;;;;0.9"))
        ),
        StoredFileError,
        "less.csv",
        "do not add up",
    ),
    row("read_benchmark_app: no model", _read_report(model=5, placement="CPU"), ModelError, "int"),
    row(
        "read_benchmark_app: where, but not what",
        _read_report(placement="CPU"),
        ArgumentError,
        "name it too, model=",
    ),
    row(
        "read_benchmark_app: what, but not where",
        _read_report(model=lambda k: k.model),
        ArgumentError,
        "placement='CPU'",
    ),
    row(
        "read_benchmark_app: an absent device",
        _read_report(model=lambda k: k.model, placement="XPU"),
        DeviceError,
        "'XPU'",
        "ACC, CPU",
    ),
    row(
        "read_benchmark_app: another model",
        _read_report(model=lambda k: chain("r"), placement="CPU"),
        ArgumentError,
        "another model",
        "'left'",
    ),
]

VIEWS = [
    row(
        "placement_graph: no profile",
        lambda k: hl.views.placement_graph(3),
        ArgumentError,
        "int",
        "hetero_lab.profile(",
    ),
    row(
        "latency_samples: no profile",
        lambda k: hl.views.latency_samples([]),
        ArgumentError,
        "profile",
    ),
    row(
        "latency_ranking: no sweep",
        lambda k: hl.views.latency_ranking(k.profile),
        ArgumentError,
        "Profile",
        "hetero_lab.sweep(",
    ),
    row(
        "timeline: a sweep",
        lambda k: hl.views.timeline(k.sweep),
        ArgumentError,
        "not Sweep",
        "hetero_lab.profile(",
    ),
    row(
        "predicted_measured: a profile",
        lambda k: hl.views.predicted_measured(k.profile),
        ArgumentError,
        "not Profile",
        "hetero_lab.calibrate(",
    ),
    row(
        "placement_latency: an unknown axis",
        lambda k: hl.views.placement_latency(k.sweep, x="speed"),
        ArgumentError,
        "'speed'",
        "'subgraphs'",
    ),
    row("page: nothing", lambda k: hl.views.page([], k.tmp / "p.html"), ArgumentError, "result"),
    row(
        "page: no result",
        lambda k: hl.views.page([3], k.tmp / "p.html"),
        ArgumentError,
        "int",
    ),
    row("page: a number", lambda k: hl.views.page(3, k.tmp / "p.html"), ArgumentError, "int"),
    row(
        "page: no directory",
        lambda k: hl.views.page([k.profile], k.tmp / "no" / "p.html"),
        OutputPathError,
        "does not exist",
    ),
    row("gallery: no result", lambda k: hl.views.gallery("x"), ArgumentError, "str"),
]

DEPLOYING = [
    row("advise: an absent device", _advise(devices=["XPU"]), DeviceError, "'XPU'", "ACC, CPU"),
    row("advise: an objective", _advise(objective="power"), ArgumentError, "'power'", "latency"),
    row("advise: no data", _advise(metric=lambda k: max), ArgumentError, "give data="),
    row("advise: no budget", _advise(budget_s=0), ArgumentError, "more than 0 seconds"),
    row("advise: bytes", _advise(memory_limit={"CPU": "lots"}), PlanError, "'lots'"),
    row("verify: no contract", lambda k: hl.verify(k.tmp), StoredFileError, "contract.json"),
    row(
        "verify: an edited contract",
        lambda k: hl.verify(k.files("contract.json", '{"kind": "contract"}').parent),
        StoredFileError,
        "schema version None",
    ),
    row("verify: no share", lambda k: hl.verify(k.tmp, slower=-1), ArgumentError, "slower="),
    row("verify: no drop", lambda k: hl.verify(k.tmp, max_drop=2), ArgumentError, "max_drop="),
    row("verify: no labels", lambda k: hl.verify(k.tmp, data=[{}]), ArgumentError, "labels"),
    row(
        "verify: no version",
        lambda k: hl.verify(k.tmp, releases=["latest"]),
        ArgumentError,
        "'latest'",
    ),
    row("freeze: no example", _freeze(examples=[]), ArgumentError, "examples="),
]

ROWS = [
    *SHARED,
    *LOADING,
    *DEVICES,
    *AFFINITIES,
    *RUNNING,
    *SWEEPS,
    *PLANNING,
    *EXPLAINING,
    *QUANTISING,
    *ACCURACY,
    *CLASSIFYING,
    *REPORTS,
    *VIEWS,
    *DEPLOYING,
]
