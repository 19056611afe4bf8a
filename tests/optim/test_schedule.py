"""Rates and step counts against the schedulers of transformers and values made by hand."""

from dataclasses import replace

import pytest
import torch
from transformers import get_scheduler

from ftrecipes.config.errors import DataError
from ftrecipes.config.schema import TrainConfig
from ftrecipes.optim.schedule import build_schedule, count_steps


def rates(epoch_steps, **settings):
    config = replace(TrainConfig(), **{"lr": 1.0, "warmup_steps": 0} | settings)
    schedule = build_schedule(config, epoch_steps)
    return [schedule.lr_at(step) for step in range(schedule.total_steps)], schedule


def peer_rates(name, *, steps, warmup_steps):
    """transformers' scheduler, stepped the way its users step it."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = get_scheduler(
        name, optimizer, num_warmup_steps=warmup_steps, num_training_steps=steps
    )
    found = []
    for _ in range(steps):
        found.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup_steps", [0, 3])
def test_rate_after_warmup_is_that_of_transformers(name, warmup_steps):
    ours, _ = rates([10, 10], scheduler=name, warmup_steps=warmup_steps)
    peer = "constant_with_warmup" if name == "constant" else name
    theirs = peer_rates(peer, steps=20, warmup_steps=warmup_steps)
    # Doubles on both sides; the formulas differ in the order of operations only.
    assert ours[warmup_steps:] == pytest.approx(theirs[warmup_steps:], abs=1e-12)


def test_warmup_starts_above_zero_and_peaks_once():
    ours, _ = rates([20], scheduler="cosine", warmup_steps=3)
    assert ours[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert ours.count(max(ours)) == 1


@pytest.mark.parametrize("name", ["constant", "linear", "cosine", "wsd", "step"])
@pytest.mark.parametrize("steps", [1, 2, 3, 7, 100])
def test_every_step_has_a_rate_above_zero_and_none_above_the_peak(name, steps):
    ours, _ = rates([steps], scheduler=name, warmup_steps=None)
    assert len(ours) == steps
    assert all(0 < rate <= 1 for rate in ours)


@pytest.mark.parametrize("name", ["linear", "cosine", "wsd"])
def test_final_rate_is_reached_after_the_last_of_sixteen_steps(name):
    # 160 micro-batches with an accumulation of 10: the schedule counts optimizer steps.
    ours, schedule = rates([16], scheduler=name)
    assert schedule.total_steps == len(ours) == 16
    assert schedule.lr_at(16) == pytest.approx(0, abs=1e-12)
    assert schedule.lr_at(17) == pytest.approx(0, abs=1e-12)


def test_wsd_is_flat_then_linear_to_zero_over_the_last_fifth():
    ours, _ = rates([20], scheduler="wsd")
    assert ours == pytest.approx([1.0] * 17 + [0.75, 0.5, 0.25])


def test_step_scheduler_drops_by_gamma_at_each_epoch_whatever_its_length():
    # Packing makes epochs of slightly different length.
    ours, schedule = rates([2, 3, 1], scheduler="step", gamma=0.5)
    assert ours == pytest.approx([1, 1, 0.5, 0.5, 0.5, 0.25])
    assert [schedule.steps_in(epoch) for epoch in range(3)] == [2, 3, 1]


def test_unset_warmup_is_three_percent_and_none_with_step():
    assert rates([50, 50], scheduler="cosine", warmup_steps=None)[1].warmup_steps == 3
    assert rates([50, 50], scheduler="step", warmup_steps=None)[1].warmup_steps == 0
    assert rates([50, 50], scheduler="step", warmup_steps=4)[1].warmup_steps == 4


def test_rate_depends_on_nothing_but_the_step():
    ours, schedule = rates([7, 8], scheduler="cosine", warmup_steps=2)
    assert [schedule.lr_at(step) for step in reversed(range(15))] == ours[::-1]


def test_warmup_longer_than_the_run_is_told(caplog):
    with caplog.at_level("WARNING", logger="ftrecipes"):
        rates([2], scheduler="linear", warmup_steps=5)
    assert "--warmup_steps 5" in caplog.text
    assert "2 steps" in caplog.text


@pytest.mark.parametrize(
    ("max_train_step", "expected"),
    [
        (0, (4, 5, 4)),
        (1, (1,)),
        (4, (4,)),
        (5, (4, 1)),
        (9, (4, 5)),
        (13, (4, 5, 4)),
        (99, (4, 5, 4)),
    ],
)
def test_step_counts_end_at_the_limit_without_an_empty_epoch(max_train_step, expected):
    lengths = [4, 5, 4]
    found = count_steps(lengths.__getitem__, num_epochs=3, max_train_step=max_train_step)
    assert found == expected


def test_no_step_at_all_is_an_error():
    with pytest.raises(DataError, match="no step"):
        count_steps(lambda epoch: 0, num_epochs=3, max_train_step=0)
