"""Greedy generation with a placed language model, and its comparison with a reference.

One inference runs the prompt, and one more each further token; states hold the earlier tokens.
HETERO has all states in its one request. With the ParallelExecutor each subgraph has its own, and
tensors are passed on without a copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from hetero_lab import clock
from hetero_lab.arguments import check_whole
from hetero_lab.devices.core import BoundModel
from hetero_lab.errors import InputError, ModelError, names_at_hand
from hetero_lab.llm.tokenizer import Tokenizer
from hetero_lab.model.language import LanguageModel, Scenario, directory_of, language_model
from hetero_lab.model.read import Source, prepare
from hetero_lab.placement.placement import BoundPlacement
from hetero_lab.runtime.compiled import compile_placed
from hetero_lab.runtime.counters import Counter
from hetero_lab.runtime.executors import CompiledSession, Runner, TurnTimes
from hetero_lab.runtime.inputs import digest_of
from hetero_lab.runtime.reference import (
    VERDICTS,
    Agreement,
    Verdict,
    compare,
    executed_precision,
    hinted_precision,
    keep_reference,
    reference_device,
    reference_placement,
)

LOGITS, TOKEN_IDS = "logits", "token_ids"
# By default devices store the cache in few bits, and quantise the inputs of matmuls with weights of
# few bits, whatever INFERENCE_PRECISION_HINT says.
_EXACT = {"KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
_COMPARED_STEPS = 64  # logits of later steps are dropped: a vocabulary is large


class TokenSession(Protocol):
    """A compiled language model with its states."""

    def reset(self) -> None:
        """Forget all tokens."""
        ...

    def step(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Infer once; return the logits, valid until the next step."""
        ...


def generate(
    session: TokenSession, model: LanguageModel, prompt: np.ndarray, new_tokens: int
) -> tuple[dict[str, np.ndarray], tuple[float, ...]]:
    """Generate the likeliest ``new_tokens`` after a prompt, int64 ids of shape ``[batch, n]``.

    Returns the arrays that are compared, ``token_ids`` of shape ``[batch, new_tokens]`` and the
    ``logits`` of the first steps, ``[batch, steps, vocabulary]``; and how long each step took.
    """
    tokens: list[np.ndarray] = []
    logits: list[np.ndarray] = []
    step_us: list[float] = []
    for ids, took_us, last in steps(session, model, prompt, new_tokens):
        tokens.append(ids)
        step_us.append(took_us)
        if len(logits) < _COMPARED_STEPS:
            logits.append(np.array(last, dtype=np.float32))
    outputs = {LOGITS: np.stack(logits, 1), TOKEN_IDS: np.concatenate(tokens, 1)}
    return outputs, tuple(step_us)


def steps(
    session: TokenSession, model: LanguageModel, prompt: np.ndarray, new_tokens: int
) -> Iterator[tuple[np.ndarray, float, np.ndarray]]:
    """Yield each step's tokens, duration in µs (with inputs and choice), and logits."""
    session.reset()
    now_ns = clock.now_ns
    ids, past = prompt, 0
    for _ in range(new_tokens):
        start_ns = now_ns()
        last = session.step(model.feed(ids, past))[:, -1]
        past += ids.shape[1]
        ids = last.argmax(-1).astype(np.int64)[:, None]
        yield ids, (now_ns() - start_ns) / 1e3, last


def given_or_random_prompt(
    bound: BoundModel, inputs: Any, scenario: Scenario, seed: int
) -> list[np.ndarray]:
    """Return the prompt of a scenario, given or random, as a list of one checked array."""
    model = language_model(bound.model)
    if inputs is None:
        return [model.prompt(scenario, check_whole("seed", seed, least=0))]
    return [model.check_prompt(_token_ids(inputs), scenario)]


def given_prompt(bound: BoundModel, inputs: Any, new_tokens: int) -> list[np.ndarray]:
    """Return a prompt of any length as :func:`given_or_random_prompt` does."""
    model, ids = language_model(bound.model), _token_ids(inputs)
    if ids.ndim != 2 or not ids.size:
        raise InputError(
            f"A prompt is an array of token ids of shape [batch, n], not {list(ids.shape)}."
        )
    scenario = Scenario(ids.shape[1], new_tokens, ids.shape[0])
    model.check(scenario)
    return [model.check_prompt(ids, scenario)]


def _token_ids(inputs: Any) -> np.ndarray:
    if isinstance(inputs, Mapping):
        if list(inputs) != ["input_ids"]:
            raise InputError(
                "With a scenario, the one input is the prompt, {'input_ids': array}; the others "
                f"follow from it. Given: {names_at_hand(map(str, inputs))}."
            )
        inputs = inputs["input_ids"]
    if not isinstance(inputs, np.ndarray | Sequence) or isinstance(inputs, str):
        raise InputError(
            "With a scenario, inputs= is the prompt: an array of token ids, or "
            f"{{'input_ids': array}}, not {type(inputs).__name__}."
        )
    try:
        return np.asarray(inputs)
    except ValueError as error:
        raise InputError(
            "The sequences of the prompt differ in length. Give each the same number of token ids."
        ) from error


def generation_precision(bound_placement: BoundPlacement, precision: str) -> str:
    """Return the lowest precision of a generation whose ops have ``precision``.

    Unless every device is asked for an exact cache and no dynamic quantisation, it is ``u8``.
    """
    exact = all(
        str(bound_placement.properties[device].get(key)) == str(value)
        for device in bound_placement.devices
        for key, value in _EXACT.items()
    )
    return precision if exact else hinted_precision([precision, "u8"])


def reference_generation(
    bound: BoundModel, prompt: np.ndarray, scenario: Scenario
) -> dict[str, np.ndarray]:
    """Generate on one device, cache in f32 and nothing quantised; the outputs are kept."""
    supported = bound.core.get_property(reference_device(bound), "SUPPORTED_PROPERTIES")
    exact = {key: value for key, value in _EXACT.items() if key in supported}
    alone = reference_placement(bound, properties=exact)
    key = (bound.fingerprint, str(alone.devices), repr(scenario), digest_of([prompt]))

    def make() -> tuple[np.ndarray, ...]:
        session = CompiledSession(compile_placed(alone))
        model = language_model(bound.model)
        outputs, _ = generate(session, model, prompt, scenario.new_tokens)
        return tuple(outputs.values())

    return dict(zip((LOGITS, TOKEN_IDS), keep_reference(key, make), strict=True))


def compare_generation(
    outputs: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], precision: str
) -> tuple[Agreement, ...]:
    """Compare the logits and the tokens of two generations from one prompt.

    Logits of a sequence are comparable while both generations have seen the same tokens: up to and
    including the step of the first different token. If the logits of that step agree within
    ``precision``, the two tokens were equally likely and rounding chose between them. Without
    logits of that step, the tokens are ``different``.
    """
    differ = outputs[TOKEN_IDS] != expected[TOKEN_IDS]
    scores, exact = outputs[LOGITS], expected[LOGITS]
    n_steps = np.where(differ.any(1), differ.argmax(1) + 1, differ.shape[1])
    n_kept = exact.shape[1]
    same_text = np.arange(n_kept) < n_steps[:, None]

    def compare_logits(where: Any) -> Agreement:
        return compare({LOGITS: scores[where]}, {LOGITS: exact[where]}, precision)[0]

    logits = compare_logits(same_text)
    verdicts: list[Verdict] = ["equal"]
    for row in np.flatnonzero(differ.any(1)):
        step = n_steps[row] - 1
        alone: Verdict = "different"
        if step < n_kept:
            alone = compare_logits((row, step)).verdict
        verdicts.extend(("rounding", logits.verdict, alone))
    tokens = compare({TOKEN_IDS: outputs[TOKEN_IDS]}, {TOKEN_IDS: expected[TOKEN_IDS]}, precision)
    return logits, replace(tokens[0], verdict=max(verdicts, key=VERDICTS.index))


class GenerationRunner(Runner):
    """A language model: a turn is a generation, an inference is its next step."""

    def __init__(
        self, session: CompiledSession, arrays: list[np.ndarray], scenario: Scenario, counters: bool
    ):
        super().__init__(session, arrays)
        (prompt,) = arrays
        # Counters are running means, so a long prompt would distort those of one-token steps.
        prompt = prompt[:, :1] if counters else prompt
        model = language_model(self.placed.bound.model)
        self.infer = self._next_step
        self._scenario = scenario
        self._arguments = session, model, prompt, scenario.new_tokens
        self._outputs: dict[str, np.ndarray] = {}
        self._steps: Iterator[object] = iter(())

    def _next_step(self) -> None:
        try:
            next(self._steps)
        except StopIteration:
            self._steps = steps(*self._arguments)
            next(self._steps)

    def turn(self, timed: int = 0, discarded: int = 0) -> TurnTimes:
        del timed, discarded  # the scenario gives the length of a generation
        self._steps = iter(())
        self._outputs, (first_us, *further_us) = generate(*self._arguments)
        return tuple(further_us), first_us

    def outputs(self) -> dict[str, np.ndarray]:
        if not self._outputs:
            self.turn()
        return self._outputs

    def compare(
        self, rows: Sequence[Counter] = (), expected: Mapping[str, np.ndarray] | None = None
    ) -> tuple[Agreement, ...]:
        if expected is None:
            expected = reference_generation(self.placed.bound, self._arrays[0], self._scenario)
        executed = executed_precision(rows, self._compiled)
        precision = generation_precision(self.placed, executed)
        return compare_generation(self.outputs(), expected, precision)

    def tokens(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(map(int, sequence)) for sequence in self.outputs()[TOKEN_IDS])


# -- text and token ids -------------------------------------------------------------------------


def tokenize(model: Source, text: str) -> np.ndarray:
    """Return the token ids of a text, as a prompt for a language model.

    Parameters
    ----------
    model
        A language model that :func:`hetero_lab.load` read from a sample or from the directory of an
        exported model, with ``openvino_tokenizer.xml`` in it.
    text
        Not empty.

    Returns
    -------
    numpy.ndarray
        int64 of shape ``[1, n]``; ``n`` is the ``prompt_tokens`` of its scenario.

    Raises
    ------
    ModelError
        It is not a language model, its tokenizer is missing, or openvino-tokenizers is.
    InputError
        The text is empty, or is not text.
    """
    if not isinstance(text, str) or not text:
        raise InputError(f"A prompt is a non-empty text, not {text!r}.")
    return _tokenizer(model).encode(text)


def detokenize(model: Source, token_ids: np.ndarray | Sequence[Sequence[int]]) -> list[str]:
    """Return the text of each sequence of token ids, such as ``profile.generation.token_ids``.

    Parameters
    ----------
    model
        As for :func:`tokenize`.
    token_ids
        Shape ``[batch, n]``.

    Raises
    ------
    ModelError
        As for :func:`tokenize`.
    InputError
        It is not an array of token ids.
    """
    ids = np.asarray(token_ids)
    if ids.ndim != 2 or ids.dtype.kind not in "iu":
        raise InputError(
            "token_ids= is an array of whole numbers of shape [batch, n], not "
            f"{ids.dtype} of shape {list(ids.shape)}."
        )
    words = _tokenizer(model)
    return [words.decode(sequence) for sequence in ids]


def _tokenizer(model: Source) -> Tokenizer:
    prepared = prepare(model).model
    language_model(prepared)
    directory = directory_of(prepared)
    if directory is None:
        raise ModelError(
            "The directory of this language model is unknown, and so is its tokenizer. Load it "
            "from the directory that it was exported to: hetero_lab.load(directory)."
        )
    try:
        return Tokenizer(directory)
    except (FileNotFoundError, ModuleNotFoundError) as error:
        raise ModelError(str(error)) from error
