"""The tokenizer beside a language model; its source is also part of a frozen program."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino as ov

from hetero_lab.runtime.placed_model import MOST_XML, file_of, kept_core

_TOKENIZER, _DETOKENIZER = "openvino_tokenizer.xml", "openvino_detokenizer.xml"


class Tokenizer:
    """The tokenizer in a directory, as openvino-tokenizers writes it.

    ``end`` is the token that ends a text; ``None`` if the tokenizer does not define it.
    """

    def __init__(self, directory: str | os.PathLike[str]):
        models = [Path(directory) / name for name in (_TOKENIZER, _DETOKENIZER)]
        if missing := [path.name for path in models if not path.is_file()]:
            raise FileNotFoundError(
                f"{directory} has no {' and no '.join(missing)}, so it cannot read text. Give "
                "token ids instead."
            )
        try:
            import openvino_tokenizers  # noqa: F401  # pyright: ignore  # gives Core its ops
        except ImportError as error:
            raise ModuleNotFoundError(
                "Text needs openvino-tokenizers of the same version as openvino: "
                f"pip install openvino-tokenizers=={ov.__version__.partition('-')[0]}.*"
            ) from error
        core = kept_core("tokenizers")
        encoder, decoder = (core.read_model(file_of(path, MOST_XML)) for path in models)
        key = "eos_token_id"
        self.end = int(encoder.get_rt_info(key).astype(str)) if encoder.has_rt_info(key) else None
        self._encoder, self._decoder = (core.compile_model(m, "CPU") for m in (encoder, decoder))

    def encode(self, text: str) -> np.ndarray:
        """Return the token ids of a text, int64 of shape ``[1, n]``."""
        return np.array(self._encoder([text])["input_ids"], np.int64)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Return the text of the token ids of one sequence."""
        return str(self._decoder([np.array(ids, np.int64).reshape(1, -1)])[0][0])
