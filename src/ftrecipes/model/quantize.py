"""Quantized base weights through bitsandbytes: what is asked for, what came of it, how it computes.

bitsandbytes quantizes linear layers only. The embedding and the head stay as they are, and so do
the experts that transformers keeps as three-dimensional parameters.
"""

import re
from collections import Counter

import bitsandbytes as bnb
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BitsAndBytesConfig

from ftrecipes.config.errors import ModelError
from ftrecipes.config.precision import Precision
from ftrecipes.config.schema import QuantizationConfig
from ftrecipes.runtime import log

ENOUGH_QUANTIZED = 0.8
_NAMED = 4  # kinds of weights that the warning names


def bitsandbytes_config(
    quantization: QuantizationConfig, precision: Precision
) -> BitsAndBytesConfig | None:
    """The settings for from_pretrained; None when nothing is quantized."""
    if quantization.method == "none":
        return None
    if quantization.method == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=quantization.quant_type,
        bnb_4bit_use_double_quant=quantization.use_double_quant,
        bnb_4bit_quant_storage=quantization.quant_storage,
        bnb_4bit_compute_dtype=precision.compute,
    )


class DequantizedLinear4bit(bnb.nn.Linear4bit):
    """A 4-bit layer whose forward is exactly F.linear on the dequantized weight, everywhere.

    The class of bitsandbytes 0.50 multiplies by a fused kernel in some shapes on CUDA, and on CPUs
    with AVX512-BF16 repacks the stored weight in the first forward in eval mode, after which no
    gradient passes the layer (nn/modules.py, Linear4bit.forward). It also makes new parameters when
    the weight has been sharded. `quant_state` is read from the module for that reason.
    """

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out], in the dtype of x, or of autocast where that is on."""
        kind = x.device.type
        output_dtype = (
            torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        )
        compute_dtype = self.compute_dtype or x.dtype
        with torch.autocast(kind, enabled=False):
            bias = None if self.bias is None else self.bias.to(compute_dtype)
            output = _PackedLinear.apply(x.to(compute_dtype), self.weight, bias, self.quant_state)
        return output.to(output_dtype)


class _PackedLinear(torch.autograd.Function):
    """F.linear that saves only the packed weight, and dequantizes it once more in the backward."""

    @staticmethod
    def forward(ctx, x, packed, bias, quant_state):
        ctx.save_for_backward(packed)
        ctx.quant_state = quant_state
        return F.linear(x, dequantize(packed, quant_state, x.dtype), bias)

    @staticmethod
    def backward(ctx, grad):
        (packed,) = ctx.saved_tensors
        x_grad = bias_grad = None
        if ctx.needs_input_grad[0]:
            x_grad = grad @ dequantize(packed, ctx.quant_state, grad.dtype)
        if ctx.needs_input_grad[2]:
            bias_grad = grad.flatten(0, -2).sum(0)
        return x_grad, None, bias_grad, None


def dequantize(
    packed: Tensor, quant_state: bnb.functional.QuantState, dtype: torch.dtype
) -> Tensor:
    """The weight [out, in] that packed 4-bit data stand for."""
    return bnb.functional.dequantize_4bit(packed.data, quant_state).to(dtype)


def finish_quantization(model: nn.Module, quantization: QuantizationConfig) -> None:
    """After loading: check that it was done as asked, make 4-bit layers exact, log the share.

    Raises ModelError when no layer could be quantized. Call it before adapters are added.
    """
    if quantization.method == "none":
        return
    kind = bnb.nn.Linear4bit if quantization.method == "4bit" else bnb.nn.Linear8bitLt
    layers = {name: m for name, m in model.named_modules() if isinstance(m, kind)}
    if not layers:
        raise ModelError(
            f"--quantization {quantization.method}: {type(model).__name__} has no layer that "
            "bitsandbytes can quantize.\n"
            "  expected: linear layers\n  do: leave --quantization out"
        )
    if quantization.method == "4bit":
        for name, layer in layers.items():
            _check_state(name, layer, quantization)
            layer.__class__ = DequantizedLinear4bit
    _log_share(model)


def _check_state(name: str, layer: bnb.nn.Linear4bit, quantization: QuantizationConfig) -> None:
    state = layer.quant_state
    got = (state.quant_type, state.nested, layer.weight.dtype)
    storage = getattr(torch, quantization.quant_storage)
    asked = (quantization.quant_type, quantization.use_double_quant, storage)
    assert got == asked, f"{name} is quantized as {got}, asked for {asked}"


def numel(parameter: Tensor) -> int:
    """Number of weights a parameter stands for, packed or not."""
    if isinstance(parameter, bnb.nn.Params4bit):
        return parameter.quant_state.shape.numel()
    return parameter.numel()


def quantized_share(model: nn.Module) -> tuple[float, Counter[str]]:
    """Share of all weights that are quantized, and the number of the others by kind.

    A kind is a parameter name with its layer numbers replaced by `*`. Tied weights count once.
    """
    packed, others = 0, Counter()
    for name, parameter in model.named_parameters():
        if isinstance(parameter, bnb.nn.Params4bit | bnb.nn.Int8Params):
            packed += numel(parameter)
        else:
            others[re.sub(r"\.\d+\.", ".*.", name)] += parameter.numel()
    return packed / (packed + others.total()), others


def _log_share(model: nn.Module) -> None:
    share, others = quantized_share(model)
    log.info(f"{share:.0%} of the weights are quantized")
    if share < ENOUGH_QUANTIZED:
        total = others.total() / (1 - share)
        named = ", ".join(f"{k} {n / total:.0%}" for k, n in others.most_common(_NAMED))
        log.warning(
            f"only {share:.0%} of the weights are quantized; at full size remain: {named}. "
            "bitsandbytes takes linear layers only: no embedding, no head, no experts that are one "
            "three-dimensional parameter; plan memory for them"
        )
