"""A whole model on disk: loading it gives what was trained, and a lie is found."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from ftrecipes.checkpoint.full import save_full, verify_full
from ftrecipes.config.errors import CheckpointError
from ftrecipes.model.resolve import resolve_source
from tests import tiny_models
from tests.checkpoint.alone import ALONE
from tests.model.gguf_file import write_gguf
from tests.model.loading import load
from tests.tiny_tokenizers import build_tokenizer


# Tied heads are written once; the experts of a Mixtral are split and renamed in the file.
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["llama", "llama_tied", "gpt2", "mixtral", "gemma2", "bloom"])
def test_a_plain_load_gives_the_trained_model(family, dtype, tmp_path):
    model = tiny_models.build(family, seed=4).to(dtype)
    save_full(model, tmp_path, **ALONE)
    verify_full(model, tmp_path, **ALONE)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    for name, parameter in model.named_parameters():
        assert loaded.get_parameter(name).dtype == dtype
        assert torch.equal(loaded.get_parameter(name), parameter), name
    assert loaded.config.tie_word_embeddings == model.config.tie_word_embeddings


def test_the_model_goes_on_generating_as_it_did(tmp_path):
    """Settings that transformers would refuse in a new file (a temperature, no sampling)."""
    tiny_models.save_folder("llama", tmp_path)
    old = {"temperature": 0.6, "top_p": 0.9, "eos_token_id": [2, 7]}
    (tmp_path / "generation_config.json").write_text(json.dumps(old))
    save_full(load(tmp_path), tmp_path / "out", **ALONE)
    new = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert {name: new[name] for name in old} == old
    assert json.loads((tmp_path / "out" / "config.json").read_text())["use_cache"] is True


def test_a_model_from_a_gguf_file_becomes_a_plain_folder(tmp_path):
    tokenizer = build_tokenizer("chatml")
    model = tiny_models.build("llama", vocab_size=len(tokenizer))
    live = load(write_gguf(model, tokenizer, tmp_path / "tiny.gguf"))
    save_full(live, tmp_path / "out", **ALONE)
    verify_full(live, tmp_path / "out", **ALONE)
    source = resolve_source(str(tmp_path / "out"), None, trust_remote_code=False)
    assert source.checkpoint_dtype == "float32"


def drop_tensor(tensors):
    del tensors["lm_head.weight"]
    return "lm_head.weight: trained, but not in the file"


def flip_bit(tensors):
    tensors["model.norm.weight"].view(torch.int32)[3] ^= 1
    return "model.norm.weight: other values in the file"


@pytest.mark.parametrize("spoil", [drop_tensor, flip_bit])
def test_files_that_are_not_what_was_trained_are_refused(spoil, tmp_path):
    model = tiny_models.build("llama")
    save_full(model, tmp_path, **ALONE)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    message = spoil(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError) as caught:
        verify_full(model, tmp_path, **ALONE)
    assert message in str(caught.value)
