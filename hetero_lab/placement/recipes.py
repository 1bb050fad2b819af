"""What to paste so that another runtime runs a placement.

A Python program can label single ops as the model's file says (:func:`hetero_lab.save`). All other
texts have a device's name and its properties alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hetero_lab.errors import ArgumentError, unknown
from hetero_lab.terminal import command_line

_DEVICES = "DEVICE_PROPERTIES"
_NAMED = {
    "cpp": """\
// C++
auto compiled = core.compile_model(model, "{target}", {cpp});""",
    "python": """\
# Python
compiled = core.compile_model(model, "{target}", {python})""",
    "text": """\
# Where properties are text. OpenVINO ignores names in quotes.
{target}
{text}""",
    "benchmark_app": """\
# load.json of {loading}
{load}""",
    "genai": """\
# openvino-genai. Other attention backends drop the properties.
import openvino_genai

pipe = openvino_genai.LLMPipeline(
    "exported", "{target}", ATTENTION_BACKEND="SDPA", **{python}
)""",
    "optimum": """\
# optimum-intel, with the class for your task
from optimum.intel import OVModelForCausalLM

model = OVModelForCausalLM.from_pretrained("exported", device="{target}", ov_config={python})""",
    "ovms": """\
// OpenVINO Model Server: config.json
{ovms}""",
    "onnxruntime": """\
# onnxruntime and onnxruntime-ep-openvino, which brings an OpenVINO of its own.
import json

import onnxruntime
import onnxruntime_ep_openvino as provider

onnxruntime.register_execution_provider_library("openvino", provider.get_library_path())
found = [each for each in onnxruntime.get_ep_devices() if each.ep_name == provider.get_ep_name()]
devices = {{each.ep_metadata["ov_device"]: each for each in found}}
assert "{target}" in devices, f"it has no {target} here, only {{[*devices]}}"
options = onnxruntime.SessionOptions()
options.add_provider_for_devices(
    [devices["{target}"]], {{"load_config": json.dumps({configured})}}
)
session = onnxruntime.InferenceSession("model.onnx", options)
assert session.get_providers()[0] == provider.get_ep_name()""",
}
_ONNXRUNTIME_HETERO = """\
# onnxruntime-openvino 1.24, the last one: the plugin that follows it has no HETERO. It brings an
# older OpenVINO of its own.
import json

import onnxruntime

options = {{
    "device_type": "{target}",
    "load_config": json.dumps({configured}),  # with a path, Python falls back to plain CPU
}}
session = onnxruntime.InferenceSession(
    "model.onnx", providers=["OpenVINOExecutionProvider"], provider_options=[options]
)
assert session.get_providers()[0] == "OpenVINOExecutionProvider\""""
_SAVED = 'placed.xml and place_ops.py of hetero_lab.save(model, placement, "placed.xml")'
_LABELLED = {
    "python": f"""\
# Python, beside {_SAVED}
import openvino as ov
from place_ops import place_ops

core = ov.Core()
model = core.read_model("placed.xml")
compiled = core.compile_model(model, *place_ops(model, core))""",
    "benchmark_app": f"""\
# bench.py, beside {_SAVED}
import openvino as ov
from openvino.tools.benchmark import benchmark, main
from place_ops import place_ops


class Placed(ov.Core):
    def compile_model(self, model, device, config):
        target, properties = place_ops(model, self)
        return super().compile_model(model, target, {{{{**config, **properties}}}})


benchmark.Core = Placed
main.pre_post_processing = lambda *_: None  # it adds conversions of images, which have no device
main.main()

# {{program}}""",
    "optimum": """\
# First hetero_lab.save(model, placement, "exported/openvino_model.xml") over the exported model;
# place_ops.py then lies beside it.
import openvino as ov
from optimum.intel import OVModelForCausalLM  # or the class for your task
from place_ops import place_ops

model = OVModelForCausalLM.from_pretrained(
    "exported", device="{target}", ov_config={python}, compile=False
)
place_ops(model.model, ov.Core())
model.compile()""",
}
RUNTIMES = tuple(_NAMED)


def recipe(
    target: str, properties: Mapping[str, Any], runtime: str | None = None, unlabelled: str = ""
) -> str:
    """Return the text for a runtime, by default those for all.

    ``target`` and ``properties`` are as ``core.compile_model`` takes them. ``unlabelled`` says how
    the placement differs if its ops are not labelled.
    """
    if runtime is None:
        return "\n\n".join(recipe(target, properties, each, unlabelled) for each in RUNTIMES)
    if runtime not in _NAMED:
        raise ArgumentError(unknown("There is no recipe for", runtime, RUNTIMES, "Runtimes"))
    by_label = bool(unlabelled) and runtime in _LABELLED
    words = _words(target, properties)
    text = (_LABELLED if by_label else _NAMED)[runtime]
    if runtime == "onnxruntime" and target.startswith("HETERO"):
        text = _ONNXRUNTIME_HETERO
    filled = text.format(target=target, **words)
    if unlabelled and not by_label:
        return f"{filled[:2].strip()} It takes no labels: {unlabelled}\n{filled}"
    return filled


def _words(target: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties in each way of writing them."""
    inner = {device: values for device, values in properties.get(_DEVICES, {}).items() if values}
    outer = {key: value for key, value in properties.items() if key != _DEVICES}
    nested, kind = {**outer, **({_DEVICES: inner} if inner else {})}, target.partition(":")[0]
    flat = outer | {f"{_DEVICES}_{device}": each for device, each in inner.items()}
    served = {"name": "model", "base_path": "/models/model", "target_device": target}
    config = {"config": {**served, "plugin_config": _texts(nested)}}
    loading = ["benchmark_app", "-m", "model.xml", "-d", target, "-load_config", "load.json"]
    return {
        "loading": command_line(*loading),
        "program": command_line("python", "bench.py", "-m", "placed.xml", "-d", target),
        "python": nested,
        "cpp": _cpp(nested),
        "text": "\n".join(f"{key}={value}" for key, value in _texts(nested).items()),
        "load": json.dumps({kind: _texts(flat)}, indent=2),
        "ovms": json.dumps({"model_config_list": [config]}, indent=2),
        "configured": {kind: nested},
    }


def _cpp(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = ", ".join(f'{{"{key}", {_cpp(inner)}}}' for key, inner in value.items())
        return f"ov::AnyMap{{{pairs}}}"
    return json.dumps(value)  # numbers, true and false, and quoted text are written alike


def _texts(properties: Mapping[str, Any]) -> dict[str, str]:
    """Write properties as OpenVINO reads them from text: ``{CPU:{NUM_STREAMS:1}}``."""
    return {key: _text(value) for key, value in properties.items()}


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{text}' for key, text in _texts(value).items())}}}"
    return ("NO", "YES")[value] if isinstance(value, bool) else str(value)
