"""The loop: what it trains, when it evaluates, where it stops."""

import copy
import json
import math
from dataclasses import asdict

import pytest
import torch

from ftrecipes.train.state import TrainState
from tests import reference
from tests.train.toy import (
    Bigram,
    ToyLoader,
    plan_of,
    random_rows,
)
from tests.train.toy_run import VALIDATION, Run, weights


def test_whole_run_equals_the_row_by_row_reference(tmp_path):
    # 7 micro-batches of 2 rows and an accumulation of 4: windows of 4 and 3 in each epoch.
    rows = random_rows([2, 30, 5, 0, 8, 1, 17, 4, 9, 12, 3, 6, 25, 2])
    plan = plan_of(14, batch_size=2, accumulation=4, num_epochs=3)
    run = Run(
        tmp_path,
        loader=ToyLoader(rows, plan),
        num_epochs=3,
        weight_decay=0.1,
        gradient_clipping_threshold=0.5,
        warmup_steps=2,
    )
    model_ref = copy.deepcopy(run.model)
    state = run.train()
    cosine = [0.5 * (1 + math.cos(math.pi * done / 4)) for done in range(4)]
    rates = [0.05 * factor for factor in [1 / 3, 2 / 3, *cosine]]
    before = reference.evaluate(Bigram(), VALIDATION)
    losses = reference.train(
        model_ref,
        [[rows[row] for batch in step for row in batch] for epoch in plan for step in epoch],
        lr=rates.__getitem__,
        weight_decay=0.1,
        max_norm=0.5,
    )
    # float32, 6 updates: sums in another order.
    assert run.column("step", "loss") == pytest.approx(losses, abs=1e-5)
    assert run.column("step", "lr") == pytest.approx(rates, rel=1e-9)
    torch.testing.assert_close(weights(run.model), weights(model_ref), rtol=1e-4, atol=1e-5)
    assert state.first_eval_loss == pytest.approx(before, abs=1e-6)
    after = reference.evaluate(model_ref, VALIDATION)
    assert state.last_eval_loss == pytest.approx(after, abs=1e-5)
    assert (state.step, state.updates, state.tokens) == (6, 6, 3 * 124)
    assert state.positions == 3 * (124 + 28)


def test_windows_never_reach_over_an_epoch(tmp_path):
    loader = ToyLoader(random_rows([4] * 7), plan_of(7, batch_size=1, accumulation=4, num_epochs=2))
    run = Run(tmp_path, loader=loader, num_epochs=2)
    run.train()
    assert run.column("step", "rows") == [4, 3, 4, 3]
    assert run.column("step", "epoch") == [1, 1, 2, 2]


@pytest.mark.parametrize("accumulation", [1, 4])
def test_step_scheduler_follows_epochs_whatever_the_accumulation(tmp_path, accumulation):
    loader = ToyLoader(
        random_rows([4] * 8),
        plan_of(8, batch_size=1, accumulation=accumulation, num_epochs=2),
    )
    run = Run(tmp_path, loader=loader, num_epochs=2, scheduler="step", gamma=0.5, lr=0.1)
    run.train()
    steps = 8 // accumulation
    assert run.column("step", "lr") == pytest.approx([0.1] * steps + [0.05] * steps)


@pytest.mark.parametrize(
    ("max_train_step", "steps", "epochs"),
    [(0, 8, [1, 2]), (1, 1, [1]), (4, 4, [1]), (5, 5, [1, 2]), (8, 8, [1, 2]), (50, 8, [1, 2])],
)
def test_max_train_step_stops_cleanly(tmp_path, max_train_step, steps, epochs):
    loader = ToyLoader(random_rows([4] * 4), plan_of(4, batch_size=1, accumulation=1, num_epochs=2))
    run = Run(tmp_path, loader=loader, num_epochs=2, max_train_step=max_train_step)
    state = run.train()
    assert state.step == state.updates == steps
    assert run.column("step", "step") == list(range(1, steps + 1))
    assert run.column("epoch", "epoch") == epochs
    assert run.column("evaluation", "step")[-1] == steps
    whole = [4 * epoch for epoch in (1, 2) if 4 * epoch <= steps]
    assert state.epoch == len(whole)
    assert state.step_in_epoch == steps - sum(whole[-1:])


def test_max_train_step_counts_optimizer_steps_not_micro_batches(tmp_path):
    loader = ToyLoader(random_rows([4] * 16), plan_of(16, batch_size=1, accumulation=4))
    run = Run(tmp_path, loader=loader, max_train_step=2)
    assert run.train().updates == 2
    assert run.column("step", "rows") == [4, 4]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0, 3, 6]),
        ({"eval_every_steps": 2}, [0, 2, 4, 6]),
        ({"eval_every_steps": 3}, [0, 3, 6]),
        ({"eval_every_steps": 4}, [0, 4, 6]),
        ({"eval_every_steps": 100}, [0, 6]),
        ({"max_train_step": 5}, [0, 3, 5]),
        ({"max_train_step": 3}, [0, 3]),
    ],
)
def test_evaluations_come_as_asked_and_never_twice_after_a_step(tmp_path, settings, expected):
    loader = ToyLoader(random_rows([4] * 3), plan_of(3, batch_size=1, accumulation=1, num_epochs=2))
    run = Run(tmp_path, loader=loader, num_epochs=2, **settings)
    state = run.train()
    assert run.column("evaluation", "step") == expected
    losses = run.column("evaluation", "loss")
    assert state.first_eval_loss == losses[0]
    assert state.last_eval_loss == losses[-1]
    assert state.best_eval_loss == min(losses[1:])
    assert state.best_eval_step == expected[losses.index(min(losses[1:]))]


def test_best_evaluation_is_the_lowest_since_training_began(tmp_path, caplog):
    loader = ToyLoader(random_rows([9] * 4), plan_of(4, batch_size=2, accumulation=1, num_epochs=3))
    run = Run(tmp_path, loader=loader, num_epochs=3, lr=5.0, scheduler="constant")
    state = run.train()
    first, *losses = run.column("evaluation", "loss")
    assert first < min(losses) == state.best_eval_loss, "such a learning rate makes it worse"
    assert state.best_eval_step == 2 * (1 + losses.index(min(losses)))
    assert "Training did not lower the evaluation loss" in caplog.text


def test_without_a_validation_split_nothing_is_evaluated(tmp_path):
    loader = ToyLoader(random_rows([4] * 3), plan_of(3, batch_size=2, accumulation=1))
    run = Run(tmp_path, loader=loader, validation=None)
    state = run.train()
    assert run.lines("evaluation") == []
    assert (state.first_eval_loss, state.last_eval_loss, state.step) == (None, None, 2)


def dropout_run(folder, *, dropout=0.3, **settings):
    folder.mkdir()
    loader = ToyLoader(random_rows([9] * 6), plan_of(6, batch_size=2, accumulation=1, num_epochs=2))
    # As transformers' from_pretrained leaves a model: in eval mode.
    model = Bigram(dropout=dropout).eval()
    run = Run(folder, loader=loader, model=model, num_epochs=2, **settings)
    torch.manual_seed(7)
    run.train()
    return run.column("step", "loss")


def test_dropout_repeats_with_the_seed_and_evaluation_does_not_move_it(tmp_path):
    straight = dropout_run(tmp_path / "a")
    assert dropout_run(tmp_path / "b") == straight
    assert dropout_run(tmp_path / "c", eval_every_steps=1) == straight
    assert dropout_run(tmp_path / "d", validation=None) == straight
    assert dropout_run(tmp_path / "e", dropout=0.0) != straight


class Interrupted(ToyLoader):
    """Raises what Ctrl-C raises while the rows of the given step are fetched."""

    calls_left = 7

    def micro_batch(self, row_ids):
        self.calls_left -= 1
        if self.calls_left == 0:
            raise KeyboardInterrupt
        return super().micro_batch(row_ids)


def test_interrupted_run_goes_on_from_its_state_with_the_same_bits(tmp_path):
    rows = random_rows([9] * 8)
    plan = plan_of(8, batch_size=2, accumulation=1, num_epochs=3)
    straight = Run(tmp_path, loader=ToyLoader(rows, plan), num_epochs=3, validation=None)
    straight.train()
    losses, epoch_losses = straight.column("step", "loss"), straight.column("epoch", "loss")

    broken = Run(tmp_path, loader=Interrupted(rows, plan), num_epochs=3, validation=None)
    with pytest.raises(KeyboardInterrupt):
        broken.train()
    assert (broken.state.step, broken.state.epoch, broken.state.step_in_epoch) == (6, 1, 2)
    assert broken.lines()[-1]["reason"].startswith("KeyboardInterrupt")
    first = broken.column("step", "loss")
    # The state goes through JSON, as it would through a file.
    broken.state = TrainState(**json.loads(json.dumps(asdict(broken.state))))
    broken.train()
    assert first + broken.column("step", "loss") == losses
    torch.testing.assert_close(weights(broken.model), weights(straight.model), rtol=0, atol=0)
    assert broken.column("epoch", "loss") == epoch_losses[1:]
