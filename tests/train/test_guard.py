"""A step whose loss or gradient is not finite stops before the update."""

import math
from dataclasses import replace

import pytest
import torch

from ftrecipes.config.errors import TrainingError
from tests.train.toy import FLOAT32, VOCABULARY, Bigram, ToyRoute, micro_batch, random_rows
from tests.train.toy_step import HALF, machine, step_on, take_step, weights


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
    assert "lower --lr (the rate of this step is 0.5)" in message
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
        step_on(batch_loss, updater, batches, step=3)
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
        result = step_on(batch_loss, updater, batches, step=step)
        assert "halved" in result.note
    with pytest.raises(TrainingError, match="the gradient is not finite"):
        step_on(batch_loss, updater, batches, step=3)
