"""Quantized linear layers as one operator each: tensors in, one tensor out.

Whoever watches operators (a selective recompute, a profiler) sees the product of a quantized layer
as a whole: where its result is kept, its weight is not even dequantized the second time.
Shapes: x [..., I], the weight stands for [O, I], the result is [..., O] in the dtype of x.
"""

import bitsandbytes as bnb
import torch
import torch.nn.functional as F
from bitsandbytes.functional import QuantState
from torch import Tensor
from torch.library import Library

_LIBRARY = Library("ftrecipes", "DEF")
_LIBRARY.define(
    "linear_4bit(Tensor x, Tensor weight, Tensor? bias, int[] shape, Tensor? absmax=None, "
    "ScalarType? dtype=None, int blocksize=0, str quant_type='', Tensor? offset=None, "
    "Tensor? absmax2=None, Tensor? code2=None, int blocksize2=0, ScalarType? dtype2=None) -> Tensor"
)
_LIBRARY.define("linear_8bit(Tensor x, Tensor weight, Tensor? bias, Tensor? scale) -> Tensor")


def linear_4bit(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, shape: torch.Size, state: QuantState | None
) -> Tensor:
    """F.linear on the weight [O, I] (`shape`) that the packed `weight` [n, 1] stands for.

    `state` holds its statistics; None where the tensors have no numbers, on the meta device.
    It has no derivative: call it where gradients are off.
    """
    if state is None:
        return LINEAR_4BIT(x, weight, bias, shape)
    statistics = (state.absmax, state.dtype, state.blocksize, state.quant_type)
    if state.nested:
        inner = state.state2
        statistics += (state.offset, inner.absmax, inner.code, inner.blocksize, inner.dtype)
    return LINEAR_4BIT(x, weight, bias, shape, *statistics)


def linear_8bit(x: Tensor, weight: Tensor, bias: Tensor | None, *, scale: Tensor | None) -> Tensor:
    """F.linear on the int8 `weight` [O, I] times `scale` [O] / 127; otherwise as linear_4bit."""
    return LINEAR_8BIT(x, weight, bias, scale)


def _linear_4bit(
    x,
    weight,
    bias,
    shape,
    absmax=None,
    dtype=None,
    blocksize=0,
    quant_type="",
    offset=None,
    absmax2=None,
    code2=None,
    blocksize2=0,
    dtype2=None,
):
    state2 = None
    if absmax2 is not None:
        state2 = QuantState(absmax2, code=code2, blocksize=blocksize2, dtype=dtype2)
    state = QuantState(
        absmax,
        shape=torch.Size(shape),
        blocksize=blocksize,
        quant_type=quant_type,
        dtype=dtype,
        offset=offset,
        state2=state2,
    )
    return F.linear(x, bnb.functional.dequantize_4bit(weight, state).to(x.dtype), bias)


def _linear_8bit(x, weight, bias, scale):
    return F.linear(x, bnb.functional.int8_vectorwise_dequant(weight, scale).to(x.dtype), bias)


def _empty_4bit(x, weight, bias, shape, *statistics):
    return x.new_empty(*x.shape[:-1], shape[0])


def _empty_8bit(x, weight, bias, scale):
    return x.new_empty(*x.shape[:-1], weight.shape[0])


_LIBRARY.impl("linear_4bit", _linear_4bit, "CompositeExplicitAutograd")
_LIBRARY.impl("linear_4bit", _empty_4bit, "Meta")
_LIBRARY.impl("linear_8bit", _linear_8bit, "CompositeExplicitAutograd")
_LIBRARY.impl("linear_8bit", _empty_8bit, "Meta")

LINEAR_4BIT = torch.ops.ftrecipes.linear_4bit
LINEAR_8BIT = torch.ops.ftrecipes.linear_8bit
