"""Text to token ids and back, with the tokenizer that lies beside a language model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero_lab.errors import InputError, ModelError
from hetero_lab.model.language import directory_of, language_model
from hetero_lab.model.read import Source, prepare
from hetero_lab.runtime.run_frozen import Tokenizer


def tokenize(model: Source, text: str) -> np.ndarray:
    """Return the token ids of a text, as a prompt for a language model.

    Parameters
    ----------
    model
        What :func:`hetero_lab.load` returned for a sample or the directory of an exported model,
        with ``openvino_tokenizer.xml`` in it.
    text
        Not empty.

    Returns
    -------
    numpy.ndarray
        int64 of shape ``[1, n]``; ``n`` is the ``prompt_tokens`` of its scenario.

    Raises
    ------
    ModelError
        It is no language model, has no tokenizer beside it, or openvino-tokenizers is missing.
    InputError
        The text is empty, or no text.
    """
    if not isinstance(text, str) or not text:
        raise InputError(f"A prompt is a text that is not empty, not {text!r}.")
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
        It is no array of token ids.
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
    loaded = prepare(model).model
    language_model(loaded)
    directory = directory_of(loaded)
    if directory is None:
        raise ModelError(
            "Where this language model was read is not known, so its tokenizer is not either: "
            "load the directory that it was exported to, hetero_lab.load(directory)."
        )
    try:
        return Tokenizer(directory)
    except (FileNotFoundError, ModuleNotFoundError) as error:
        raise ModelError(str(error)) from error
