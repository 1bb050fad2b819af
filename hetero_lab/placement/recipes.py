"""What to paste so that another runtime runs a placement that HETERO divides by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hetero_lab.errors import ArgumentError, unknown
from hetero_lab.placement.ratios import HETERO, PRIORITIES

_TEXTS = {
    "cpp": """// C++
auto compiled = core.compile_model(model, "{target}", {cpp});""",
    "python": """# Python
compiled = core.compile_model(model, "{target}", {python})""",
    "text": """# where properties are text, without quotes
{target}
{text}""",
    "benchmark_app": """# benchmark_app in C++ (that in Python knows no GPU.1): load.json
{{"HETERO": {texts}}}
benchmark_app -m model.xml -d {target} -load_config load.json""",
    "genai": """# openvino-genai, Python: only this attention backend passes the properties on
pipe = openvino_genai.LLMPipeline(directory, "{target}", ATTENTION_BACKEND="SDPA", **{python})""",
    "ovms": """// OpenVINO Model Server: config.json
{{"model_config_list": [{{"config": {{"name": "model", "base_path": "/models/model",
  "target_device": "{target}", "plugin_config": {json}}}}}]}}""",
}


DIVIDED = tuple(_TEXTS)


def hetero_call(
    devices: Sequence[str], by_device: Mapping[str, Mapping[str, Any]]
) -> tuple[str, dict[str, Any]]:
    """Return the device string and the properties with which HETERO runs on some devices."""
    of_devices = {device: dict(by_device[device]) for device in devices if device in by_device}
    own = {key: value for key, value in by_device.get(HETERO, {}).items() if key != PRIORITIES}
    return "HETERO:" + ",".join(devices), {**own, "DEVICE_PROPERTIES": of_devices}


def recipe(
    devices: Sequence[str], by_device: Mapping[str, Mapping[str, Any]], runtime: str | None
) -> str:
    """Return the text for a runtime, by default those for all; see ``Placement.recipe``."""
    if runtime is not None and runtime not in _TEXTS:
        raise ArgumentError(unknown("There is no recipe for", runtime, _TEXTS, "Runtimes"))
    target, properties = hetero_call(devices, by_device)
    texts = {key: _text(value) for key, value in properties.items()}
    words = {
        "target": target,
        "python": repr(properties),
        "json": json.dumps(properties),
        "cpp": _cpp(properties),
        "text": "\n".join(f"{key}={value}" for key, value in texts.items()),
        "texts": json.dumps(texts),
    }
    asked = [runtime] if runtime else list(_TEXTS)
    return "\n\n".join(_TEXTS[name].format(**words) for name in asked)


def _cpp(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = ", ".join(f'{{"{key}", {_cpp(inner)}}}' for key, inner in value.items())
        return f"ov::AnyMap{{{pairs}}}"
    return json.dumps(value)  # numbers, true and false, and quoted text are written alike


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{_text(inner)}' for key, inner in value.items())}}}"
    return ("NO", "YES")[value] if isinstance(value, bool) else str(value)
