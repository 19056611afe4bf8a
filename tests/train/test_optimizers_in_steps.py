"""Each optimizer behind a step: gradients summed over micro-batches reach it in the right type."""

import copy
from dataclasses import replace

import pytest
import torch

from ftrecipes.config.schema import TrainConfig
from ftrecipes.optim.optimizer import build_optimizer
from ftrecipes.train.step import BatchLoss
from ftrecipes.train.update import build_updater
from tests.train.toy import CPU, FLOAT32, WORLD, Bigram, ToyRoute, micro_batch, random_rows
from tests.train.toy_step import PURE_BF16, step_on, weights

ROWS = random_rows([4, 9, 2, 7])
CONFIG = replace(TrainConfig(), lr=0.01, weight_decay=0.1, gradient_clipping=False)


def batch_loss_of(model, precision):
    return BatchLoss(model, ToyRoute(), precision, WORLD)


def summed_gradients(model, split, precision) -> dict[str, torch.Tensor]:
    """Those of each micro-batch alone, added up in float32 and rounded once."""
    sums = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in model.named_parameters()}
    batches = [micro_batch(ROWS, row_ids) for row_ids in split]
    num_tokens = sum(batch.num_tokens for batch in batches)
    for batch in batches:
        (batch_loss_of(model, precision).loss_sum(batch) / num_tokens).backward()
        for name, parameter in model.named_parameters():
            sums[name] += parameter.grad.float()
        model.zero_grad()
    return {name: value.to(model.head.weight.dtype) for name, value in sums.items()}


@pytest.mark.parametrize(
    ("optimizer", "precision"),
    [
        ("adamw", FLOAT32),
        ("adamw", PURE_BF16),
        ("anyprecision", PURE_BF16),
        ("adamw_8bit", FLOAT32),
        ("adamw_8bit", PURE_BF16),
    ],
)
@pytest.mark.parametrize("split", [[(0, 1, 2, 3)], [(0,), (1, 2), (3,)]])
def test_a_step_is_the_optimizer_on_the_summed_gradient(optimizer, precision, split):
    config = replace(CONFIG, optimizer=optimizer)
    # A head of 8 x 600 elements, so that its moments have 8 bits where they can.
    model = Bigram(vocab_size=600).to(getattr(torch, precision.trainable))
    model_ref = copy.deepcopy(model)
    settings = {"config": config, "precision": precision, "device": CPU}
    updater = build_updater(build_optimizer(model.named_parameters(), config), **settings)
    expected = build_optimizer(model_ref.named_parameters(), config)
    for step in (1, 2):
        gradients = summed_gradients(model, split, precision)
        batches = [micro_batch(ROWS, row_ids) for row_ids in split]
        arguments = (batch_loss_of(model, precision), updater, batches)
        step_on(*arguments, step=step, lr=config.lr)
        for name, parameter in model_ref.named_parameters():
            parameter.grad = gradients[name]
        expected.step()
        expected.zero_grad(set_to_none=True)
    # In bfloat16 the micro-batches' own gradients are rounded where they leave the graph, before
    # they are summed: a few updates land on the neighbouring number.
    close = {"rtol": 1e-5, "atol": 1e-7} if precision is FLOAT32 else {"rtol": 0.008, "atol": 2e-3}
    torch.testing.assert_close(weights(model), weights(model_ref), **close)
    assert all(p.grad is None for p in model.parameters())
