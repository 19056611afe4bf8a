"""One step against the row-by-row reference: gradients, clipping, labels that do not count."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from ftrecipes.config.schema import TrainConfig
from ftrecipes.train.step import BatchLoss, add_gradients
from ftrecipes.train.update import build_updater
from tests import reference
from tests.train.toy import (
    CPU,
    FLOAT32,
    VOCABULARY,
    WORLD,
    Bigram,
    ToyRoute,
    micro_batch,
    random_rows,
)
from tests.train.toy_step import (
    machine,
    moved,
    step_on,
    take_step,
    total_norm,
    weights,
)

SPLITS = {
    "one batch of eight": [tuple(range(8))],
    "eight of one": [(row,) for row in range(8)],
    "uneven": [(0, 1, 2), (3,), (4, 5, 6, 7)],
    "other order": [(7, 2), (5, 0, 3), (1,), (6, 4)],
    "with an empty share": [(0, 1, 2, 3), (), (4, 5, 6, 7)],
}


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_any_split_of_the_rows_gives_the_gradient_of_the_reference(split):
    # Rows with 2 and with 50 counted labels: a mean of means would be far off.
    rows = random_rows([2, 50, 2, 7, 50, 1, 0, 13])
    model, model_ref = Bigram(), Bigram()
    expected_loss = reference.backward_step(model_ref, rows)
    before = weights(model)
    result = take_step(model, rows, split)
    # float32; sums of some hundred terms in another order.
    torch.testing.assert_close(
        moved(before, model), reference.gradients(model_ref), rtol=1e-5, atol=1e-6
    )
    assert result.loss == pytest.approx(expected_loss, abs=1e-6)
    assert (result.num_tokens, result.positions, result.rows) == (125, 141, 8)
    assert result.note == ""


def test_logged_loss_does_not_shrink_with_accumulation():
    rows = random_rows([20] * 8)
    model = Bigram()
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    result = take_step(model, rows, [(row,) for row in range(8)])
    # Logits of zero: every token costs ln(vocabulary), whatever the number of micro-batches.
    assert result.loss == pytest.approx(math.log(VOCABULARY), abs=1e-6)


def test_smaller_last_window_has_a_full_gradient():
    # Four equal rows, accumulation 3: the second step holds one row and must not be divided by 3.
    row = random_rows([9])[0]
    model, model_ref = Bigram(), Bigram()
    reference.backward_step(model_ref, [row])
    before = weights(model)
    take_step(model, [row], [(0,)])
    ratio = total_norm(moved(before, model)) / total_norm(reference.gradients(model_ref))
    assert ratio == pytest.approx(1.0, abs=1e-5)


def test_gradients_are_gone_after_a_step():
    model = Bigram()
    take_step(model, random_rows([3, 4]), [(0,), (1,)])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_step_without_counted_labels_leaves_weights_and_moments():
    rows = [*random_rows([5, 6]), ([1, 2, 3], [-100] * 3)]
    model = Bigram()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    batch_loss = BatchLoss(model, ToyRoute(), FLOAT32, WORLD)
    updater = build_updater(optimizer, config=TrainConfig(), precision=FLOAT32, device=CPU)

    def step(number, row):
        batch = micro_batch(rows, (row,))
        return step_on(batch_loss, updater, [batch], step=number, lr=0.1)

    assert step(1, 0).note == ""
    before, moments = weights(model), copy.deepcopy(optimizer.state_dict())
    result = step(2, 2)
    assert (result.loss, result.grad_norm, result.num_tokens) == (None, None, 0)
    assert "labels" in result.note
    torch.testing.assert_close(weights(model), before, rtol=0, atol=0)
    torch.testing.assert_close(optimizer.state_dict()["state"], moments["state"], rtol=0, atol=0)
    assert step(3, 1).note == ""
    assert all(torch.isfinite(value).all() for value in weights(model).values())


def test_micro_batch_without_labels_changes_nothing_in_a_step():
    rows = [*random_rows([5, 6]), ([1, 2, 3], [-100] * 3)]
    with_it, without = Bigram(), Bigram()
    first = take_step(with_it, rows, [(0,), (2,), (1,)])
    second = take_step(without, rows, [(0,), (1,)])
    assert first.loss == second.loss
    torch.testing.assert_close(weights(with_it), weights(without), rtol=0, atol=0)


@pytest.mark.parametrize("threshold", [0.01, 0.1, 1000.0])
def test_clipping_limits_the_update_and_reports_the_norm_before_it(threshold):
    rows = random_rows([9, 4])
    config = replace(TrainConfig(), gradient_clipping_threshold=threshold)
    model, model_ref = Bigram(), Bigram()
    reference.backward_step(model_ref, rows)
    expected = total_norm(reference.gradients(model_ref))
    before = weights(model)
    result = take_step(model, rows, [(0,), (1,)], config=config)
    assert result.grad_norm == pytest.approx(expected, rel=1e-5)
    applied = total_norm(moved(before, model))
    # 1e-5: the update is read off float32 weights of about 1. torch adds 1e-6 to the norm.
    assert applied == pytest.approx(min(threshold, expected), rel=1e-4, abs=1e-5)
    assert expected > 0.1, "the small thresholds must bite"


def test_results_are_numbers_that_hold_no_graph():
    model = Bigram()
    result = take_step(model, random_rows([4]), [(0,)])
    assert type(result.loss) is float
    assert type(result.grad_norm) is float
    loss_sums = add_gradients(*machine(model), [micro_batch(random_rows([4]), (0,))], num_tokens=4)
    assert not any(loss_sum.requires_grad for loss_sum in loss_sums)
