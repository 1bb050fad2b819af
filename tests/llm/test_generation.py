"""Generation with a small language model on one device and on several, with both executors."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from functools import partial

import numpy as np
import openvino as ov
import pytest
from counting_core import F32
from small_language_models import VOCABULARY, decoder
from small_models import chain

import hetero_lab as hl
from hetero_lab.cli import main as cli
from hetero_lab.cli.texts import after_profile
from hetero_lab.costs.design import block_affinities, block_units
from hetero_lab.devices.core import bind
from hetero_lab.errors import (
    AffinityError,
    ArgumentError,
    InferenceError,
    InputError,
    ModelError,
    PlanError,
)
from hetero_lab.llm.generation import compare_generation
from hetero_lab.model.language import LanguageModel, language_model
from hetero_lab.model.read import prepare
from hetero_lab.placement.affinity import Affinity
from hetero_lab.placement.placement import resolve
from hetero_lab.runtime.executors import inputs_for, open_runner, read_counted
from hetero_lab.runtime.reference import compare
from hetero_lab.search.observations import Observer

# The CPU plugin keeps a cache in 8 bits by default.
EXACT = {**F32, "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
SCENARIO = hl.Scenario(prompt_tokens=5, new_tokens=8)
PROMPT = np.array([[3, 1, 4, 1, 5]])


@pytest.fixture(scope="module")
def model():
    return hl.load(decoder(2))


def quick(model, placement, core, **options):
    """Profile one generation per turn, by default after the same prompt and without counters."""
    asked = {"scenario": SCENARIO, "inputs": PROMPT, "counters": False, **options}
    return hl.profile(model, placement, iterations=1, core=core, progress=False, **asked)


def behind(model, name: str) -> list[str]:
    """Return the ops that come after an op."""
    graph = prepare(model).graph
    found, queue = set(), [graph.index_of[name]]
    while queue:
        for use in graph.consumers[queue.pop()]:
            if use.index not in found:
                found.add(use.index)
                queue.append(use.index)
    return [graph.ops[i].name for i in sorted(found) if graph.ops[i].type != "Result"]


def in_two(model, core, first: str, second: str) -> hl.Placement:
    affinity = hl.Affinity.uniform(model, first, core=core)
    affinity = affinity.fix(ops=dict.fromkeys(behind(model, "layers.0/out"), second), core=core)
    return hl.Placement(affinity, "in two", {first: EXACT, second: EXACT})


def without_states(model, core, prompt: np.ndarray, n: int) -> list[list[int]]:
    """Generate with everything computed anew for each token."""
    request = core.compile_model(model, "CPU", EXACT).create_infer_request()
    known, ids = language_model(model), prompt
    for _ in range(n):
        request.reset_state()
        request.infer(dict(enumerate(known.feed(ids, 0))))
        last = request.get_output_tensor(0).data[:, -1]
        ids = np.concatenate([ids, last.argmax(-1)[:, None]], 1)
    return ids[:, prompt.shape[1] :].tolist()


@pytest.mark.parametrize(
    ("executor", "devices"), [("hetero", ("CPU", "ACC")), ("parallel", ("ACC", "CPU"))]
)
def test_tokens_are_those_without_a_cache(model, core, executor, devices):
    profile = quick(
        model, in_two(model, core, *devices), core, executor=executor,
        inputs={"input_ids": PROMPT}, counters=True,
    )  # fmt: skip
    made = profile.generation
    assert made.token_ids.tolist() == without_states(model, core, PROMPT, 8)
    assert len(set(made.token_ids[0])) > 3
    assert [(a.output, a.verdict) for a in profile.agreement] == [
        ("logits", "equal"),
        ("token_ids", "equal"),
    ]
    assert (profile.partition.n_subgraphs, profile.as_predicted) == (2, True)
    assert (len(made.ttft), len(made.tpot)) == (3, 3 * 7)
    assert profile.latency == made.tpot
    assert {c.subgraph for c in profile.counters} == {0, 1}
    low, high = made.tokens_per_s_ci95
    assert low <= made.tokens_per_s <= high
    assert made.tokens_per_s == pytest.approx(1e3 / made.tpot_ms)


def test_devices_can_take_turns_on_the_own_executor(core):
    devices = ("ACC", "CPU")
    turns = hl.load(decoder(4, empty_from="constant"))
    affinity = hl.Affinity.by_block(turns, {b: devices[b % 2] for b in range(4)}, core=core)
    placement = hl.Placement(affinity, "turns", dict.fromkeys(devices, EXACT))
    with pytest.raises(AffinityError, match=r"would be torn .*executor='parallel'"):
        hl.compile(turns, placement, core=core)
    profile = quick(turns, placement, core, executor="parallel")
    assert profile.generation.token_ids.tolist() == without_states(turns, core, PROMPT, 8)
    assert {a.verdict for a in profile.agreement} == {"equal"}
    assert [s.device for s in profile.partition.subgraphs] == list(devices) * 2


def test_sequences_of_a_batch_are_generated_at_once(model, core):
    prompt = np.array([[3, 1, 4], [15, 9, 2]])
    two = hl.Scenario(3, 4, batch=2)
    profile = quick(model, "CPU", core, scenario=two, inputs=prompt, reference=False)
    assert profile.generation.token_ids.shape == (2, 4)
    assert profile.generation.tokens_per_s == pytest.approx(2e3 / profile.generation.tpot_ms)


@pytest.mark.parametrize("second", [{}, {"KV_CACHE_PRECISION": "u4"}])
def test_a_cache_of_few_bits_is_not_equal(model, core, second):
    in_f32 = in_two(model, core, "CPU", "ACC")
    few = hl.Placement(in_f32.affinity, "few", {"CPU": EXACT, "ACC": {**F32, **second}})
    logits = quick(model, few, core).agreement[0]
    assert (logits.precision, logits.verdict) == ("u8", "rounding")
    assert logits.relative_error > 1e-3


@pytest.mark.parametrize("executor", ["hetero", "parallel"])
def test_counters_are_of_steps_of_one_token(model, core, executor, monkeypatch):
    lengths, feed = [], LanguageModel.feed

    def recorded(self, ids, past):
        lengths.append(ids.shape[1])
        return feed(self, ids, past)

    monkeypatch.setattr(LanguageModel, "feed", recorded)
    placed = resolve(bind(model, core), "CPU")
    prompt = inputs_for(placed.bound, None, 0, SCENARIO)
    how = {"executor": executor, "scenario": SCENARIO, "counters": True}
    rows = read_counted(open_runner(placed, prompt, **how))
    assert any(row.real_time_us for row in rows)
    assert len(lengths) > SCENARIO.new_tokens  # more than one generation
    assert set(lengths) == {1}


def test_inputs_have_the_types_of_the_model(model, core):
    narrow = decoder(2)
    for port in narrow.inputs:
        if port.get_any_name() in ("input_ids", "position_ids"):
            port.get_node().set_element_type(ov.Type.i32)
    narrow.validate_nodes_and_infer_types()
    same = [quick(m, "CPU", core, reference=False) for m in (model, narrow)]
    assert same[0].generation.tokens == same[1].generation.tokens


def test_a_batch_that_the_model_does_not_take_is_told(core):
    single = decoder(1)
    single.reshape({"input_ids": [1, -1], "attention_mask": [1, -1], "position_ids": [1, -1]})
    with pytest.raises(InferenceError, match="while it ran 'CPU'"):
        hl.profile(single, "CPU", scenario=hl.Scenario(3, 4, batch=2), core=core, progress=False)


def test_a_profile_is_stored_and_shown(model, core, tmp_path):
    profile = quick(model, "CPU", core)
    profile.export(tmp_path)
    assert hl.read_profile(tmp_path).generation == profile.generation
    assert "First token:" in repr(profile)
    assert "8 tokens" in repr(profile)
    row = profile.tables["generation"].iloc[0]
    assert row["tpot_ms"] == profile.generation.tpot_ms
    assert row["token_ids"].split() == [str(t) for t in profile.generation.tokens[0]]


def test_a_sweep_ranks_by_the_time_per_further_token(model, core, tmp_path):
    alone = hl.Placement(
        hl.Affinity.uniform(model, "CPU", core=core), "alone", {"CPU": EXACT}, True
    )
    sweep = hl.sweep(
        model, [alone, in_two(model, core, "ACC", "CPU")], scenario=SCENARIO, turns=2,
        grid={"executor": ["hetero", "parallel"]}, counters=False, isolate=False, baselines=False,
        store=tmp_path, core=core, progress=False,
    )  # fmt: skip
    summary = sweep.summary.set_index("label")
    assert list(summary["status"]) == ["ok"] * 4
    assert list(summary["verdict"]) == ["equal"] * 4
    assert np.allclose(summary["tpot_ms"] * 1e3, summary["median_us"])
    assert (summary["ttft_ci95_low_ms"] <= summary["ttft_ms"]).all()
    assert np.allclose(summary["tokens_per_s"], 1e3 / summary["tpot_ms"])
    assert sweep.ranking["tpot_ms"].is_monotonic_increasing
    for label in summary.index:
        assert sweep.profile(label).generation.token_ids.shape == (1, 8)
    assert hl.read_sweep(tmp_path).summary.equals(sweep.summary)


def test_wrong_questions_are_refused_before_a_compile(model, own_core):
    plain, one_layer = chain("a", "b"), hl.load(decoder(1))
    profile = partial(hl.profile, placement="CPU")
    asked = {"scenario": SCENARIO}
    cases = [
        (profile, ArgumentError, "pass scenario= to say what to generate", model, {}),
        (profile, ModelError, "has no states", plain, asked),
        (profile, InputError, r"shape \[1, 5\]", model, {**asked, "inputs": PROMPT[:, :2]}),
        (profile, InputError, "one input is the prompt", model, {**asked, "inputs": {"x": 1}}),
        (profile, InputError, f"from 0 to {VOCABULARY - 1}", model,
         {**asked, "inputs": PROMPT + VOCABULARY}),
        (profile, InputError, "differ in length", model, {**asked, "inputs": [[1, 2], [3]]}),
        (profile, ArgumentError, "several in flight", model, {**asked, "requests": 2}),
        (partial(hl.sweep, placements=["CPU"]), ArgumentError,
         "pass scenario= to say what to generate", model, {}),
    ]  # fmt: skip
    for search in (hl.optimize, hl.calibrate):
        search = partial(search, devices=["ACC", "CPU"], progress=False)
        example = r"pass scenario= to say .* hetero_lab\.Scenario\("
        cases += [
            (search, ArgumentError, example, model, {}),
            (search, ModelError, "has no states", plain, asked),
            (search, PlanError, "no repeated layers", one_layer, asked),
        ]
    for name, ask in (("find_wrong", partial(hl.find_wrong, placement="CPU")),
                      ("advise", partial(hl.advise, devices=["CPU"]))):  # fmt: skip
        says = rf"language model.* hetero_lab\.{name} takes .* static"
        cases.append((ask, ModelError, says, model, {}))
    for ask, kind, says, given, options in cases:
        with pytest.raises(kind, match=says):
            ask(given, core=own_core, **options)
    assert own_core.n_compiled == 0


def test_the_command_line_generates(tmp_path, capsys):
    ov.save_model(decoder(1), tmp_path / "openvino_model.xml", compress_to_fp16=False)
    command = ["profile", str(tmp_path), "-d", "CPU", "-n", "1", "--no-counters"]
    assert cli.main([*command, "--prompt-tokens", "4", "--new-tokens", "6"]) == 0
    shown = capsys.readouterr().out
    assert "after a prompt of 4 tokens" in shown
    assert "3 generations of 6 tokens" in shown
    assert cli.main([*command, "--prompt-tokens", "4"]) == 2
    assert "needs both --prompt-tokens and --new-tokens" in capsys.readouterr().err


def test_no_next_step_that_refuses_a_language_model(model):
    hl.emulate("ACC")
    profile = quick(model, in_two(model, None, "ACC", "CPU"), None, reference=False)
    given = Namespace(model="m", device="ACC,CPU", shape=[], emulate=[])
    for agreement in ((), compare({"x": np.ones(1)}, {"x": np.zeros(1)})):
        judged = replace(profile, agreement=agreement)
        assert after_profile(given, judged) == []


@pytest.mark.filterwarnings("ignore::hetero_lab.errors.BudgetWarning")
@pytest.mark.parametrize("validate", [0, 1, 3])
def test_of_the_cuts_between_layers_every_other_validates(core, monkeypatch, validate):
    model, asked = hl.load(decoder(5, empty_from="layer")), {}
    monkeypatch.setattr(
        Observer, "observe", lambda self, affinities, *_, **options: asked.update(affinities)
    )
    made = hl.calibrate(
        model, ["ACC", "CPU"], scenario=SCENARIO, budget_s=None, validate=validate, isolate=False,
        progress=False, core=core,
    )  # fmt: skip
    graph = prepare(model).graph
    names = {graph.ops[index].name for index in graph.placeable}
    units = block_units(graph)
    reference, *cuts = block_affinities(graph, {"ACC": names, "CPU": names}, units, 10_000)
    assert len(cuts) >= 6
    assert reference not in asked.values()
    kept = cuts[len(cuts) - 2 * validate :: 2]
    alone = [Affinity.on_one(graph, device) for device in ("ACC", "CPU")]
    assert [a for label, a in asked.items() if label.startswith("kept")] == kept
    designed = [a for label, a in asked.items() if label.startswith("designed")]
    assert designed == [cut for cut in cuts if cut not in kept]
    assert [a for a in asked.values() if len(a.devices) == 1] == alone
    # None was measured.
    said = "The time allowed 1 placement to learn from: nothing validates the predictions."
    assert [note.partition(" A larger")[0] for note in made.notes] == [said] * bool(validate)


def test_a_layer_that_no_device_supports_wholly_is_named(model, own_core):
    """Each op runs on one of the two, but a language model is cut between layers only."""
    hl.emulate("ACC", unsupported={"Softmax", "MatMul"}, core=own_core)
    hl.emulate("ACC2", unsupported={"Swish"}, core=own_core)
    with pytest.raises(
        PlanError, match=r"No device supports all of part 1 .* ACC: .*; ACC2: .*act"
    ):
        hl.optimize(model, ["ACC", "ACC2"], scenario=SCENARIO, core=own_core, progress=False)
    assert own_core.n_compiled == 0


def test_logits_are_compared_up_to_the_first_other_token():
    logits = np.ones((1, 3, 4), np.float32)
    expected = {"logits": logits, "token_ids": np.array([[7, 8, 9]])}
    later = logits.copy()
    later[0, 2] = 5  # behind another token, so that it cannot be the same
    other = {"logits": later, "token_ids": np.array([[7, 6, 9]])}
    assert [a.verdict for a in compare_generation(other, expected, "f32")] == ["equal", "rounding"]
    other["logits"][0, 1] = 5
    verdicts = [a.verdict for a in compare_generation(other, expected, "f32")]
    assert verdicts == ["different", "different"]
    assert [a.verdict for a in compare_generation(expected, expected, "f32")] == ["equal"] * 2


def test_tokens_are_judged_by_the_step_where_they_part():
    # Two sequences of ten tokens; the first eight steps have their logits.
    logits = np.random.default_rng(0).normal(size=(2, 10, 20)).astype(np.float32)
    expected = {"logits": logits[:, :8], "token_ids": logits.argmax(-1)}

    def copy() -> dict[str, np.ndarray]:
        return {name: array.copy() for name, array in expected.items()}

    def verdict(made, precision="f32"):
        return compare_generation(made, expected, precision)[1].verdict

    beyond_logits = copy()
    beyond_logits["token_ids"][1, 9] += 1
    assert verdict(beyond_logits) == "different"
    by_itself = copy()
    by_itself["logits"][0, 7] = 0
    by_itself["token_ids"][0, 7:] += 1
    assert verdict(by_itself, "i8") == "different"  # of all 16 steps it is a quarter
    by_itself["logits"][0, 7] = np.nan
    assert verdict(by_itself) == "not a number"
    each_up_to_its_end = copy()
    each_up_to_its_end["token_ids"][0] += 1  # as likely
    assert verdict(each_up_to_its_end) == "rounding"
    each_up_to_its_end["logits"][1, 3:] *= -1
    each_up_to_its_end["token_ids"][1, 3:] += 1
    assert verdict(each_up_to_its_end) == "different"


def test_text_needs_a_tokenizer(model, tmp_path):
    with pytest.raises(InputError, match=r"shape \[batch, n\]"):
        hl.llm.detokenize(model, np.array([1, 2]))
    with pytest.raises(ModelError, match="directory of this language model is unknown"):
        hl.llm.tokenize(model, "Once")
    ov.save_model(decoder(1), tmp_path / "openvino_model.xml")
    with pytest.raises(ModelError, match=r"no openvino_tokenizer\.xml"):
        hl.llm.tokenize(hl.load(tmp_path), "Once")


@pytest.mark.network
def test_text_goes_in_and_comes_out():
    pytest.importorskip("openvino_tokenizers")
    llm = hl.load("smollm2_135m")
    prompt = hl.llm.tokenize(llm, "The capital of France is")
    assert (prompt.shape, prompt.dtype) == ((1, 5), np.int64)
    assert hl.llm.detokenize(llm, prompt) == ["The capital of France is"]
    two = hl.Scenario(5, 2)
    profile = quick(llm, "CPU", None, scenario=two, inputs=prompt, reference=False)
    assert hl.llm.detokenize(llm, profile.generation.token_ids) == [" Paris."]


def test_logits_need_not_be_the_first_output(model, core):
    one = model.clone()
    norm = next(node for node in one.get_ops() if node.get_friendly_name() == "norm")
    results = [ov.opset13.result(norm, name="hidden"), *one.get_results()]
    two = ov.Model(results, one.get_sinks(), one.get_parameters(), "two_outputs")
    made = quick(
        two, hl.Placement(hl.Affinity.uniform(two, "CPU", core=core), "", {"CPU": EXACT}), core
    )
    assert made.generation.token_ids.tolist() == without_states(model, core, PROMPT, 8)
    assert {a.verdict for a in made.agreement} == {"equal"}
