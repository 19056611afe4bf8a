"""What is decided while a model is built."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, XLMConfig, XLMWithLMHeadModel

from ftrecipes.config.errors import ModelError
from ftrecipes.config.parse import parse
from ftrecipes.config.precision import resolve_precision
from ftrecipes.model.resolve import load_tokenizer, resolve_source
from ftrecipes.runtime.world import start_world
from ftrecipes.train.assemble import build_model, rehearse
from ftrecipes.train.recomputing import checkpointed
from tests import tiny_families, tiny_models
from tests.tiny_tokenizers import build_tokenizer

BLOCKS = ["model.layers.0", "model.layers.1"]


def settings(folder, chat_file, tmp_path, **flags):
    needed = {"model_name": folder, "dataset": chat_file, "output_dir": tmp_path / "out"}
    return parse({name: str(value) for name, value in (needed | flags).items()}).config


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, []),
        ({"enable_fsdp": True}, BLOCKS),
        ({"activation_checkpointing": "full"}, BLOCKS),
        ({"activation_checkpointing": "selective"}, BLOCKS),
        ({"gradient_checkpointing": True}, BLOCKS),
        ({"enable_fsdp": True, "activation_checkpointing": "none"}, []),
        ({"activation_checkpointing.every_n": 2}, BLOCKS[:1]),
        ({"activation_checkpointing.target": '{"mlp": [-1]}'}, ["model.layers.1.mlp"]),
        ({"activation_checkpointing.target": "{}", "enable_fsdp": True}, []),
    ],
)
def test_blocks_are_computed_again_when_asked_or_shared(
    flags, expected, model_folder, chat_file, tmp_path
):
    config = settings(model_folder, chat_file, tmp_path, **flags)
    names = [one.name for one in checkpointed(config, tiny_models.build("llama"))]
    assert names == expected


@pytest.mark.parametrize(
    ("model_type", "names"),
    [
        ("gemma3", ["model.language_model.layers.0", "model.language_model.layers.1"]),
        ("git", ["git.encoder.layer.0", "git.encoder.layer.1"]),
        ("hrm_text", ["model.L_module.layers.0", "model.L_module.layers.1"]),
    ],
)
def test_blocks_that_see_are_not_counted(model_type, names, chat_file, tmp_path):
    flags = {"activation_checkpointing.target": '{"block": 2}'}
    config = settings("base", chat_file, tmp_path, **flags)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(tiny_families.small_config(model_type))
    for adapted in (model, get_peft_model(model, LoraConfig(target_modules="all-linear", r=2))):
        assert [one.name for one in checkpointed(config, adapted)] == names


@pytest.fixture
def xlm_folder(tmp_path):
    """A tiny XLM, which adds to a cache whether it is told to or not."""
    config = XLMConfig(vocab_size=96, emb_dim=16, n_layers=2, n_heads=2, causal=True, n_langs=1)
    folder = tmp_path / "xlm"
    XLMWithLMHeadModel(config).save_pretrained(folder)
    build_tokenizer("chatml").save_pretrained(folder)
    return folder


def test_a_model_that_can_not_compute_twice(xlm_folder, chat_file, tmp_path):
    """Its activations are kept, and to ask for the other is an error before weights are read."""
    for flags in ({"enable_fsdp": True}, {"activation_checkpointing": "full"}):
        config = settings(xlm_folder, chat_file, tmp_path, use_peft=True, **flags)
        source = resolve_source(str(xlm_folder), None, trust_remote_code=False)
        precision = resolve_precision(config, device_type="cpu", checkpoint_dtype="float32")
        tokenizer = load_tokenizer(source)

        def try_it(config=config, source=source, precision=precision, tokenizer=tokenizer):
            rehearse(config, source, precision, highest_id=5, tokenizer=tokenizer)

        if "enable_fsdp" in flags:
            try_it()
            model, _ = build_model(
                *(config, source, precision, start_world("cpu")), tokenizer=tokenizer
            )
            assert not [name for name, _ in model.named_parameters() if "checkpoint" in name]
        else:
            with pytest.raises(ModelError, match=r"XLMWithLMHeadModel\) can not be computed twice"):
                try_it()
