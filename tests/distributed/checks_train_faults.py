"""Steps in which ranks differ: labels that do not count, numbers that are not finite, stops."""

import logging
import signal
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ftrecipes.config.errors import TrainingError
from ftrecipes.model.forward import causal_lm
from ftrecipes.runtime.signals import Stopped
from ftrecipes.train.evaluate import evaluate
from ftrecipes.train.loop import train
from ftrecipes.train.state import TrainState
from ftrecipes.train.step import add_gradients, train_step
from ftrecipes.train.update import gradient_norm, update_weights
from tests import tiny_models
from tests.distributed.sharded import Case
from tests.distributed.training import VALIDATION, Plan, whole_weights
from tests.train.toy import micro_batch, totals_of
from tests.train.toy_step import HALF

FULL = Plan(Case(peft=()))
POISON = 90


def is_last() -> bool:
    return dist.get_rank() == dist.get_world_size() - 1


def step_on(training, rows, batches, *, lr=0.1):
    """One step over micro-batches of all ranks, given as row ids."""
    world = training.batch_loss.world
    every = [micro_batch(rows, ids) for ids in batches]
    sources = [f"row {number}" for number in range(len(rows))]
    own = every[world.rank :: world.size]
    totals, stop = totals_of(every), training.stop
    return train_step(
        training.batch_loss,
        training.updater,
        own,
        totals=totals,
        step=1,
        lr=lr,
        sources=sources,
        stop=stop,
    )


def masked(row):
    return row[0], [-100] * len(row[0])


def check_labels_that_do_not_count(folder):
    """M15: on rank 0 only, on all ranks; X05: 1 label there and many on the others."""
    size = dist.get_world_size()
    rows = tiny_models.random_rows([30] * 2 * size, masked=0.0)
    rows[0] = rows[0][0], [*masked(rows[0])[1][:-1], rows[0][1][-1]]
    one_label = [(rank,) for rank in range(size)]
    rows += [masked(row) for row in rows]
    masked_first = [(2 * size,), *((size + rank,) for rank in range(1, size))]
    nothing = [(2 * size + rank,) for rank in range(size)]
    found = []
    for sharded in (True, False):
        with FULL.open(folder / f"masked{dist.get_rank()}", sharded=sharded) as training:
            training.batch_loss.model.train()
            for batches in (one_label, masked_first, nothing, one_label):
                before = whole_weights(training)
                result = step_on(training, rows, batches, lr=1e-3)
                weights = whole_weights(training)
                found.append((result, weights))
                moved = any(not torch.equal(before[n], weights[n]) for n in before)
                assert moved == (batches is not nothing)
                assert (result.loss is None) == (batches is nothing)
    for (result, weights), (expected, expected_weights) in zip(found[:4], found[4:], strict=True):
        assert (result.note, result.num_tokens) == (expected.note, expected.num_tokens)
        if expected.loss is not None:
            torch.testing.assert_close(result.loss, expected.loss, rtol=1e-5, atol=0)
            torch.testing.assert_close(result.grad_norm, expected.grad_norm, rtol=1e-5, atol=0)
        torch.testing.assert_close(weights, expected_weights, rtol=1e-5, atol=1e-5)
    assert found[0][0].num_tokens == 1 + 29 * (size - 1)


def check_a_loss_that_is_not_finite_on_one_rank(folder):
    """All ranks raise the same error, which names the row of the last."""

    def poison(model):
        with torch.no_grad():
            causal_lm(model).get_input_embeddings().weight[POISON] = float("nan")

    size = dist.get_world_size()
    rows = [([7 + row, 8, 9], [-100, 8, 9]) for row in range(size)]
    rows[-1] = ([5, POISON, 9], [-100, 8, 9])
    plan = replace(FULL, rows=rows[:1], prepare=poison)
    with plan.open(folder / "nan", sharded=True) as training:
        before = whole_weights(training)
        with pytest.raises(TrainingError, match=rf"loss is not finite(.|\n)*rows row {size - 1}\n"):
            step_on(training, rows, [(row,) for row in range(size)])
        after = whole_weights(training)
        torch.testing.assert_close(before, after, rtol=0, atol=0, equal_nan=True)


def check_float16_overflow_in_the_share_of_one_rank(folder):
    """No rank updates, and the scale is halved on each."""
    rows = tiny_models.random_rows([9, 12], masked=0.0)
    with replace(FULL, precision=HALF).open(folder / "half", sharded=True) as training:
        batches = [micro_batch(rows, (dist.get_rank() % 2,))]
        updater = training.updater
        for overflows in (True, False):
            add_gradients(training.batch_loss, updater, batches, num_tokens=100)
            if overflows and is_last():
                next(g for g in updater.gradients if g.numel()).view(-1)[0] = float("inf")
            updater.scaler.unscale_(updater.optimizer)
            before, scale = whole_weights(training), updater.scaler.get_scale()
            norm = gradient_norm(updater.gradients)
            assert norm.isfinite() == (not (overflows and is_last()))
            update_weights(updater, torch.full_like(norm, 1.0), lr=0.1)
            assert updater.scaler.get_scale() == (scale / 2 if overflows else scale)
            weights = whole_weights(training)
            assert any(not torch.equal(before[n], weights[n]) for n in before) != overflows


class AskedAt:
    """The last rank is asked to stop while step `step` runs."""

    def __init__(self, state, step):
        self.state, self.step = state, step

    @property
    def number(self):
        return signal.SIGTERM if is_last() and self.state.step >= self.step - 1 else 0


def check_a_stop_asked_of_one_rank_stops_all_after_the_same_step(folder):
    state = TrainState()
    stop = AskedAt(state, step=3)
    plan = replace(FULL, val_rows=VALIDATION)
    with plan.open(folder / "stop", sharded=True, state=state, stop=stop) as training:
        with pytest.raises(Stopped) as caught:
            train(training)
        assert (state.step, caught.value.number) == (3, signal.SIGTERM)
        with pytest.raises(Stopped):
            evaluate(training.batch_loss, training.val_loader, stop=stop)


def check_parameters_without_a_part_in_the_loss_are_told(folder):
    """As in one process; and nothing that is trained is left with a gradient of the trial."""

    def add_unused(model):
        torch.manual_seed(0)
        causal_lm(model).model.layers[1].unused = nn.Linear(4, 5)

    told = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logging.getLogger("ftrecipes").addHandler(handler)
    for sharded in (True, False):
        plan = replace(FULL, prepare=add_unused)
        with plan.open(folder / f"unused{dist.get_rank()}", sharded=sharded) as training:
            assert all(p.grad is None for p in training.updater.parameters)
    logging.getLogger("ftrecipes").removeHandler(handler)
    lines = [line for line in told if "have no part in the loss" in line]
    assert len(lines) == 2
    assert lines[0] == lines[1]
    assert "2 of 23 trained parameters" in lines[0]
    assert "layers.*.unused.bias" in lines[0]
