"""Run the recipe for optimum-intel on a BERT and a Llama with random weights, in this directory.

Prints as JSON the devices of both, the largest difference of the BERT's outputs to the lab's, and
the tokens of the Llama by optimum and by the lab.
"""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

import hetero_lab as hl
from tests.scripts import EXACT, error_of

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
SIZES = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
         "intermediate_size": 64, "vocab_size": 99}  # fmt: skip


class Emulating(ov.Core):
    def __init__(self) -> None:
        super().__init__()
        hl.emulate("ACC", core=self)


ov.Core = Emulating  # before optimum makes its own
optimum, transformers, torch = map(import_module, ("optimum.intel", "transformers", "torch"))


def by_recipe(kind: str, made: Any, **shapes: Any) -> tuple[ov.Model, hl.Placement, Any]:
    """Return a model and a placement of the lab, and the model of optimum that runs it."""
    directory = Path(made.config.model_type).absolute()
    made.save_pretrained(directory / "original")
    whole = getattr(optimum, kind).from_pretrained(directory / "original", export=True)
    whole.save_pretrained(directory / "exported")
    file = directory / "exported" / "openvino_model.xml"
    model = hl.load(file, **shapes)
    halves = hl.Affinity.by_block(model, {"0-1": "ACC", "2-3": "CPU"})
    placement = hl.Placement(halves, "halves", {"ACC": EXACT, "CPU": EXACT})
    text = hl.interop.recipe(model, placement, "optimum").replace("OVModelForCausalLM", kind)
    hl.save(model, placement, file)
    sys.path.insert(0, str(file.parent))  # has place_ops.py
    exec(text.replace('"exported"', repr(str(file.parent))), names := {})
    return model, placement, names["model"]


torch.manual_seed(0)
bert, placement, ran = by_recipe(
    "OVModelForFeatureExtraction",
    transformers.BertModel(transformers.BertConfig(**SIZES)),
    shapes={name: [1, 8] for name in INPUTS},
)
inputs = dict(zip(INPUTS, np.array([[range(8)], [[1] * 8], [[0] * 8]]), strict=True))
found = {"error": error_of(ran(**inputs), hl.compile(bert, placement)(inputs)),
         "devices": [ran.request.get_property("EXECUTION_DEVICES")]}  # fmt: skip

config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2)
llama, placement, ran = by_recipe("OVModelForCausalLM", transformers.LlamaForCausalLM(config))
ids, asked = np.arange(1, 6)[None], {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
said = ran.generate(torch.tensor(ids), attention_mask=torch.ones(1, 5), **asked)
own = hl.profile(
    llama, placement, scenario=hl.Scenario(5, 8), inputs=ids, iterations=1, counters=False,
    reference=False, progress=False,
)  # fmt: skip
found["devices"].append(ran.request.get_compiled_model().get_property("EXECUTION_DEVICES"))
found["tokens"] = [said[:, 5:].tolist(), own.generation.token_ids.tolist()]
print(json.dumps(found))
