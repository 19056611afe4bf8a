"""Row attention against plain softmax attention of each row alone, written out in float64."""

from itertools import product

import pytest
import torch
from torch import nn

from ftrecipes.model import attention
from ftrecipes.model.attention import RowLayout, UnsupportedAttention, attend_rows
from tests.model.sizes import recorded_sizes

# One row, rows of one token, equal neighbours (batched), rows longer than every window.
LENGTHS = (1, 7, 7, 7, 1, 1, 19, 4, 12)
HEADS, KEY_HEADS, WIDTH = 4, 2, 8


def layout(lengths=LENGTHS) -> RowLayout:
    return RowLayout.of(tuple(lengths), torch.device("cpu"))


def inputs(*, key_heads=KEY_HEADS, value_width=WIDTH, lengths=LENGTHS, dtype=torch.float64):
    """Query [1, H, T, E], key [1, K, T, E], value [1, K, T, value_width], all far from zero."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(HEADS, WIDTH), (key_heads, WIDTH), (key_heads, value_width)]
    return [
        (2 * torch.randn(1, heads, sum(lengths), width, generator=generator))
        .to(dtype)
        .requires_grad_()
        for heads, width in shapes
    ]


def reference(
    query, key, value, *, lengths=LENGTHS, scaling=None, window=None, softcap=None, sinks=None
):
    """Softmax attention of one row after another; [1, T, H, E]."""
    outputs, start = [], 0
    groups = query.shape[1] // key.shape[1]
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    for length in lengths:
        q, k, v = (x[0, :, start : start + length] for x in (query, key, value))
        k, v = (x.repeat_interleave(groups, dim=0) for x in (k, v))
        scores = q @ k.transpose(1, 2) * scaling
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
        hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
        weights = scores.masked_fill(hidden, float("-inf")).exp()
        total = weights.sum(-1, keepdim=True)
        if sinks is not None:
            total = total + sinks.exp()[:, None, None]
        outputs.append((weights / total) @ v)
        start += length
    return torch.cat(outputs, dim=1).transpose(0, 1).unsqueeze(0)


def check(arguments, expected, tensors):
    """Equal outputs and gradients. Both sides are float64: only the order of sums differs."""
    output, weights = attend_rows(
        nn.Module().train(), *tensors, None, row_layout=layout(), **arguments
    )
    assert weights is None
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)
    direction = torch.randn(
        expected.shape, dtype=expected.dtype, generator=torch.Generator().manual_seed(1)
    )
    leaves = [*tensors, *(x for x in arguments.values() if isinstance(x, torch.Tensor))]
    ours = torch.autograd.grad(output, leaves, direction)
    theirs = torch.autograd.grad(expected, leaves, direction)
    for mine, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("key_heads", [1, KEY_HEADS, HEADS])
@pytest.mark.parametrize(
    ("window", "softcap", "with_sinks"),
    list(product([None, 1, 4, 7, 50], [None, 1.5], [False, True])),
)
def test_equals_each_row_alone(key_heads, window, softcap, with_sinks):
    tensors = inputs(key_heads=key_heads)
    sinks = torch.randn(HEADS, dtype=torch.float64).requires_grad_() if with_sinks else None
    expected = reference(*tensors, scaling=0.7, window=window, softcap=softcap, sinks=sinks)
    arguments = {"scaling": 0.7, "sliding_window": window, "softcap": softcap, "s_aux": sinks}
    check(arguments, expected, tensors)


def test_default_scale_and_a_narrower_value():
    tensors = inputs(value_width=5)
    check({}, reference(*tensors), tensors)


def test_a_change_in_one_row_changes_no_other():
    query, key, value = inputs()
    changed = [x.detach().clone() for x in (query, key, value)]
    for x in changed:
        x[:, :, 1:8] += 1  # the second row
    first, second = (
        attend_rows(nn.Module(), *x, None, row_layout=layout())[0]
        for x in ((query, key, value), changed)
    )
    differs = (first != second).any(-1).any(-1)[0]
    assert differs[1:8].all()
    assert not differs[:1].any()
    assert not differs[8:].any()


def test_half_precision_keeps_its_dtype():
    tensors = inputs(dtype=torch.bfloat16)
    exact = reference(*(x.double() for x in tensors))
    output, _ = attend_rows(nn.Module(), *tensors, None, row_layout=layout())
    assert output.dtype == torch.bfloat16
    # bfloat16 has 8 bits: inputs are exact here, weights and outputs are rounded at 2^-8 relative
    torch.testing.assert_close(output.double(), exact, rtol=0.02, atol=0.05)


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_dropout_acts_in_training_only(softcap):
    tensors = inputs()
    keywords = {"row_layout": layout(), "dropout": 0.5, "softcap": softcap}
    plain = reference(*tensors, softcap=softcap)
    evaluated, _ = attend_rows(nn.Module().eval(), *tensors, None, **keywords)
    torch.testing.assert_close(evaluated, plain, rtol=1e-9, atol=1e-9)
    draws = torch.stack(
        [attend_rows(nn.Module().train(), *tensors, None, **keywords)[0] for _ in range(400)]
    )
    assert not torch.equal(draws[0], draws[1])
    # dropout leaves the mean as it is; 400 draws of weights below 1 have a standard error near 0.1
    assert (draws.mean(0) - plain).abs().mean() < 0.1 * plain.abs().mean()


LONG = 256


@pytest.mark.parametrize(
    "keywords", [{}, {"sliding_window": 8}, {"softcap": 3.0}, {"sliding_window": 8, "softcap": 3.0}]
)
def test_no_tensor_has_the_square_of_all_positions(keywords):
    """Sixteen rows of 16: the largest tensor is far below T x T, forward and backward."""
    lengths = (LONG // 16,) * 16
    tensors = inputs(lengths=lengths, dtype=torch.float32)
    with recorded_sizes() as sizes:
        output, _ = attend_rows(nn.Module(), *tensors, None, row_layout=layout(lengths), **keywords)
        output.sum().backward()
    # T positions x heads x (width or row length or two windows)
    assert max(sizes) <= LONG * HEADS * 16 < LONG * LONG


def test_a_window_costs_the_row_times_the_window():
    tensors = inputs(lengths=(LONG,), dtype=torch.float32)
    with recorded_sizes() as sizes:
        output, _ = attend_rows(
            nn.Module(), *tensors, None, row_layout=layout((LONG,)), sliding_window=8, softcap=3.0
        )
        output.sum().backward()
    assert max(sizes) <= LONG * HEADS * 2 * 8 < LONG * LONG


@pytest.mark.parametrize("window", [None, 4])
def test_varlen_kernel_takes_the_call(window, monkeypatch):
    """Shapes and keywords on the meta device: the kernel itself needs a GPU."""
    monkeypatch.setattr(attention, "_compute_dtype", lambda tensor: tensor.dtype)
    query, key, value = (x.bfloat16().to("meta") for x in inputs())
    rows = RowLayout.of(LENGTHS, torch.device("meta"))
    rule = attention._Rule(scale=0.5, dropout=0.0, window=window, softcap=None, sinks=None)
    output = attention._attend_varlen(query, key, value, row_layout=rows, rule=rule)
    assert output.shape == (1, sum(LENGTHS), HEADS, WIDTH)
    assert torch.autograd.grad(output.sum(), query)[0].shape == query.shape


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("window", [None, 4])
def test_varlen_kernel_equals_each_row_alone(window):
    """Rows laid flat: the varlen kernel, forward and backward, in bfloat16."""
    lengths = (1, 70, 70, 33)
    tensors = [x.detach().to("cuda", torch.bfloat16) for x in inputs(lengths=lengths)]
    rows = RowLayout.of(lengths, torch.device("cuda"))
    leaves = [x.requires_grad_() for x in tensors]
    assert attention._has_varlen(leaves[0], attention._Rule(1.0, 0.0, window, None, None))
    output, _ = attend_rows(
        nn.Module(), *leaves, None, row_layout=rows, scaling=0.3, sliding_window=window
    )
    exact = [x.detach().cpu().double().requires_grad_() for x in tensors]
    expected = reference(*exact, lengths=lengths, scaling=0.3, window=window)
    # 8 bits of inputs, weights and outputs, forward and backward
    torch.testing.assert_close(output.cpu().double(), expected, rtol=0.03, atol=0.06)
    ours = torch.autograd.grad(output.float().sum(), leaves)
    theirs = torch.autograd.grad(expected.sum(), exact)
    for mine, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.cpu().double(), right, rtol=0.05, atol=0.1)


def test_what_it_does_not_know_is_refused():
    tensors = inputs()
    rows = {"row_layout": layout()}
    for keywords in (
        rows | {"position_bias": torch.zeros(1)},
        rows | {"is_causal": False},
        rows | {"output_flavour": True},
        {"row_layout": layout((3, 4))},
        {},
    ):
        with pytest.raises(UnsupportedAttention):
            attend_rows(nn.Module(), *tensors, None, **keywords)
    with pytest.raises(UnsupportedAttention, match="mask"):
        attend_rows(nn.Module(), *tensors, torch.zeros(1), **rows)
    attend_rows(
        nn.Module(), *tensors, None, **rows, position_bias=None, position_ids=torch.zeros(1)
    )
