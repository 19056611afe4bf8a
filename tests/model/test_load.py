"""Loading: dtypes, completeness, and .gguf files."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, RwkvConfig

from ftrecipes.config.errors import ModelError
from ftrecipes.config.precision import resolve_precision
from ftrecipes.config.schema import QuantizationConfig, RunConfig, TrainConfig
from ftrecipes.model.resolve import load_tokenizer, resolve_source
from tests import tiny_models
from tests.model.gguf_file import write_gguf
from tests.model.loading import FLOAT32, load
from tests.tiny_tokenizers import build_tokenizer

BFLOAT16 = replace(FLOAT32, base="bfloat16", trainable="bfloat16", compute="bfloat16")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_models.save_folder("llama", tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize("precision", [FLOAT32, BFLOAT16], ids=lambda p: p.base)
def test_dtype_and_values(folder, precision):
    model = load(folder, precision=precision)
    dtype = getattr(torch, precision.base)
    assert {p.dtype for p in model.parameters()} == {dtype}
    for name, parameter in tiny_models.build("llama").named_parameters():
        assert torch.equal(model.get_parameter(name), parameter.to(dtype)), name
    assert model.config.use_cache  # as saved: what is saved later shall generate with a cache


def test_full_fine_tuning_has_float32_weights(folder):
    config = RunConfig(train=TrainConfig(use_peft=False))
    precision = resolve_precision(config, device_type="cpu", checkpoint_dtype="bfloat16")
    model = load(folder, precision=precision)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_weights_that_are_not_there_are_an_error(tmp_path):
    """transformers would fill a missing head with random numbers and warn."""
    tiny_models.build("llama").get_decoder().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"lacks weights(.|\n)*lm_head\.weight"):
        load(tmp_path)


def test_weights_without_a_place_are_told(folder, tmp_path, caplog):
    """A config of one layer would drop the second in silence."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    with caplog.at_level("WARNING", logger="ftrecipes"):
        load(folder)
        assert caplog.text == ""
        load(tmp_path)
    assert "holds 9 weights that its config has no place for" in caplog.text
    assert "model.layers.1.input_layernorm.weight" in caplog.text
    assert "and 4 more" in caplog.text


def test_tied_weights_and_none_of_the_config_are_not_told(tmp_path, caplog):
    with caplog.at_level("WARNING", logger="ftrecipes"):
        for family in ("llama_tied", "gpt2", "gemma2", "bloom"):
            load(tiny_models.save_folder(family, tmp_path / family))
    assert caplog.text == ""


def test_broken_weights_are_an_error(tmp_path):
    tiny_models.save_folder("llama", tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match="can not be loaded"):
        load(tmp_path)


def test_gguf_file(tmp_path):
    tokenizer = build_tokenizer("chatml", pad=None)
    expected = tiny_models.build("llama", vocab_size=len(tokenizer))
    path = write_gguf(expected, tokenizer, tmp_path / "tiny.gguf")
    source = resolve_source(str(path), None, trust_remote_code=False)
    assert (source.path, source.gguf_file) == (str(tmp_path), "tiny.gguf")
    assert (source.max_length, source.checkpoint_dtype) == (256, None)
    model = load(path)
    for name, parameter in expected.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter), name
    text = "the quick brown fox"
    assert load_tokenizer(source)(text).input_ids == tokenizer(text).input_ids
    with pytest.raises(ModelError, match=r"not yet on a \.gguf file"):
        load(path, QuantizationConfig(method="4bit"))


def test_a_type_that_packs_its_weights_anew_is_refused(tmp_path):
    config = RwkvConfig(
        vocab_size=16, hidden_size=32, attention_hidden_size=32, num_hidden_layers=2
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"rescales them(.|\n)*rwkv(.|\n)*8bit"):
        load(tmp_path, QuantizationConfig(method="4bit"))
