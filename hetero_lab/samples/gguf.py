"""GGUF files of language models made into directories that OpenVINO reads, with OpenVINO GenAI.

The only module that needs ``openvino_genai`` (extra ``llm``). It converts in a process of its own:
GenAI compiles the model just to write it, and op names are numbered per process, so only a fresh
process gives the same names every time.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

from hetero_lab.errors import SampleError, shorten

MODEL = "openvino_model.xml"
_CONTEXT = b"llama.context_length"
_UINT32 = 4  # the type of a value in GGUF
_HEAD_BYTES = 1 << 20


def check_installed(name: str) -> None:
    """Raise for a sample that cannot be made here, before it is fetched.

    Raises
    ------
    SampleError
        OpenVINO GenAI is not installed.
    """
    if importlib.util.find_spec("openvino_genai") is None:
        raise SampleError(
            f"The sample {shorten(name)} is made with openvino-genai, which is not installed: "
            "pip install 'hetero-lab[llm]'."
        )


def convert(source: Path, directory: Path) -> None:
    """Write the model of a GGUF file, its tokenizer and its configuration into a directory.

    Raises
    ------
    SampleError
        OpenVINO GenAI refused.
    """
    copy = directory / "model.gguf"  # GenAI writes beside the file that it reads
    shutil.copyfile(source, copy)
    command = [sys.executable or "python", "-m", "hetero_lab.samples.gguf", str(copy)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    copy.unlink()
    if done.returncode or not (directory / MODEL).is_file():
        lines = done.stdout.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        raise SampleError(
            f"OpenVINO GenAI could not convert {source.name}: {shorten(lines[-1], 300)}. "
            "Do openvino, openvino-genai and openvino-tokenizers have the same version?"
        )
    n_tokens = context_length(source)
    if n_tokens is not None:
        config = {"max_position_embeddings": n_tokens}
        (directory / "config.json").write_text(json.dumps(config), "utf-8")


def context_length(source: Path) -> int | None:
    """Return the number of positions that a model was trained for, as its GGUF file states it."""
    with source.open("rb") as file:
        _, found, after = file.read(_HEAD_BYTES).partition(_CONTEXT)
    if not found or len(after) < 8:
        return None
    kind, value = struct.unpack("<II", after[:8])
    return value if kind == _UINT32 else None


if __name__ == "__main__":
    import openvino_genai  # pyright: ignore[reportMissingImports]

    openvino_genai.LLMPipeline(sys.argv[1], "CPU", enable_save_ov_model=True)
