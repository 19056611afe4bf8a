"""Which evaluation is the best, when it is kept, and when training ends before its schedule."""

import math

import pytest
import torch

from ftrecipes.train.state import TrainState, count_evaluation
from tests.train.toy import Bigram, ToyLoader, ToyRoute, plan_of, random_rows
from tests.train.toy_run import Run, weights

# Rows that the validation rows have nothing to do with: learning them by heart makes those worse.
ROWS = random_rows([9] * 4, seed=3)


def learning_by_heart(folder, **settings) -> Run:
    """A run whose evaluation loss falls, and then rises: four steps an epoch."""
    plan = plan_of(4, batch_size=1, accumulation=1, num_epochs=settings.get("num_epochs", 1))
    usual = {"lr": 0.02, "scheduler": "constant", "warmup_steps": 0}
    return Run(folder, loader=ToyLoader(ROWS, plan), **usual | settings)


def test_training_ends_after_as_many_worse_evaluations_as_the_patience(tmp_path, caplog):
    (tmp_path / "whole").mkdir()
    whole = learning_by_heart(tmp_path / "whole", num_epochs=12, eval_every_steps=2)
    whole.train()
    _, *losses = whole.column("evaluation", "loss")
    best = losses.index(min(losses))
    assert 0 < best < len(losses) - 4, "the loss falls first, then rises"

    run = learning_by_heart(tmp_path, num_epochs=12, eval_every_steps=2, early_stopping_patience=3)
    with caplog.at_level("INFO", logger="ftrecipes"):
        state = run.train()
    ends = 2 * (best + 1 + 3)
    assert (state.step, state.stopped_early, state.best_eval_step) == (ends, True, 2 * (best + 1))
    assert run.column("evaluation", "loss")[1:] == losses[: best + 4]
    assert run.column("step", "loss") == whole.column("step", "loss")[:ends]
    [event] = run.lines("early_stop")
    assert (event["step"], event["best_step"], event["evaluations"]) == (ends, 2 * (best + 1), 3)
    assert event["best_loss"] == losses[best]
    assert f"better than loss {losses[best]:.4f} after step {2 * (best + 1)}" in caplog.text
    assert run.lines()[-1]["kind"] == "end"
    # The epoch in which it ended is averaged over the steps that were run.
    per_epoch = filter(None, (of_epoch(run, epoch) for epoch in range(1, 13)))
    means = [sum(own) / len(own) for own in per_epoch]
    assert run.column("epoch", "loss") == pytest.approx(means, rel=1e-6)


def of_epoch(run: Run, epoch: int) -> list[float]:
    """Losses of its steps, which have as many tokens each."""
    steps = [line for line in run.lines("step") if line["epoch"] == epoch]
    assert all(line["num_tokens"] == steps[0]["num_tokens"] for line in steps)
    return [line["loss"] for line in steps]


def test_at_the_end_of_an_epoch_too(tmp_path):
    run = learning_by_heart(tmp_path, num_epochs=12, lr=1.0, early_stopping_patience=2)
    state = run.train()
    assert state.stopped_early
    assert state.step == state.last_eval_step == state.best_eval_step + 2 * 4
    assert (state.epoch, state.step_in_epoch) == (state.step // 4, 0)
    assert run.column("epoch", "epoch") == list(range(1, state.epoch + 1))


def test_a_run_that_reaches_its_end_has_not_stopped_early(tmp_path):
    run = learning_by_heart(tmp_path, num_epochs=3, lr=5.0, early_stopping_patience=2)
    state = run.train()
    assert (state.worse_evals >= 2, state.step, state.stopped_early) == (True, 12, False)
    assert run.lines("early_stop") == []


def test_the_best_weights_so_far_are_handed_over_and_no_worse_ones(tmp_path):
    kept = []
    run = learning_by_heart(
        tmp_path,
        num_epochs=6,
        eval_every_steps=3,
        save_best=lambda numbers: kept.append((numbers, weights(run.model))),
    )
    state = run.train()
    steps = run.column("evaluation", "step")[1:]
    losses = run.column("evaluation", "loss")[1:]
    expected = [
        step for i, step in enumerate(steps) if losses[i] < min(losses[:i], default=math.inf)
    ]
    assert 1 < len(expected) < len(steps), "some evaluations are better, some are not"
    assert [numbers["step"] for numbers, _ in kept] == expected
    numbers, last = kept[-1]
    assert numbers["best_eval_loss"] == numbers["last_eval_loss"] == state.best_eval_loss
    # What was handed over is what has that loss.
    model = Bigram()
    model.load_state_dict(last)
    with torch.no_grad():
        batches = [run.val_loader.micro_batch(ids) for ids in run.val_loader.evaluation_plan()]
        sums = [ToyRoute().loss_sum(model, b.input_ids, b.labels, b.lengths) for b in batches]
    loss = sum(map(float, sums)) / sum(batch.num_tokens for batch in batches)
    assert loss == pytest.approx(state.best_eval_loss, abs=1e-5)


def test_before_the_first_update_nothing_is_best():
    """Also when steps went by without one, as none of their labels counts."""
    state = TrainState()
    assert not count_evaluation(state, 1.0)
    state.step = 3
    assert not count_evaluation(state, 0.5)
    state.step, state.updates = 4, 1
    assert count_evaluation(state, 2.0), "worse than before training, and the best of training"
    assert (state.first_eval_loss, state.best_eval_loss, state.best_eval_step) == (1.0, 2.0, 4)


@pytest.mark.parametrize("loss", [math.nan, math.inf, 2.0, 2.5])
def test_what_is_no_better(loss):
    state = TrainState(step=4, updates=4, best_eval_loss=2.0, best_eval_step=2)
    assert not count_evaluation(state, loss)
    assert (state.best_eval_loss, state.best_eval_step, state.worse_evals) == (2.0, 2, 1)
    state.step = 6
    assert count_evaluation(state, 1.9)
    assert (state.best_eval_step, state.worse_evals) == (6, 0)


def test_a_loss_that_is_not_finite_is_never_best():
    state = TrainState(step=4, updates=4)
    assert not count_evaluation(state, math.nan)
    assert (state.best_eval_loss, state.worse_evals) == (None, 0)
