"""One step against the row-by-row reference: gradients, clipping, precision, faults."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from ftrecipes.config.errors import TrainingError
from ftrecipes.config.schema import TrainConfig
from ftrecipes.train.step import (
    BatchLoss,
    add_gradients,
    build_updater,
    gradient_norm,
    train_step,
    update_weights,
)
from tests import reference
from tests.train.toy import CPU, FLOAT32, VOCABULARY, Bigram, ToyRoute, micro_batch, random_rows

HALF = replace(FLOAT32, base="float16", compute="float16", autocast=True, loss_scaling=True)
PURE_BF16 = replace(FLOAT32, base="bfloat16", trainable="bfloat16", compute="bfloat16")
NO_CLIPPING = replace(TrainConfig(), gradient_clipping=False)
SOURCES = [f"rows.jsonl line {line}" for line in range(1, 100)]


def machine(model, *, config=NO_CLIPPING, precision=FLOAT32):
    """Loss and updater over plain SGD, whose update is the gradient itself."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    batch_loss = BatchLoss(model, ToyRoute(), precision, CPU)
    return batch_loss, build_updater(optimizer, config=config, precision=precision, device=CPU)


def take_step(model, rows, split, *, lr=1.0, step=1, **settings):
    """One step over `split`, the row ids of each micro-batch."""
    batches = [micro_batch(rows, row_ids) for row_ids in split]
    batch_loss, updater = machine(model, **settings)
    return train_step(batch_loss, updater, batches, step=step, lr=lr, sources=SOURCES)


def weights(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def moved(before, model):
    """What SGD with a learning rate of 1 subtracted: the gradient that was applied."""
    return {name: before[name] - value for name, value in weights(model).items()}


def total_norm(gradients):
    return math.sqrt(sum(value.double().square().sum().item() for value in gradients.values()))


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
    batch_loss = BatchLoss(model, ToyRoute(), FLOAT32, CPU)
    updater = build_updater(optimizer, config=TrainConfig(), precision=FLOAT32, device=CPU)

    def step(number, row):
        batch = micro_batch(rows, (row,))
        return train_step(batch_loss, updater, [batch], step=number, lr=0.1, sources=SOURCES)

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


def test_norm_of_bfloat16_gradients_is_summed_in_float32():
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.zeros(50, dtype=torch.bfloat16)) for _ in range(300)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    exact = torch.cat([parameter.grad for parameter in parameters]).double().norm().item()
    # float32 over 15 000 squares; bfloat16 would be off by up to 0.4 %.
    assert gradient_norm(parameters).item() == pytest.approx(exact, rel=1e-5)
    assert gradient_norm(parameters).dtype == torch.float32


def test_bfloat16_weights_get_gradients_summed_in_float32():
    # 64 micro-batches: in bfloat16 (8 bits) small terms would vanish beside the running sum.
    rows = random_rows([30] * 64)
    model = Bigram().to(torch.bfloat16)
    batch_loss, updater = machine(model, precision=PURE_BF16)
    singles = [micro_batch(rows, (row,)) for row in range(64)]
    exact = {name: torch.zeros(p.shape) for name, p in model.named_parameters()}
    for batch in singles:
        model.zero_grad()
        (batch_loss.loss_sum(batch) / (64 * 30)).backward()
        for name, parameter in model.named_parameters():
            exact[name] += parameter.grad.float()
    model.zero_grad()
    add_gradients(batch_loss, updater, singles)
    for name, parameter in model.named_parameters():
        # Equal to the last bit but for the final rounding of the float32 sum.
        assert parameter.grad.dtype == torch.bfloat16
        torch.testing.assert_close(parameter.grad, exact[name].to(torch.bfloat16), rtol=0, atol=0)
    update_weights(updater, gradient_norm(updater.parameters), lr=1.0)


def test_loss_scale_is_taken_out_before_clipping():
    # Clipping scaled gradients would clip 65536 times too hard, so the weights would tell.
    rows = random_rows([9, 4])
    config = replace(TrainConfig(), gradient_clipping_threshold=0.1)
    scaled, plain = Bigram(), Bigram()
    with_scaler = take_step(
        scaled, rows, [(0,), (1,)], config=config, precision=replace(FLOAT32, loss_scaling=True)
    )
    without = take_step(plain, rows, [(0,), (1,)], config=config)
    # The scale is a power of two, so nothing is rounded differently.
    assert with_scaler.grad_norm == without.grad_norm > 0.1
    torch.testing.assert_close(weights(scaled), weights(plain), rtol=0, atol=0)


def test_float16_step_is_close_to_float32():
    rows = random_rows([9, 4])
    half, full = Bigram(), Bigram()
    half_result = take_step(half, rows, [(0,), (1,)], precision=HALF)
    full_result = take_step(full, rows, [(0,), (1,)])
    # Products in float16: about three digits.
    assert half_result.loss == pytest.approx(full_result.loss, rel=2e-3)
    torch.testing.assert_close(weights(half), weights(full), rtol=1e-2, atol=1e-3)


def test_float16_overflow_skips_the_update_and_halves_the_scale():
    rows = random_rows([9, 4])
    model = Bigram()
    batch_loss, updater = machine(model, precision=HALF)
    updater = replace(updater, scaler=torch.amp.GradScaler("cpu", init_scale=2.0**120))
    before = weights(model)
    batches = [micro_batch(rows, (0, 1))]
    result = train_step(batch_loss, updater, batches, step=1, lr=1.0, sources=SOURCES)
    assert "loss scale was halved" in result.note
    assert math.isfinite(result.loss)
    assert updater.scaler.get_scale() == 2.0**119
    torch.testing.assert_close(weights(model), before, rtol=0, atol=0)


def poisoned(row):
    """A model whose embedding of the row's first token, which no other row has, is NaN."""
    model = Bigram(vocab_size=VOCABULARY + 1)
    with torch.no_grad():
        model.embedding.weight[VOCABULARY] = math.nan
    row[0][0] = VOCABULARY
    row[1][1] = row[0][1]
    return model


@pytest.mark.parametrize("precision", [FLOAT32, HALF], ids=["float32", "float16"])
def test_loss_that_is_not_finite_stops_before_the_update_and_names_the_rows(precision):
    rows = random_rows([5, 6, 7, 8])
    model = poisoned(rows[2])
    before = weights(model)
    with pytest.raises(TrainingError) as caught:
        take_step(model, rows, [(0, 1), (2,), (3,)], precision=precision, step=12, lr=0.5)
    message = str(caught.value)
    assert "Step 12: the loss is not finite" in message
    assert "after step 11" in message
    assert "rows.jsonl line 3\n" in message
    assert "line 1" not in message
    assert "lower --lr (now 0.5)" in message
    assert ("--use_fp16" in message) == (precision is HALF)
    torch.testing.assert_close(weights(model), before, rtol=0, atol=0, equal_nan=True)


class SteepRoute(ToyRoute):
    """Adds sqrt(0 x weight): worth nothing, with an infinite slope."""

    def loss_sum(self, model, input_ids, labels, lengths):
        steep = (model.head.bias * 0).sum().sqrt()
        return super().loss_sum(model, input_ids, labels, lengths) + steep


def test_gradient_that_is_not_finite_stops_before_the_update():
    rows = random_rows([5, 6])
    model = Bigram()
    before = weights(model)
    batch_loss, updater = machine(model)
    batch_loss = replace(batch_loss, route=SteepRoute())
    batches = [micro_batch(rows, (0,)), micro_batch(rows, (1,))]
    with pytest.raises(TrainingError, match="Step 3: the gradient is not finite") as caught:
        train_step(batch_loss, updater, batches, step=3, lr=1.0, sources=SOURCES)
    assert "rows.jsonl line 1, rows.jsonl line 2\n" in str(caught.value)
    torch.testing.assert_close(weights(model), before, rtol=0, atol=0)


def test_float16_gradient_that_overflows_at_any_scale_stops():
    rows = random_rows([5])
    model = Bigram()
    batch_loss, updater = machine(model, precision=HALF)
    batch_loss = replace(batch_loss, route=SteepRoute())
    updater = replace(updater, scaler=torch.amp.GradScaler("cpu", init_scale=4.0))
    batches = [micro_batch(rows, (0,))]
    for step in (1, 2):  # scales 4 and 2 are halved; at 1 it is an error
        result = train_step(batch_loss, updater, batches, step=step, lr=1.0, sources=SOURCES)
        assert "halved" in result.note
    with pytest.raises(TrainingError, match="the gradient is not finite"):
        train_step(batch_loss, updater, batches, step=3, lr=1.0, sources=SOURCES)


def test_results_are_numbers_that_hold_no_graph():
    model = Bigram()
    result = take_step(model, random_rows([4]), [(0,)])
    assert type(result.loss) is float
    assert type(result.grad_norm) is float
    loss_sums = add_gradients(*machine(model), [micro_batch(random_rows([4]), (0,))])
    assert not any(loss_sum.requires_grad for loss_sum in loss_sums)


@pytest.mark.parametrize(("precision", "dtype"), [(FLOAT32, torch.float32), (HALF, torch.float16)])
def test_products_are_in_the_compute_dtype(precision, dtype):
    products = []
    model = Bigram()
    model.head.register_forward_hook(lambda module, args, output: products.append(output.dtype))
    take_step(model, random_rows([4]), [(0,)], precision=precision)
    assert products == [dtype]
