"""What to paste so that another runtime runs a placement.

Labels on single ops need the model's file (:func:`hetero_lab.save`) and a program that reads them.
Runtimes that take a device's name and properties alone get those that come nearest.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hetero_lab.backend.bound import bind
from hetero_lab.errors import ArgumentError, DeviceError, unknown
from hetero_lab.model.read import Source
from hetero_lab.placement.affinity import greedy
from hetero_lab.placement.placement import BoundPlacement, PlacementLike, resolve
from hetero_lab.placement.recipes import DIVIDED

if TYPE_CHECKING:
    import openvino as ov

_MOST_ORDERS = 24
_OPTIMUM = """\
# First hetero_lab.save(model, placement, "exported/openvino_model.xml") over the exported model;
# place_ops.py then lies beside it.
import openvino as ov
from optimum.intel import OVModelForCausalLM  # or the class for your task
from place_ops import place_ops

model = OVModelForCausalLM.from_pretrained(
    "exported", device="{target}", ov_config={properties}, compile=False
)
place_ops(model.model, ov.Core())
model.compile()
"""
_BENCHMARK = """\
# bench.py, beside placed.xml and place_ops.py of hetero_lab.save(model, placement, "placed.xml")
import openvino as ov
from openvino.tools.benchmark import benchmark
from openvino.tools.benchmark.main import main
from place_ops import place_ops


class Placed(ov.Core):
    def compile_model(self, model, device, config):
        target, properties = place_ops(model, self)
        return super().compile_model(model, target, {{**config, **properties}})


benchmark.Core = Placed
main()

# python bench.py -m placed.xml -d {target}
# If it names new ops, it has added a conversion of images: add -ip f32.
"""
_CONFIGURED = """\
# load.json
{load}

# benchmark_app -m placed.xml -d {target} -load_config load.json
"""
_GENAI = """\
# Other attention backends drop the properties.
import openvino_genai

pipe = openvino_genai.LLMPipeline(
    "exported", "{target}", ATTENTION_BACKEND="SDPA", **{properties}
)
"""
_OVMS = """\
// config.json
{ovms}
"""
_ONNXRUNTIME = """\
# The provider brings an OpenVINO of its own, perhaps an older one.
import json

import onnxruntime

options = {{
    "device_type": "{target}",
    "load_config": json.dumps({nested}),  # the text: with a path, Python falls back to plain CPU
}}
session = onnxruntime.InferenceSession(
    "model.onnx", providers=["OpenVINOExecutionProvider"], provider_options=[options]
)
assert session.get_providers()[0] == "OpenVINOExecutionProvider"
"""
_TEXTS = {
    "optimum": _OPTIMUM,
    "benchmark_app": _BENCHMARK,
    "genai": _GENAI,
    "ovms": _OVMS,
    "onnxruntime": _ONNXRUNTIME,
}
_BY_LABELS = ("optimum", "benchmark_app")


def recipe(
    model: Source, placement: PlacementLike, runtime: str, *, core: ov.Core | None = None
) -> str:
    """Return what to paste so that another runtime runs a placement.

    Parameters
    ----------
    model
        Anything that :func:`hetero_lab.load` takes.
    placement
        A Placement, an Affinity, ``"HETERO:ACC,CPU"``, ``"CPU"`` or ``"AUTO:GPU,CPU"``.
    runtime
        ``"optimum"``, ``"benchmark_app"``, ``"genai"``, ``"ovms"`` (OpenVINO Model Server) or
        ``"onnxruntime"``. The last three take no labels; the text then begins with the number of
        ops that they run elsewhere.

    Raises
    ------
    ArgumentError
        Another runtime.
    AffinityError, DeviceError, PropertyError
        The placement does not fit the model or the devices.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> acc = hl.emulate("ACC", unsupported={"Softmax"})
    >>> print(hl.interop.recipe("digits_inception", "HETERO:ACC,CPU", "genai"))
    # Other attention backends drop the properties.
    import openvino_genai
    <BLANKLINE>
    pipe = openvino_genai.LLMPipeline(
        "exported", "HETERO:ACC,CPU", ATTENTION_BACKEND="SDPA", **{}
    )
    <BLANKLINE>
    """
    if runtime not in _TEXTS:
        raise ArgumentError(unknown("There is no recipe for", runtime, _TEXTS, "Runtimes"))
    placed = resolve(bind(model, core), placement)
    if placed.placement.priorities and runtime in DIVIDED:
        return placed.placement.recipe(runtime) + "\n"
    target, n_elsewhere = _nearest(placed)
    properties, kind = _named(placed.compile_call[1]), target.partition(":")[0]
    text = _TEXTS[runtime]
    # benchmark_app reads the name GPU.0 in its file as 0, so that its properties would be lost.
    if runtime == "benchmark_app" and not n_elsewhere and "." not in target:
        text = _CONFIGURED
    said = text.format(
        target=target,
        properties=properties,
        nested={kind: properties},
        load=json.dumps({kind: _as_text(properties)}, indent=2),
        ovms=json.dumps({"model_config_list": [{"config": _served(target, properties)}]}, indent=2),
    )
    if n_elsewhere and runtime not in _BY_LABELS:
        ops = f"{n_elsewhere} of {len(placed.affinity.ops)} ops run elsewhere"
        mark = "//" if runtime == "ovms" else "#"
        said = f"{mark} It takes no labels: {ops} than in the placement.\n{said}"
    return said


def _nearest(placed: BoundPlacement) -> tuple[str, int]:
    """Return the device's name that comes nearest to a placement, and how many ops differ."""
    if placed.direct or placed.placement.priorities:
        return placed.compile_call[0], 0
    found = {}
    for order in itertools.islice(itertools.permutations(placed.devices), _MOST_ORDERS):
        try:
            own = greedy(placed.bound, order)
        except DeviceError:  # an op that none of them supports is not there
            continue
        found[order] = sum(own[op] != placed.affinity[op] for op in own.ops)
    order = min(found, key=found.__getitem__)
    return f"HETERO:{','.join(order)}", found[order]


def _named(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the devices without a property."""
    inner = {d: given for d, given in properties.get("DEVICE_PROPERTIES", {}).items() if given}
    own = {key: value for key, value in properties.items() if key != "DEVICE_PROPERTIES"}
    return {**own, **({"DEVICE_PROPERTIES": inner} if inner else {})}


def _as_text(properties: Mapping[str, Any]) -> dict[str, str]:
    """Write properties as OpenVINO's tools read them: ``{CPU:{NUM_STREAMS:1}}``."""

    def text(value: Any) -> str:
        if isinstance(value, Mapping):
            return "{" + ",".join(f"{key}:{text(of)}" for key, of in value.items()) + "}"
        return {True: "YES", False: "NO"}[value] if isinstance(value, bool) else str(value)

    return {key: text(value) for key, value in properties.items()}


def _served(target: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": "model",
        "base_path": "/models/model",
        "target_device": target,
        "plugin_config": properties,
    }
