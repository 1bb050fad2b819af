"""Language models: the inputs and states of a decoder, and how much it is asked to generate.

A language model has the form that OpenVINO's exporters write: states hold the key-value cache, the
inputs are token ids with their mask and positions, the output is a logit for each token of the
vocabulary. Its shapes stay dynamic: a prompt is longer than the single token of a further step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from hetero_lab.arguments import check_whole
from hetero_lab.errors import ArgumentError, InputError, ModelError, names_at_hand, shorten
from hetero_lab.tables import load_json

IDS, MASK, POSITIONS, BEAM = "input_ids", "attention_mask", "position_ids", "beam_idx"
_INPUTS = (IDS, MASK, POSITIONS, BEAM)
_OUTPUT = "logits"
_NOTES = "hetero_lab"
_CONTEXT = [_NOTES, "context_tokens"]
_DIRECTORY = [_NOTES, "directory"]
TOKENIZER_FILES = tuple(
    f"openvino_{name}.{ending}"
    for name in ("detokenizer", "tokenizer")
    for ending in ("bin", "xml")
)


@dataclass(frozen=True)
class Scenario:
    """How many tokens a language model generates after a prompt of a given length.

    The prompt is run in one inference, which gives the first of ``new_tokens``; each further one
    takes an inference of its own. ``batch`` sequences are generated at once.

    Raises
    ------
    ArgumentError
        Fewer than one prompt token, two new tokens or one sequence.

    Examples
    --------
    >>> import hetero_lab as hl
    >>> hl.Scenario(prompt_tokens=64, new_tokens=32)
    Scenario(prompt_tokens=64, new_tokens=32, batch=1)
    """

    prompt_tokens: int
    new_tokens: int
    batch: int = 1

    def __post_init__(self) -> None:
        for name, least in (("prompt_tokens", 1), ("new_tokens", 2), ("batch", 1)):
            check_whole(name, getattr(self, name), least=least)

    @property
    def context_tokens(self) -> int:
        """The number of positions that the prompt and the new tokens take in a sequence."""
        return self.prompt_tokens + self.new_tokens


@dataclass(frozen=True)
class LanguageModel:
    """The ports and states of a language model.

    ``inputs`` are the roles of the inputs in the model's order: ``input_ids`` and, where the model
    has them, ``attention_mask``, ``position_ids`` and ``beam_idx``; ``types`` their element types.
    ``logits`` is the number of the output, ``vocabulary`` the number of tokens (``None`` if the
    model does not state it), ``states`` the names of the variables. ``context_tokens`` is the
    number of positions that the model was trained for, where the files beside it say so.
    """

    inputs: tuple[str, ...]
    types: tuple[np.dtype[Any], ...]
    logits: int
    vocabulary: int | None
    states: tuple[str, ...]
    context_tokens: int | None = None

    def check(self, scenario: Scenario) -> None:
        """Raise ArgumentError for a scenario longer than the context of the model's training."""
        if self.context_tokens is not None and scenario.context_tokens > self.context_tokens:
            raise ArgumentError(
                f"A prompt of {scenario.prompt_tokens} tokens and {scenario.new_tokens} new ones "
                f"are longer than the model's context of {self.context_tokens} tokens. Ask for "
                "less in Scenario(prompt_tokens=…, new_tokens=…)."
            )

    def feed(self, ids: np.ndarray, past: int) -> list[np.ndarray]:
        """Return the inputs that append ``ids``, ``[batch, n]``, to ``past`` tokens in states."""
        batch, n = ids.shape
        makers = {
            IDS: lambda: ids,
            MASK: lambda: np.ones((batch, past + n)),
            POSITIONS: lambda: np.tile(np.arange(past, past + n), (batch, 1)),
            BEAM: lambda: np.arange(batch),
        }
        typed = zip(self.inputs, self.types, strict=True)
        return [makers[name]().astype(dtype, copy=False) for name, dtype in typed]

    def prompt(self, scenario: Scenario, seed: int) -> np.ndarray:
        """Return a prompt of random tokens, int64 of shape ``[batch, prompt_tokens]``."""
        rng = np.random.default_rng(seed)
        shape = (scenario.batch, scenario.prompt_tokens)
        return rng.integers(0, self.vocabulary or 2, shape, dtype=np.int64)

    def check_prompt(self, ids: np.ndarray, scenario: Scenario) -> np.ndarray:
        """Return a prompt as int64; InputError if it does not fit the scenario or vocabulary."""
        shape = (scenario.batch, scenario.prompt_tokens)
        if ids.dtype.kind not in "iu" or ids.shape != shape:
            raise InputError(
                f"The prompt is an array of token ids of shape {list(shape)}, as the scenario "
                f"says, not {ids.dtype} of shape {list(ids.shape)}."
            )
        if ids.min() < 0 or (self.vocabulary is not None and ids.max() >= self.vocabulary):
            last = "" if self.vocabulary is None else f" to {self.vocabulary - 1}"
            raise InputError(
                f"Token ids are from 0{last}; the prompt has ids from {ids.min()} to {ids.max()}."
            )
        return ids.astype(np.int64)


def language_model(model: ov.Model) -> LanguageModel:
    """Return a language model's ports and states; ModelError if some are missing or unknown."""
    states = tuple(variable.get_info().variable_id for variable in model.get_variables())
    inputs = [_name(port, _INPUTS) for port in model.inputs]
    outputs = [_name(port, (_OUTPUT,)) for port in model.outputs]
    if not states:
        raise ModelError(
            f"{model.get_friendly_name()!r} has no states, so it is not a language model that "
            "keeps its key-value cache. Export it with states (optimum-cli export openvino does)."
        )
    unknown = [name for name in inputs if name not in _INPUTS]
    if unknown or IDS not in inputs:
        what = f"has the inputs {names_at_hand(unknown)}" if unknown else "has no input input_ids"
        raise ModelError(
            f"{model.get_friendly_name()!r} {what}. A language model's inputs are "
            f"{', '.join(_INPUTS)}; the first is required."
        )
    if _OUTPUT not in outputs:
        raise ModelError(
            f"{model.get_friendly_name()!r} has no output 'logits'. Outputs: "
            f"{names_at_hand(outputs)}."
        )
    logits = outputs.index(_OUTPUT)
    shape = model.outputs[logits].get_partial_shape()
    last = None if shape.rank.is_dynamic else list(shape)[-1]
    return LanguageModel(
        inputs=tuple(inputs),
        types=tuple(np.dtype(port.get_element_type().to_dtype()) for port in model.inputs),
        logits=logits,
        vocabulary=None if last is None or last.is_dynamic else last.get_length(),
        states=states,
        context_tokens=_context_tokens(model),
    )


def is_language_model(model: ov.Model) -> bool:
    """Return whether a model has states and reads token ids, so that its shapes stay dynamic."""
    return bool(model.get_variables()) and any(
        _name(port, (IDS,)) == IDS and port.get_partial_shape().is_dynamic for port in model.inputs
    )


def check_scenario(model: ov.Model, scenario: Scenario | None) -> None:
    """Raise unless a scenario is given exactly where the model is a language model, and fits it."""
    if scenario is not None:
        language_model(model).check(scenario)
    elif is_language_model(model):
        raise ArgumentError(
            f"{shorten(model.get_friendly_name())} is a language model: pass scenario= to "
            "say what to generate, for instance "
            "hetero_lab.Scenario(prompt_tokens=64, new_tokens=32)."
        )


def refuse_language_model(model: ov.Model, function: str) -> None:
    """Raise ModelError for a language model where a function of the library needs static shapes."""
    if is_language_model(model):
        raise ModelError(
            f"{shorten(model.get_friendly_name())} is a language model, whose shapes are dynamic: "
            f"hetero_lab.{function} takes models of static shapes, such as those that "
            "hetero_lab.llm.static_phases(model, scenario) makes of it; hetero_lab.profile, sweep, "
            "calibrate, plan, optimize and freeze take a language model."
        )


def note_surroundings(model: ov.Model, directory: Path) -> None:
    """Record a model's directory in it, and the longest sequence by the configuration there."""
    model.set_rt_info(str(directory.resolve()), _DIRECTORY)
    with contextlib.suppress(ValueError, LookupError, TypeError, OverflowError):
        config = load_json((directory / "config.json").resolve(), "no configuration")
        model.set_rt_info(str(int(config["max_position_embeddings"])), _CONTEXT)


def directory_of(model: ov.Model) -> Path | None:
    """Return the directory that a language model was read from, where that is known."""
    if not model.has_rt_info(_DIRECTORY):
        return None
    return Path(model.get_rt_info(_DIRECTORY).astype(str))


def tokenizer_files(model: ov.Model) -> list[Path]:
    """Return the files of the tokenizer beside a language model."""
    directory = directory_of(model)
    files = [directory / name for name in TOKENIZER_FILES] if directory else []
    return [file for file in files if file.is_file()]


def forget_notes(model: ov.Model) -> None:
    """Remove all notes but the context: a file may come from elsewhere, with notes of its own."""
    n_tokens = _context_tokens(model)
    if _NOTES in model.rt_info:
        del model.rt_info[_NOTES]
    if n_tokens is not None:
        model.set_rt_info(str(n_tokens), _CONTEXT)


def _context_tokens(model: ov.Model) -> int | None:
    text = model.get_rt_info(_CONTEXT).astype(str) if model.has_rt_info(_CONTEXT) else ""
    return int(text) if text.isdecimal() and text.isascii() else None


def _name(port: Any, candidates: Sequence[str]) -> str:
    """Return the name among those known that a port has, else its own."""
    names = sorted(port.get_names()) or [port.get_node().get_friendly_name()]
    return next((name for name in names if name in candidates), names[0])
