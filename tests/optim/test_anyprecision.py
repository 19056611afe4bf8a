"""bfloat16 weights and moments that follow float32 over hundreds of small steps."""

import copy

import pytest
import torch
from torch import nn

from ftrecipes.optim import anyprecision
from ftrecipes.optim.anyprecision import AnyPrecisionAdamW

SETTINGS = {"lr": 2e-4, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}
STEPS = 400
SHAPE = (16, 24)
STORED = ["exp_avg", "exp_avg_sq", "exp_avg_sq_rest", "weight_rest"]


def gradients(steps: int):
    """bfloat16 gradients of one direction with noise; the last fifth is a tenth as large."""
    generator = torch.Generator().manual_seed(1)
    direction = torch.randn(SHAPE, generator=generator)
    for step in range(steps):
        noise = torch.randn(SHAPE, generator=generator)
        yield (direction + noise).bfloat16() * (1.0 if step < 0.8 * steps else 0.1)


def weights(*, steps: int = STEPS, **settings):
    """The weights before, after torch's AdamW in float32, and after ours in bfloat16."""
    settings = SETTINGS | settings
    start = 1 + torch.rand(SHAPE, generator=torch.Generator().manual_seed(2))
    narrow = nn.Parameter(start.bfloat16())
    wide = nn.Parameter(narrow.detach().float())
    start = wide.detach().clone()
    ours, theirs = AnyPrecisionAdamW([narrow], **settings), torch.optim.AdamW([wide], **settings)
    for gradient in gradients(steps):
        narrow.grad, wide.grad = gradient.clone(), gradient.float()
        ours.step()
        theirs.step()
    return start, wide.detach(), narrow.detach().float(), ours.state[narrow]


def test_weights_follow_float32_over_hundreds_of_small_steps():
    start, wide, narrow, state = weights()
    assert {value.dtype for value in state.values() if torch.is_tensor(value)} == {torch.bfloat16}
    moved = (wide - start).abs()
    assert moved.median() > 0.02, "the way is far longer than a step of bfloat16, 0.0078 above 1"
    # Rounded once at the end, by half of 0.0078; the first moment's 8 bits add a percent.
    assert ((narrow - wide).abs() < 0.0039 + 0.02 * moved).all()
    exact = narrow + state["weight_rest"].float()
    assert (exact - wide).norm() < 0.01 * (wide - start).norm()


def test_without_what_rounding_dropped_the_weights_stand_still(monkeypatch):
    """What the remainders are for: an update of 0.0002 on a weight above 1 rounds away."""
    honest = anyprecision._store

    def forgetful(exact, rounded, rest):
        honest(exact, rounded, rest)
        rest.zero_()

    monkeypatch.setattr(anyprecision, "_store", forgetful)
    start, wide, narrow, _ = weights()
    assert (narrow - start).norm() < 0.1 * (wide - start).norm()


def test_second_moments_follow_float32_both_up_and_down():
    """With 8 bits a decay of 1/1000 would round away: they would never fall again."""
    _, _, _, state = weights()
    square = torch.zeros(SHAPE)
    for gradient in gradients(STEPS):
        square = 0.999 * square + 0.001 * gradient.float() ** 2
    exact = state["exp_avg_sq"].float() + state["exp_avg_sq_rest"].float()
    torch.testing.assert_close(exact, square, rtol=2e-3, atol=0)  # 16 bits, 400 roundings


def test_pieces_of_a_large_tensor_are_updated_as_the_whole(monkeypatch):
    whole = weights(steps=5)[2]
    monkeypatch.setattr(anyprecision, "CHUNK", 50)  # 2 of 16 rows at a time
    assert torch.equal(weights(steps=5)[2], whole)


def test_a_scalar_and_an_empty_parameter_are_taken():
    scalar, empty = (nn.Parameter(torch.ones(s, dtype=torch.bfloat16)) for s in ((), (0, 3)))
    optimizer = AnyPrecisionAdamW([scalar, empty], **SETTINGS | {"lr": 0.5})
    for parameter in (scalar, empty):
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert scalar.item() == pytest.approx(1 - 0.05 - 0.5, abs=0.004)  # decay, then one step of lr


def test_a_loaded_state_goes_on_with_the_same_bits():
    ends = []
    for interrupted in (False, True):
        parameter = nn.Parameter(torch.ones(SHAPE, dtype=torch.bfloat16))
        optimizer = AnyPrecisionAdamW([parameter], **SETTINGS)
        for step, gradient in enumerate(gradients(8)):
            if interrupted and step == 4:
                state = copy.deepcopy(optimizer.state_dict())
                optimizer = AnyPrecisionAdamW([parameter], **SETTINGS)
                optimizer.load_state_dict(state)
            parameter.grad = gradient
            optimizer.step()
        ends.append([parameter, *(optimizer.state[parameter][name] for name in STORED)])
    assert all(map(torch.equal, *ends))


def test_other_dtypes_are_refused():
    with pytest.raises(TypeError, match="float32"):
        AnyPrecisionAdamW([nn.Parameter(torch.ones(2))], **SETTINGS)
