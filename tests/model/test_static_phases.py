"""A language model as two static ones without states: their tokens, and what is refused."""

import numpy as np
import pytest
from openvino import opset13 as op

import hetero_lab as hl
from hetero_lab.errors import ArgumentError, InputError, ModelError
from hetero_lab.model.language import language_model
from hetero_lab.model.static_phases import static_phases
from hetero_lab.runtime.compiled import compile
from hetero_lab.runtime.generation import CompiledSession, generate
from tests.small_language_models import StaticSession, decoder

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


@pytest.mark.parametrize("empty_from", ["inputs", "layer", "constant"])
def test_static_models_generate_the_tokens_of_the_dynamic_one(empty_from):
    model = hl.load(decoder(2, empty_from=empty_from))
    known = language_model(model)
    dynamic, static = sessions(model, SCENARIO)
    for n_tokens in (9, 4, 1):  # shorter prompts are filled up
        prompt = known.prompt(hl.Scenario(n_tokens, SCENARIO.new_tokens), seed=n_tokens)
        expected = generate(dynamic, known, prompt, SCENARIO.new_tokens)
        made = generate(static, known, prompt, SCENARIO.new_tokens)
        assert made.token_ids.tolist() == expected.token_ids.tolist()
        assert np.allclose(made.logits, expected.logits, atol=1e-4)


def test_several_sequences_and_more_tokens_than_the_models_were_made_for():
    scenario = hl.Scenario(prompt_tokens=5, new_tokens=4, batch=3)
    model = hl.load(decoder(2, empty_from="inputs"))
    known = language_model(model)
    dynamic, static = sessions(model, scenario)
    prompt = known.prompt(scenario, seed=1)
    expected = generate(dynamic, known, prompt, scenario.new_tokens)
    made = generate(static, known, prompt, scenario.new_tokens)
    assert made.token_ids.tolist() == expected.token_ids.tolist()
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
    assert shapes["input_ids"] == [1, 1]
    assert shapes["attention_mask"] == [1, 16]
    assert shapes["past.3"] == [1, 2, 15, 8]
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
