"""The chunked head against F.cross_entropy on all logits, and against torch's own fused loss."""

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, inject_adapter_in_model
from torch import nn

from ftrecipes.model import head as head_module
from ftrecipes.model.head import head_loss_sum
from tests.model.sizes import recorded_sizes

N, D, V = 37, 12, 50


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Eight rows of logits a chunk, so that 37 rows need five, the last of them smaller."""
    monkeypatch.setitem(head_module._CHUNK_BYTES, "cpu", 8 * 4 * V)


def make(*, dtype=torch.float64, n=N, bias=True):
    torch.manual_seed(0)
    linear = nn.Linear(D, V, bias=bias).to(dtype)
    hidden = (3 * torch.randn(n, D)).to(dtype).requires_grad_()
    labels = torch.randint(0, V, (n,))
    return linear, hidden, labels


def ours(head, module, hidden, labels):
    return head_loss_sum(
        hidden, labels, head=head, parameters=list(module.parameters()), vocab_size=V
    )


def full(head, hidden, labels):
    logits = head(hidden)
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(logits.to(dtype), labels, reduction="sum")


HEADS = {
    "plain": lambda linear: linear,
    "scaled": lambda linear: lambda h: linear(h) / 3,
    "soft cap": lambda linear: lambda h: 2 * torch.tanh(linear(h) / 2),
    "tied twice": lambda linear: lambda h: linear(h) + F.linear(h, linear.weight),
}


@pytest.mark.parametrize("name", HEADS)
def test_loss_and_gradients_equal_the_full_ones(name):
    linear, hidden, labels = make()
    head = HEADS[name](linear)
    leaves = [hidden, *linear.parameters()]
    loss, expected = ours(head, linear, hidden, labels), full(head, hidden, labels)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    # a factor on the loss reaches every gradient
    for mine, right in zip(
        torch.autograd.grad(loss / 7, leaves),
        torch.autograd.grad(expected / 7, leaves),
        strict=True,
    ):
        torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-12)


def test_adapter_on_the_head():
    model = nn.Sequential()
    model.add_module("lm_head", nn.Linear(D, V))
    model = inject_adapter_in_model(LoraConfig(r=4, target_modules=["lm_head"]), model).double()
    nn.init.normal_(model.lm_head.lora_B["default"].weight)
    _, hidden, labels = make()
    trained = [p for p in model.parameters() if p.requires_grad]
    assert len(trained) == 2
    loss, expected = ours(model, model, hidden, labels), full(model, hidden, labels)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    mine = torch.autograd.grad(loss, [hidden, *trained])
    right = torch.autograd.grad(expected, [hidden, *trained])
    for a, b in zip(mine, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_frozen_head_trains_the_hidden_states_only():
    linear, hidden, labels = make()
    linear.requires_grad_(False)
    ours(linear, linear, hidden, labels).backward()
    assert linear.weight.grad is None
    expected = torch.autograd.grad(full(linear, hidden, labels), hidden)[0]
    torch.testing.assert_close(hidden.grad, expected, rtol=1e-10, atol=1e-12)


def test_equals_torch_linear_cross_entropy():
    linear, hidden, labels = make(bias=False)
    expected = F.linear_cross_entropy(hidden, linear.weight, labels, reduction="sum")
    torch.testing.assert_close(ours(linear, linear, hidden, labels), expected, rtol=1e-12, atol=0)


def test_bfloat16_logits_give_a_float32_loss():
    linear, hidden, labels = make(dtype=torch.bfloat16)
    loss = ours(linear, linear, hidden, labels)
    assert loss.dtype == torch.float32
    # the logits are the same bfloat16 numbers on both sides: only float32 sums differ
    torch.testing.assert_close(loss, full(linear, hidden, labels), rtol=1e-6, atol=0)
    leaves = [hidden, *linear.parameters()]
    mine = torch.autograd.grad(loss, leaves)
    right = torch.autograd.grad(full(linear, hidden, labels), leaves)
    for a, b in zip(mine, right, strict=True):
        assert a.dtype == torch.bfloat16
        # one rounding to 8 bits, of sums taken in another order
        torch.testing.assert_close(a.float(), b.float(), rtol=0.02, atol=0.02)


def test_autocast_multiplies_low_and_sums_high():
    linear, hidden, labels = make(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, expected = ours(linear, linear, hidden, labels), full(linear, hidden, labels)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    leaves = [hidden, *linear.parameters()]
    mine, right = torch.autograd.grad(loss, leaves), torch.autograd.grad(expected, leaves)
    for a, b in zip(mine, right, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)  # both round to bfloat16 on the way


def test_a_head_that_leaves_autocast_keeps_its_precision_in_the_backward():
    linear, hidden, labels = make(dtype=torch.float32)

    def head(h):
        with torch.autocast("cpu", enabled=False):
            return linear(h)

    expected = torch.autograd.grad(full(linear, hidden, labels), hidden)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = ours(head, linear, hidden, labels)
    # float32 throughout: far nearer than bfloat16, whose rounding is 4e-3
    torch.testing.assert_close(torch.autograd.grad(loss, hidden)[0], expected, rtol=1e-5, atol=1e-6)


def test_without_labels_the_loss_is_zero_and_so_are_the_gradients():
    linear, hidden, labels = make(n=0)
    loss = ours(linear, linear, hidden, labels)
    assert loss.item() == 0
    loss.backward()
    assert hidden.grad.shape == (0, D)
    assert (linear.weight.grad == 0).all()
    with torch.no_grad():
        assert ours(linear, linear, hidden, labels).item() == 0


def test_evaluation_computes_the_loss_only():
    linear, hidden, labels = make()
    with torch.no_grad(), recorded_sizes() as sizes:
        loss = ours(linear, linear, hidden, labels)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, full(linear, hidden, labels), rtol=1e-12, atol=0)
    assert N * V not in sizes


def test_only_a_chunk_of_logits_exists():
    linear, hidden, labels = make()
    linear.requires_grad_(False)
    with recorded_sizes() as sizes:
        ours(linear, linear, hidden, labels).backward()
    assert max(sizes) == max(8 * V, V * D)  # a chunk of logits, a view of the weight
    assert N * V not in sizes


def test_every_row_passes_the_head_once():
    linear, hidden, labels = make()
    rows = []
    linear.register_forward_hook(lambda module, args, output: rows.append(output.shape[0]))
    ours(linear, linear, hidden, labels).backward()
    assert rows == [8, 8, 8, 8, 5]
