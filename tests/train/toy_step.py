"""Take one step of the toy model, and see what it did to the weights."""

import math
from dataclasses import replace

import torch

from ftrecipes.config.schema import TrainConfig
from ftrecipes.train.step import BatchLoss, train_step
from ftrecipes.train.update import build_updater
from tests.train.toy import CPU, FLOAT32, WORLD, ToyRoute, micro_batch, totals_of

HALF = replace(FLOAT32, base="float16", compute="float16", autocast=True, loss_scaling=True)
PURE_BF16 = replace(FLOAT32, base="bfloat16", trainable="bfloat16", compute="bfloat16")
NO_CLIPPING = replace(TrainConfig(), gradient_clipping=False)
SOURCES = [f"rows.jsonl line {line}" for line in range(1, 100)]


def machine(model, *, config=NO_CLIPPING, precision=FLOAT32):
    """Loss and updater over plain SGD, whose update is the gradient itself."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    batch_loss = BatchLoss(model, ToyRoute(), precision, WORLD)
    return batch_loss, build_updater(optimizer, config=config, precision=precision, device=CPU)


def take_step(model, rows, split, *, lr=1.0, step=1, **settings):
    """One step over `split`, the row ids of each micro-batch."""
    batches = [micro_batch(rows, row_ids) for row_ids in split]
    batch_loss, updater = machine(model, **settings)
    return step_on(batch_loss, updater, batches, step=step, lr=lr)


def step_on(batch_loss, updater, batches, *, step=1, lr=1.0, sources=SOURCES):
    """One step of one process over these micro-batches."""
    totals = totals_of(batches)
    return train_step(
        batch_loss, updater, batches, totals=totals, step=step, lr=lr, sources=sources
    )


def weights(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def moved(before, model):
    """What SGD with a learning rate of 1 subtracted: the gradient that was applied."""
    return {name: before[name] - value for name, value in weights(model).items()}


def total_norm(gradients):
    return math.sqrt(sum(value.double().square().sum().item() for value in gradients.values()))
