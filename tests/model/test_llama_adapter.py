"""LLaMA-Adapter against the formula of its paper (arXiv:2303.16199), written with hooks."""

import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from ftrecipes.config.errors import ModelError
from ftrecipes.model.adapters import trainable_parameters
from tests import reference, tiny_models
from tests.model.adapting import VIRTUAL, adapt, moved
from tests.model.routes import backward_step, route_of

ROWS = tiny_models.random_rows([17, 9, 9])
HEAD = 8  # width of a head in the tiny models


def heads(states: torch.Tensor) -> torch.Tensor:
    return states.view(*states.shape[:-1], -1, HEAD).transpose(1, 2)


def gated(query, key, value, gate) -> torch.Tensor:
    """gate * softmax(q k) v over the prompt's positions, heads side by side again."""
    repeat = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(repeat, dim=1) for x in (key, value))
    weights = (query @ key.transpose(2, 3) / HEAD**0.5).softmax(-1)
    return gate * (weights @ value).transpose(1, 2).flatten(2)


def llama_hook(prompt, gate):
    def hook(module, args, keywords, output):
        query = heads(module.q_proj(keywords["hidden_states"]))
        query, _ = apply_rotary_pos_emb(query, query, *keywords["position_embeddings"])
        key, value = heads(module.k_proj(prompt)), heads(module.v_proj(prompt))
        return (output[0] + module.o_proj(gated(query, key, value, gate)), *output[1:])

    return hook


def gpt2_hook(prompt, gate):
    def hook(module, args, keywords, output):
        states = args[0] if args else keywords["hidden_states"]
        query = heads(module.c_attn(states).split(32, dim=-1)[0])
        _, key, value = (heads(x) for x in module.c_attn(prompt).split(32, dim=-1))
        return (output[0] + gated(query, key, value, gate), *output[1:])  # PEFT: without c_proj

    return hook


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_loss_and_gradients_are_those_of_the_formula(family):
    model = moved(adapt("llama_adapter", family))
    plain = tiny_models.build(family).requires_grad_(False)
    layers = plain.transformer.h if family == "gpt2" else plain.model.layers
    own = {n: p.detach().clone().requires_grad_() for n, p in trainable_parameters(model)}
    assert len(own) == 4
    for index, layer in enumerate(layers):
        prompt, gate = (p for name, p in own.items() if f".{index}." in name)
        attention = layer.attn if family == "gpt2" else layer.self_attn
        hook = (gpt2_hook if family == "gpt2" else llama_hook)(prompt, gate)
        attention.register_forward_hook(hook, with_kwargs=True)
        assert prompt.shape == (1, VIRTUAL, 32)
    loss = sum(reference.row_loss_sum(plain, row) for row in ROWS) / reference.count_tokens(ROWS)
    gradients = dict(zip(own, torch.autograd.grad(loss, own.values()), strict=True))

    route = route_of(model, ROWS)
    assert backward_step(model, route, [ROWS]) == pytest.approx(loss.item(), rel=1e-5)
    for name, gradient in reference.gradients(model).items():
        assert gradients[name].abs().max() > 0, name
        torch.testing.assert_close(gradient, gradients[name], rtol=1e-3, atol=1e-6, msg=name)


def test_it_starts_at_the_base_model():
    model = adapt("llama_adapter")
    assert reference.evaluate(model, ROWS) == reference.evaluate(tiny_models.build("llama"), ROWS)


def test_only_the_upper_blocks():
    names = [name for name, _ in trainable_parameters(adapt("llama_adapter", adapter_layers=1))]
    assert len(names) == 2
    assert all("layers.1." in name for name in names)


def test_a_type_that_peft_does_not_know():
    with pytest.raises(ModelError, match=r"got: qwen2\n  expected: one of llama, mistral, gpt2"):
        adapt("llama_adapter", "qwen2")
