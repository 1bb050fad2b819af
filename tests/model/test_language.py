from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op
from small_language_models import VOCABULARY, StaticSession, decoder
from small_models import dynamic, stateful

import hetero_lab as hl
from hetero_lab.errors import ArgumentError, InputError, ModelError
from hetero_lab.llm.generation import generate
from hetero_lab.model.language import is_language_model, language_model
from hetero_lab.model.static_phases import static_phases
from hetero_lab.runtime.compiled import compile
from hetero_lab.runtime.executors import CompiledSession


def test_a_language_model_is_loaded_as_it_is():
    given = decoder(2)
    loaded = hl.load(given)
    assert [str(p.get_partial_shape()) for p in loaded.inputs] == ["[?,?]"] * 3 + ["[?]"]
    known = language_model(loaded)
    assert known.inputs == ("input_ids", "attention_mask", "position_ids", "beam_idx")
    assert (known.vocabulary, len(known.states), known.context_tokens) == (VOCABULARY, 4, None)
    cut = hl.Affinity.uniform(loaded, "CPU")
    assert len(cut) == len(loaded.get_ordered_ops())


def test_an_exported_directory_tells_its_context(tmp_path):
    ov.save_model(decoder(1), tmp_path / "openvino_model.xml", compress_to_fp16=False)
    assert language_model(hl.load(tmp_path)).context_tokens is None
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 512}))
    loaded = hl.load(str(tmp_path))
    known = language_model(loaded)
    assert known.context_tokens == 512
    known.check(hl.Scenario(500, 12))
    with pytest.raises(ArgumentError, match=r"500 tokens and 13 new ones .* context of 512 tokens"):
        known.check(hl.Scenario(500, 13))
    # A worker reads a prepared model from a file without the configuration.
    ov.save_model(loaded, tmp_path / "other.xml", compress_to_fp16=False)
    assert language_model(hl.load(tmp_path / "other.xml")).context_tokens == 512


def test_what_is_no_language_model_is_told():
    odd, nameless = decoder(1), decoder(1)
    odd.inputs[0].set_names({"inputs_embeds"})
    nameless.outputs[0].set_names({"hidden"})
    for model, says in (
        (stateful(), "has the inputs 'x'"),
        (dynamic(-1, 4), "has no states"),
        (odd, "has the inputs 'inputs_embeds'"),
        (nameless, r"no output 'logits'\. Outputs: 'hidden'"),
    ):
        with pytest.raises(ModelError, match=says):
            language_model(model)


def test_a_dynamic_model_without_states_still_needs_shapes():
    ids = op.parameter(ov.PartialShape([-1, -1]), np.int64, name="input_ids")
    model = ov.Model([op.convert(ids, "f32")], [ids], "stateless")
    assert not is_language_model(model)
    with pytest.raises(ModelError, match="dynamic inputs"):
        hl.load(model)


@pytest.mark.parametrize(
    ("given", "named"),
    [((0, 4), "prompt_tokens="), ((4, 1), "new_tokens="), ((4, 4, 0), "batch="), ((True, 4), "p")],
)
def test_a_scenario_is_checked(given, named):
    with pytest.raises(ArgumentError, match=named):
        hl.Scenario(*given)


def test_inputs_of_a_step_and_a_prompt():
    known = language_model(decoder(1))
    ids, mask, positions, beam = known.feed(np.array([[5], [6]]), past=3)
    assert ids.tolist() == [[5], [6]]
    assert mask.shape == (2, 4)
    assert mask.all()
    assert positions.tolist() == [[3], [3]]
    assert beam.tolist() == [0, 1]
    scenario = hl.Scenario(3, 4, batch=2)
    prompt = known.prompt(scenario, seed=1)
    assert prompt.shape == (2, 3)
    assert known.check_prompt(prompt.astype(np.int32), scenario).dtype == np.int64
    for model, wrong, says in (
        (known, prompt[:1], r"shape \[2, 3\]"),
        (known, prompt + VOCABULARY, "from 0 to 96"),
        (replace(known, vocabulary=None), prompt - VOCABULARY, "from 0; the prompt has ids from -"),
    ):
        with pytest.raises(InputError, match=says):
            model.check_prompt(wrong, scenario)


def test_a_broadcast_that_asks_for_the_size_0_keeps_the_size_it_has():
    model = decoder(1)
    ids = model.get_parameters()[0]
    batch = next(n for n in model.get_ops() if n.get_friendly_name() == "batch")
    wide = next(n for n in model.get_ops() if n.get_friendly_name() == "layers.0/value/shared")
    broadcast = wide.input_value(0).get_node()
    parts = [batch, *(op.constant(np.array([n], np.int64)) for n in (2, 2, 0, 8))]
    broadcast.input(1).replace_source_output(op.concat(parts, 0).output(0))
    model.validate_nodes_and_infer_types()
    assert 0 in [d.get_length() for d in broadcast.get_output_partial_shape(0) if d.is_static]
    loaded = hl.load(model)
    name = broadcast.get_friendly_name()
    made = next(n for n in loaded.get_ops() if n.get_friendly_name() == name)
    assert str(made.get_output_partial_shape(0)) == "[?,2,2,?,8]"
    assert ids.get_partial_shape().is_dynamic


# -- as two static models without states --------------------------------------------------------


SCENARIO = hl.Scenario(prompt_tokens=9, new_tokens=7)
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


def sessions(model, scenario):
    """Return sessions on a model as it is, and on its two static ones."""
    phases = static_phases(model, scenario)
    whole, prefill, decode = (
        compile(each, "CPU", compile_properties=EXACT)
        for each in (model, phases.prefill, phases.decode)
    )
    return CompiledSession(whole), StaticSession(phases, prefill, decode)


def generated_alike(known, dynamic, static, prompt, new_tokens) -> None:
    expected, _ = generate(dynamic, known, prompt, new_tokens)
    made, _ = generate(static, known, prompt, new_tokens)
    assert made["token_ids"].tolist() == expected["token_ids"].tolist()
    assert np.allclose(made["logits"], expected["logits"], atol=1e-4)


@pytest.mark.parametrize("empty_from", ["inputs", "layer", "constant"])
def test_static_models_generate_the_tokens_of_the_dynamic_one(empty_from):
    model = hl.load(decoder(2, empty_from=empty_from))
    known = language_model(model)
    dynamic, static = sessions(model, SCENARIO)
    for n_tokens in (9, 4, 1):  # shorter prompts are filled up
        prompt = known.prompt(hl.Scenario(n_tokens, SCENARIO.new_tokens), seed=n_tokens)
        generated_alike(known, dynamic, static, prompt, SCENARIO.new_tokens)


def test_several_sequences_and_more_tokens_than_the_models_were_made_for():
    scenario = hl.Scenario(prompt_tokens=5, new_tokens=4, batch=3)
    model = hl.load(decoder(2, empty_from="inputs"))
    known = language_model(model)
    dynamic, static = sessions(model, scenario)
    prompt = known.prompt(scenario, seed=1)
    generated_alike(known, dynamic, static, prompt, scenario.new_tokens)
    with pytest.raises(InputError, match="prompts of at most 5 tokens"):
        generate(static, known, known.prompt(hl.Scenario(6, 2, batch=3), seed=0), 2)
    with pytest.raises(InputError, match="9 in all"):
        generate(static, known, prompt, 20)


def test_the_models_are_static_and_without_states():
    model = hl.load(decoder(2))
    phases = static_phases(model, SCENARIO)
    assert model.get_variables()
    assert not phases.decode.get_variables()
    shapes = {port.get_any_name(): list(port.shape) for port in phases.decode.inputs}
    assert "beam_idx" not in shapes
    expected = {"input_ids": [1, 1], "attention_mask": [1, 16], "past.3": [1, 2, 15, 8]}
    assert shapes.items() >= expected.items()
    made = {port.get_any_name(): list(port.shape) for port in phases.prefill.outputs}
    assert (made["logits"], made["present.3"]) == ([1, 9, 97], [1, 2, 9, 8])
    assert all("past" not in port.get_any_name() for port in phases.prefill.inputs)


def test_a_model_that_gives_logits_of_the_last_token_only():
    model = decoder(2)
    logits = model.get_results()[0].input_value(0)
    last = op.slice(logits, *(op.constant([at]) for at in (-1, 2**31, 1, 1)))
    last.output(0).set_names({"logits"})
    model.get_results()[0].input(0).replace_source_output(last.output(0))
    model.validate_nodes_and_infer_types()
    with pytest.raises(ModelError, match="logits of 1 of 9 tokens"):
        static_phases(model, SCENARIO)


def test_models_that_have_no_such_form():
    with pytest.raises(ModelError, match="no states"):
        static_phases(hl.load("digits_inception"), SCENARIO)
    model = decoder(2)
    model.set_rt_info("12", ["hetero_lab", "context_tokens"])
    with pytest.raises(ArgumentError, match="context of 12 tokens"):
        static_phases(hl.load(model), SCENARIO)
