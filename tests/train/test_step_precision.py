"""One step in half precision: sums, loss scale, overflow."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from ftrecipes.config.schema import TrainConfig
from ftrecipes.train.step import add_gradients
from ftrecipes.train.update import gradient_norm, update_weights
from tests.train.toy import FLOAT32, Bigram, micro_batch, random_rows
from tests.train.toy_step import HALF, PURE_BF16, machine, step_on, take_step, weights


def test_norm_of_bfloat16_gradients_is_summed_in_float32():
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.zeros(50, dtype=torch.bfloat16)) for _ in range(300)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    exact = torch.cat([parameter.grad for parameter in parameters]).double().norm().item()
    # float32 over 15 000 squares; bfloat16 would be off by up to 0.4 %.
    norm = gradient_norm([parameter.grad for parameter in parameters])
    assert norm.item() == pytest.approx(exact, rel=1e-5)
    assert norm.dtype == torch.float32


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
    add_gradients(batch_loss, updater, singles, num_tokens=64 * 30)
    for name, parameter in model.named_parameters():
        # Equal to the last bit but for the final rounding of the float32 sum.
        assert parameter.grad.dtype == torch.bfloat16
        torch.testing.assert_close(parameter.grad, exact[name].to(torch.bfloat16), rtol=0, atol=0)
    update_weights(updater, gradient_norm(updater.gradients), lr=1.0)


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
    result = step_on(batch_loss, updater, batches)
    assert "loss scale was halved" in result.note
    assert math.isfinite(result.loss)
    assert updater.scaler.get_scale() == 2.0**119
    torch.testing.assert_close(weights(model), before, rtol=0, atol=0)


@pytest.mark.parametrize(("precision", "dtype"), [(FLOAT32, torch.float32), (HALF, torch.float16)])
def test_products_are_in_the_compute_dtype(precision, dtype):
    products = []
    model = Bigram()
    model.head.register_forward_hook(lambda module, args, output: products.append(output.dtype))
    take_step(model, random_rows([4]), [(0,)], precision=precision)
    assert products == [dtype]
