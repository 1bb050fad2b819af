"""Run the recipe for optimum-intel on a BERT and a Llama with random weights, in this directory.

Needs optimum-intel. For each it prints a line of JSON: the devices that ran it, and the largest
difference of its outputs to the lab's, or the tokens of both.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

import hetero_lab as hl
from tests.scripts import EXACT, error_of


class Emulating(ov.Core):
    """A Core with an emulated ACC."""

    def __init__(self) -> None:
        super().__init__()
        hl.emulate("ACC", core=self)


ov.Core = Emulating  # before optimum makes its own
optimum, transformers, torch = map(import_module, ("optimum.intel", "transformers", "torch"))
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64,
    "vocab_size": 99,
}  # fmt: skip


def by_recipe(kind: str, made: Any, **shapes: Any) -> tuple[Any, hl.Placement, Any]:
    """Export a model of transformers, place it, and follow the recipe.

    Return the model and the placement of the lab, and the model of optimum.
    """
    directory = Path.cwd() / made.config.model_type
    made.save_pretrained(directory / "original")
    whole = getattr(optimum, kind).from_pretrained(directory / "original", export=True)
    whole.save_pretrained(directory / "exported")
    file = directory / "exported" / "openvino_model.xml"
    model = hl.load(file, **shapes)
    halves = hl.Affinity.by_block(model, {"0-1": "ACC", "2-3": "CPU"})
    placement = hl.Placement(halves, "halves", {"ACC": EXACT, "CPU": EXACT})
    text = hl.interop.recipe(model, placement, "optimum").replace("OVModelForCausalLM", kind)
    os.chdir(directory)
    hl.save(model, placement, file)
    sys.path.insert(0, "exported")  # has place_ops.py
    names: dict[str, Any] = {}
    exec(text, names)
    return model, placement, names["model"]


def bert() -> dict[str, Any]:
    """Compare the outputs of a BERT."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    model, placement, ran = by_recipe(
        "OVModelForFeatureExtraction",
        transformers.BertModel(transformers.BertConfig(**SIZES)),
        shapes={name: [1, 8] for name in names},
    )
    inputs = dict(zip(names, np.array([[range(8)], [[1] * 8], [[0] * 8]]), strict=True))
    wanted = hl.compile(model, placement)(inputs)
    error = error_of(ran(**inputs), wanted)
    return {"devices": ran.request.get_property("EXECUTION_DEVICES"), "error": error}


def llama() -> dict[str, Any]:
    """Compare the tokens of a Llama."""
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2)
    model, placement, ran = by_recipe("OVModelForCausalLM", transformers.LlamaForCausalLM(config))
    ids = np.arange(1, 6)[None]
    asked = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    said = ran.generate(torch.tensor(ids), attention_mask=torch.ones(1, 5), **asked)
    own = hl.profile(
        model, placement, scenario=hl.Scenario(5, 8), inputs=ids, iterations=1, counters=False,
        reference=False, progress=False,
    )  # fmt: skip
    return {
        "devices": ran.request.get_compiled_model().get_property("EXECUTION_DEVICES"),
        "tokens": said[:, 5:].tolist(),
        "own_tokens": own.generation.token_ids.tolist(),
    }


if __name__ == "__main__":
    torch.manual_seed(0)
    there = Path.cwd()
    for run in (bert, llama):
        os.chdir(there)
        print(json.dumps(run()))
