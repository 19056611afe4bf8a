"""The optimizers against AdamW written out by hand, and what weight decay acts on."""

from dataclasses import replace

import peft
import pytest
import torch
from torch import nn

from ftrecipes.config.errors import ConfigError, ModelError
from ftrecipes.config.schema import TrainConfig
from ftrecipes.model.adapters import trainable_parameters
from ftrecipes.optim.optimizer import build_optimizer, check_device, decays
from tests import tiny_models


def test_updates_are_those_of_adamw_written_out():
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(5, 2, dtype=torch.float64))
    expected, first, second = weight.detach().clone(), torch.zeros(5, 2), torch.zeros(5, 2)
    optimizer = build_optimizer(
        [("weight", weight)], replace(TrainConfig(), lr=0.1, weight_decay=0.5)
    )
    for step in range(1, 6):
        gradient = torch.randn(5, 2, dtype=torch.float64)
        weight.grad = gradient.clone()
        optimizer.step()
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        expected = expected * (1 - 0.1 * 0.5)
        expected = expected - 0.1 * (first / (1 - 0.9**step)) / (
            (second / (1 - 0.999**step)).sqrt() + 1e-8
        )
    # float64 on both sides, five updates.
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-10, atol=1e-12)


def test_only_what_is_trainable_is_held():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    optimizer = build_optimizer(model.named_parameters(), TrainConfig())
    assert optimizer.param_groups[0]["param_names"] == ["1.weight", "1.bias"]


def test_nothing_trainable_is_an_error():
    model = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(ModelError, match="Nothing is trainable"):
        build_optimizer(model.named_parameters(), TrainConfig())


# --- weight decay
def groups_of(model) -> list[tuple[float, list[str]]]:
    config = replace(TrainConfig(), weight_decay=0.1)
    groups = build_optimizer(trainable_parameters(model), config).param_groups
    return [(group["weight_decay"], group["param_names"]) for group in groups]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_norms_and_biases_of_a_model_do_not_decay(family):
    model = tiny_models.build(family)
    (decay, decayed), (no_decay, spared) = groups_of(model)
    assert (decay, no_decay) == (0.1, 0.0)
    shapes = {name: value.dim() for name, value in model.named_parameters()}
    assert {shapes[name] for name in decayed} == {2}
    assert {shapes[name] for name in spared} == {1}
    assert len(decayed) + len(spared) == len(shapes)


@pytest.mark.parametrize("rank", [1, 4])
def test_the_factors_of_lora_decay_and_the_magnitudes_of_dora_do_not(rank):
    settings = peft.LoraConfig(r=rank, target_modules=["q_proj"], use_dora=True)
    adapted = peft.get_peft_model(tiny_models.build("llama"), settings)
    (_, decayed), (_, spared) = groups_of(adapted)
    assert {name.split(".")[-3] for name in decayed} == {"lora_A", "lora_B"}
    assert {name.split(".")[-3] for name in spared} == {"lora_magnitude_vector"}
    assert len(decayed) == 2 * len(spared) == 2 * 2


def test_the_factors_of_ia3_do_not_decay():
    settings = peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=[])
    adapted = peft.get_peft_model(tiny_models.build("llama"), settings)
    [(decay, spared)] = groups_of(adapted)
    assert (decay, len(spared)) == (0.0, 4)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("model.embed_tokens.weight", (9, 4), True),
        ("experts.gate_up_proj", (2, 9, 4), True),
        ("experts.gate_up_proj_bias", (2, 9), False),
        ("self_attn.q_norm.weight", (4, 8), False),  # a norm for each head, as of Command R
        ("mixer.A_log", (8, 4), False),
        ("mixer.conv1d.weight", (8, 1, 4), True),
        ("attention.time_mix_key", (1, 1, 8), False),
        ("transformer.wte.weight", (8, 8), True),
    ],
)
def test_what_decays_by_name_and_shape(name, shape, expected):
    assert decays(name, nn.Parameter(torch.zeros(shape))) is expected


def test_without_decay_the_parameters_stay_in_one_group_in_their_order():
    model = tiny_models.build("llama")
    [group] = build_optimizer(model.named_parameters(), TrainConfig()).param_groups
    assert group["param_names"] == [name for name, _ in model.named_parameters()]


# --- 8-bit moments
def follow(config: TrainConfig, *, steps: int, shape: tuple[int, ...]) -> tuple:
    """A weight after noisy descent to a target, and torch's AdamW with float32 moments on it."""
    torch.manual_seed(0)
    target, weight = torch.randn(shape), nn.Parameter(torch.zeros(shape))
    weight_ref = nn.Parameter(weight.detach().clone())
    optimizer = build_optimizer([("weight", weight)], config)
    optimizer_ref = torch.optim.AdamW(
        [weight_ref], lr=config.lr, weight_decay=config.weight_decay, eps=1e-8
    )
    for _ in range(steps):
        noise = 0.3 * torch.randn(shape)
        for parameter, one in ((weight, optimizer), (weight_ref, optimizer_ref)):
            parameter.grad = parameter.detach() - target + noise
            one.step()
            one.zero_grad(set_to_none=True)
    return weight.detach(), weight_ref.detach(), optimizer.state[weight]


def test_eight_bit_moments_follow_those_of_32_bits():
    config = replace(TrainConfig(), optimizer="adamw_8bit", lr=0.01, weight_decay=0.1)
    weight, weight_ref, state = follow(config, steps=60, shape=(64, 80))
    assert state["state1"].dtype == state["state2"].dtype == torch.uint8
    # 8 bits of a moment are good to a few percent, so is the way: 0.01 a step, 60 steps.
    moved = weight_ref.norm()
    assert (weight - weight_ref).norm() < 0.05 * moved
    assert moved > 0.2 * weight_ref.numel() ** 0.5


def test_small_parameters_keep_moments_of_32_bits():
    config = replace(TrainConfig(), optimizer="adamw_8bit", lr=0.01, weight_decay=0.1)
    weight, weight_ref, state = follow(config, steps=20, shape=(63, 65))
    assert state["state1"].dtype == torch.float32
    # The same float32 numbers in another order of operations.
    torch.testing.assert_close(weight, weight_ref, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "device_type"),
    [("adamw_8bit", "mps"), ("paged_adamw_8bit", "cpu"), ("paged_adamw_8bit", "xpu")],
)
def test_a_device_without_it_is_named(optimizer, device_type):
    with pytest.raises(ConfigError, match=rf"--optimizer {optimizer}(.|\n)*got: {device_type}"):
        check_device(optimizer, device_type)


def test_where_each_runs():
    for device_type in ("cpu", "cuda", "mps", "xpu"):
        check_device("adamw", device_type)
        check_device("anyprecision", device_type)
    check_device("adamw_8bit", "cpu")
    check_device("paged_adamw_8bit", "cuda")
