"""The language model among the samples, made of a GGUF file by OpenVINO GenAI."""

from __future__ import annotations

import struct

import pytest

import hetero_lab as hl
from hetero_lab.errors import SampleError
from hetero_lab.fetch import CACHE_VARIABLE
from hetero_lab.model.language import language_model
from hetero_lab.samples import made_models


def test_the_sample_needs_genai_and_says_so_before_it_fetches(monkeypatch, tmp_path):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(made_models.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SampleError, match=r"pip install 'hetero-lab\[llm\]'"):
        hl.load("smollm2_135m")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_model_is_told(tmp_path):
    file, target = tmp_path / "broken.gguf", tmp_path / "model"
    file.write_bytes(b"GGUF, but not really")
    target.mkdir()
    with pytest.raises(SampleError, match=r"could not convert broken\.gguf: .+ version\?"):
        made_models.convert_gguf(file, target)
    assert made_models.context_length(file) is None
    assert list(target.iterdir()) == []


def test_the_context_is_read_from_the_head_of_the_file(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF..llama.context_length" + struct.pack("<II", 4, 2048))
    assert made_models.context_length(file) == 2048


@pytest.mark.network
def test_smollm2_is_a_language_model_of_30_layers():
    model = hl.load("smollm2_135m")
    known = language_model(model)
    assert (known.vocabulary, len(known.states), known.context_tokens) == (49152, 60, 8192)
    types = [node.get_type_name() for node in model.get_ordered_ops()]
    assert types.count("ScaledDotProductAttention") == 30
    assert hl.samples().set_index("name").loc["smollm2_135m", "cached"]
