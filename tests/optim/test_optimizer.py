"""The optimizer against AdamW written out by hand."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from ftrecipes.config.errors import ModelError
from ftrecipes.config.schema import TrainConfig
from ftrecipes.optim.optimizer import build_optimizer


def test_updates_are_those_of_adamw_written_out():
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(5, dtype=torch.float64))
    expected, first, second = weight.detach().clone(), torch.zeros(5), torch.zeros(5)
    optimizer = build_optimizer(
        [("weight", weight)], replace(TrainConfig(), lr=0.1, weight_decay=0.5)
    )
    for step in range(1, 6):
        gradient = torch.randn(5, dtype=torch.float64)
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
