"""What is trained: its dtype, its number, its names."""

from dataclasses import replace

import pytest
import torch

from ftrecipes.config.schema import LoraConfig, QuantizationConfig, RunConfig
from ftrecipes.model.adapters import (
    add_adapters,
    canonical_name,
    train_everything,
    trainable_parameters,
    trained_share,
)
from tests import reference, tiny_models
from tests.model.loading import FLOAT32, load
from tests.model.routes import backward_step, route_of

ROWS = tiny_models.random_rows([17, 9, 9])


def test_adapters_have_the_trainable_dtype_on_a_bfloat16_base():
    model = add_adapters(
        tiny_models.build("llama").to(torch.bfloat16),
        RunConfig(lora=LoraConfig(r=4)),
        replace(FLOAT32, base="bfloat16", compute="bfloat16", autocast=True),
    )
    dtypes = {p.requires_grad: set() for p in model.parameters()}
    for parameter in model.parameters():
        dtypes[parameter.requires_grad].add(parameter.dtype)
    assert dtypes == {True: {torch.float32}, False: {torch.bfloat16}}
    route = route_of(model, ROWS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = backward_step(model, route, [ROWS])
    # 8 bits of weights and activations on the mean of some token losses
    assert loss == pytest.approx(reference.evaluate(tiny_models.build("llama"), ROWS), rel=0.02)
    assert all(g.dtype == torch.float32 for g in reference.gradients(model).values())


@pytest.mark.parametrize("base", ["float32", "bfloat16"])
@pytest.mark.parametrize("trainable", ["float32", "bfloat16", "float16"])
def test_what_is_trained_has_its_dtype_whatever_peft_prefers(base, trainable):
    """PEFT would keep adapters in float32; --pure_bf16 and --mixed_precision no ask for another."""
    precision = replace(FLOAT32, base=base, trainable=trainable)
    plain = tiny_models.build("llama").to(getattr(torch, base))
    model = add_adapters(
        plain, RunConfig(lora=LoraConfig(r=4, modules_to_save=["lm_head"])), precision
    )
    assert {p.dtype for _, p in trainable_parameters(model)} == {getattr(torch, trainable)}
    whole = train_everything(tiny_models.build("gpt2").to(getattr(torch, base)), precision)
    assert {p.dtype for p in whole.parameters()} == {getattr(torch, trainable)}


def test_train_everything():
    model = tiny_models.build("llama_tied").requires_grad_(False)
    train_everything(model, FLOAT32)
    assert all(p.requires_grad for p in model.parameters())
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_the_trained_share_counts_packed_weights_at_their_number(tmp_path):
    folder = tiny_models.save_folder("llama", tmp_path)
    total = sum(p.numel() for p in load(folder).parameters())
    model = load(folder, QuantizationConfig(method="4bit"))
    assert sum(p.numel() for p in model.parameters()) < total / 1.5
    model = add_adapters(model, RunConfig(lora=LoraConfig(r=4, target_modules=["q_proj"])), FLOAT32)
    trained = 2 * 4 * (32 + 32)
    total += trained
    share = f"{trained / total:.2%}"
    assert trained_share(model) == f"{trained:,} of {total:,} parameters are trained ({share})"


def test_canonical_names():
    name = "_orig_mod.model.layers.0._checkpoint_wrapped_module.mlp._fsdp_wrapped_module.up.weight"
    assert canonical_name(name) == "model.layers.0.mlp.up.weight"
    assert canonical_name("layers.0.up._checkpoint_wrapped_module") == "layers.0.up"
    assert canonical_name("layers.0.up.") == "layers.0.up."
