"""Blocks that are computed again: the same gradients, twice the forwards, once the memory."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from ftrecipes.config.errors import ConfigError
from ftrecipes.model.adapters import canonical_name
from ftrecipes.parallel.recompute import recompute
from ftrecipes.parallel.wrap import blocks_of, lora_aware_wrap_policy
from tests import reference, tiny_models

ROWS = tiny_models.random_rows((7, 5, 9))


def build(dropout: float, *, recomputing: bool) -> nn.Module:
    settings = LoraConfig(
        r=4, target_modules=["q_proj", "down_proj"], lora_dropout=dropout, task_type="CAUSAL_LM"
    )
    model = get_peft_model(tiny_models.build("llama", attention_dropout=dropout), settings)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
    if recomputing:
        recompute(model, blocks_of(lora_aware_wrap_policy(model)))
    return model.train()


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    torch.manual_seed(2)
    reference.backward_step(model, ROWS)
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {canonical_name(name): grad for name, grad in grads.items()}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_same_gradients_and_random_numbers(dropout):
    expected = gradients(build(dropout, recomputing=False))
    found = gradients(build(dropout, recomputing=True))
    assert found.keys() == expected.keys()
    assert all(found[name].equal(expected[name]) for name in found)
    assert len(found) == 2 * 2 * 2


def test_a_block_is_computed_twice_a_row_and_keeps_only_its_input():
    """C05: once in the forward, once in the backward."""
    model, calls = build(0.0, recomputing=True), []
    for block in model.get_base_model().model.layers:
        block.mlp.register_forward_pre_hook(lambda module, _: calls.append(module))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        loss = reference.row_loss_sum(model, ROWS[0])
    widest = model.config.intermediate_size
    assert [t for t in kept if t.shape[-1:] == (widest,) and t.dim() == 3] == []
    loss.backward()
    assert len(calls) == 2 * 2


def test_a_block_in_several_places_stays_one():
    model = tiny_models.build("llama")
    model.model.layers[1] = model.model.layers[0]
    expected = gradients(model)
    recompute(model, [model.model.layers[0]])
    assert model.model.layers[0] is model.model.layers[1]
    found = gradients(model)
    assert all(found[name].equal(expected[name]) for name in expected)


def test_two_kinds_of_checkpointing_are_refused():
    model = build(0.0, recomputing=False)
    model.get_base_model().activation_checkpointing_enable()
    with pytest.raises(ConfigError, match="can not both be on"):
        recompute(model, blocks_of(lora_aware_wrap_policy(model)))
