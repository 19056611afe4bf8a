"""A model is found and judged by its small files; every mistake says what to do."""

import json
import shutil
import socket

import pytest
import torch
from transformers import BertConfig, T5Config

from ftrecipes.config.errors import ModelError
from ftrecipes.model import resolve
from ftrecipes.model.load import sketch_model
from ftrecipes.model.resolve import (
    check_vocabulary,
    identity,
    load_tokenizer,
    resolve_source,
)
from tests import tiny_models
from tests.tiny_tokenizers import build_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tokenizer = build_tokenizer("chatml", pad=None)
    return tiny_models.save_folder("llama", tmp_path_factory.mktemp("llama"), tokenizer=tokenizer)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Whatever tries to reach the hub fails at once."""

    def refuse(*args, **kwargs):
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def resolve_name(name, tokenizer=None, *, trust=False):
    return resolve_source(str(name), tokenizer, trust_remote_code=trust)


def test_folder(folder):
    source = resolve_name(folder)
    assert (source.name, source.path) == (str(folder), str(folder))
    assert source.config.model_type == "llama"
    assert source.max_length == 256
    assert source.checkpoint_dtype == "float32"
    tokenizer = load_tokenizer(source)
    assert tokenizer.pad_token is None  # none is needed
    assert tokenizer("the cat").input_ids
    assert resolve_name(f"{folder}/").config.model_type == "llama"


@pytest.mark.parametrize(
    ("family", "limit"), [("gpt2", 256), ("opt", 256), ("bloom", None), ("mamba", None)]
)
def test_longest_row(family, limit, tmp_path):
    tiny_models.build(family).config.save_pretrained(tmp_path)
    assert resolve_name(tmp_path).max_length == limit


def test_checkpoint_dtype(tmp_path):
    tiny_models.build("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    assert resolve_name(tmp_path).checkpoint_dtype == "bfloat16"


def test_another_tokenizer(folder, tmp_path):
    build_tokenizer("llama3").save_pretrained(tmp_path)
    tokenizer = load_tokenizer(resolve_name(folder, str(tmp_path)))
    assert tokenizer.eos_token == "<|eot_id|>"


def write_config(folder, **settings):
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def test_mistakes_name_the_remedy(tmp_path, folder):
    def fails(name, match, **keywords):
        with pytest.raises(ModelError, match=match) as caught:
            resolve_name(name, **keywords)
        assert "do: " in str(caught.value)

    fails(tmp_path / "absent", "does not exist")
    fails("./absent", "does not exist")
    fails("a/b/c", "does not exist")
    fails(tmp_path, "no config.json")
    fails(folder / "config.json", "is a file")
    (tmp_path / "x.gguf").touch()
    fails(tmp_path, "give the file: .*x.gguf")
    (tmp_path / "adapter_config.json").touch()
    fails(tmp_path, "adapter's base model")
    fails(write_config(tmp_path, model_type="nonsense"), "can not be loaded")
    fails(write_config(tmp_path), "can not be loaded")
    remote = {"AutoConfig": "conf.C", "AutoModelForCausalLM": "model.M"}
    fails(write_config(tmp_path, model_type="own", auto_map=remote), "--trust_remote_code")
    T5Config().save_pretrained(tmp_path)
    fails(tmp_path, "of type t5")
    (tmp_path / "config.json").write_text('{"model_type":')
    fails(tmp_path, "can not be loaded")


@pytest.mark.parametrize(
    "changes",
    [
        {"num_attention_heads": 0},
        {"num_attention_heads": "four"},
        {"dtype": "float99"},
        {"rope_parameters": []},
        {"vocab_size": None},
        {"hidden_size": {}},
    ],
    ids=str,
)
def test_wrong_values_in_a_config(folder, tmp_path, changes):
    """They fail wherever they are first used, each with another exception."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    settings = json.loads((folder / "config.json").read_text())
    write_config(tmp_path, **settings | changes)
    with pytest.raises(ModelError, match="do: "):
        sketch_model(resolve_name(tmp_path))


@pytest.mark.parametrize("content", ["[]", "{", "7"])
def test_a_broken_tokenizer(folder, tmp_path, content):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(ModelError, match=r"The tokenizer .* can not be loaded"):
        load_tokenizer(resolve_name(tmp_path))


def test_names_that_no_path_can_have(folder):
    for name in ("a" * 5000, "/" + "a" * 5000):
        with pytest.raises(ModelError, match="File name too long"):
            resolve_name(name)
        with pytest.raises(ModelError, match="File name too long"):
            resolve_name(folder, name)


def test_a_copy_of_a_model_is_the_same_model_and_another_is_not(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    assert identity(resolve_name(folder)) == identity(resolve_name(tmp_path / "copy"))
    tiny_models.save_folder("llama", tmp_path / "other", vocab_size=50)
    assert identity(resolve_name(folder)) != identity(resolve_name(tmp_path / "other"))
    weights = tmp_path / "copy" / "model.safetensors"
    weights.write_bytes(weights.read_bytes() + b" ")
    assert identity(resolve_name(folder)) != identity(resolve_name(tmp_path / "copy"))


def test_unreachable_hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = (
        r"nobody/nothing can not be loaded(.|\n)*no folder nobody/nothing here(.|\n)*its folder"
    )
    with pytest.raises(ModelError, match=message):
        resolve_name("nobody/nothing")


def test_folder_without_tokenizer(tmp_path):
    tiny_models.save_folder("llama", tmp_path)
    with pytest.raises(ModelError, match=r"The tokenizer .* can not be loaded"):
        load_tokenizer(resolve_name(tmp_path))


def test_ids_beyond_the_embedding():
    model = tiny_models.build("llama", vocab_size=50)
    check_vocabulary(49, model)
    with pytest.raises(ModelError, match=r"token id 50(.|\n)*from 0 to 49"):
        check_vocabulary(50, model)


def test_encoder_types_are_left_to_the_probe(tmp_path):
    """transformers lists BERT as a causal model; only its forward shows that it is not."""
    BertConfig().save_pretrained(tmp_path)
    assert resolve_name(tmp_path).config.model_type == "bert"


def test_first_lines_of_a_long_message():
    error = ValueError("one\n\n two \nthree")
    assert resolve._first_lines(error) == "one two"
    assert resolve._first_lines(ValueError()) == "ValueError"
