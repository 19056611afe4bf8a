"""Quantized base weights through bitsandbytes: what is asked for, what came of it, how it computes.

Linear layers are quantized, and in 4 bits the experts that transformers keeps as three-dimensional
parameters (model/experts.py). The embedding and the head stay as they are.
"""

import re
from collections import Counter

import bitsandbytes as bnb
import torch
from bitsandbytes.functional import QuantState
from torch import Tensor, nn
from transformers import (
    BitsAndBytesConfig,
    FineGrainedFP8Config,
    Mxfp4Config,
    PreTrainedModel,
)
from transformers.pytorch_utils import Conv1D

from ftrecipes.config.errors import ModelError
from ftrecipes.config.precision import Precision
from ftrecipes.config.schema import QuantizationConfig
from ftrecipes.config.stored import Stored
from ftrecipes.model.experts import open_packed
from ftrecipes.model.packed import PackedModule, Packing, packed_sizes, packing_of, weight_counts
from ftrecipes.model.quantized_ops import linear_4bit, linear_8bit
from ftrecipes.model.quantizer import EightBitConfig, FourBitConfig
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
        return EightBitConfig(load_in_8bit=True)
    return FourBitConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=quantization.quant_type,
        bnb_4bit_use_double_quant=quantization.use_double_quant,
        bnb_4bit_quant_storage=quantization.quant_storage,
        bnb_4bit_compute_dtype=precision.compute,
    )


class _DequantizedLinear(nn.Module):
    """Forward of a quantized layer: exactly F.linear on the dequantized weight, in every mode.

    The layers of bitsandbytes 0.50 (nn/modules.py) do other things too, and some of them break
    training: on CPUs with AVX512-BF16 the first forward in eval mode repacks a 4-bit weight in
    place, and no gradient passes the layer from then on; in some shapes a fused kernel multiplies;
    8-bit layers round the activations as well, in columns chosen by all rows of a batch, so that a
    row's result would depend on its company.
    """

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """The weight [out, in] that the stored numbers stand for."""
        raise NotImplementedError

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """F.linear on the dequantized weight, as one operator without a derivative."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out], in the dtype of x, or of autocast where that is on.

        Raises TypeError for whole numbers: models that cast x to the dtype of the weight, which is
        that of its packing here, have lost it.
        """
        if not x.is_floating_point():
            raise TypeError("the input of a quantized layer was cast to the dtype of its packing")
        kind = x.device.type
        autocast = torch.is_autocast_enabled(kind)
        output_dtype = torch.get_autocast_dtype(kind) if autocast else x.dtype
        x = x.to(self.multiply_dtype(output_dtype))
        with torch.autocast(kind, enabled=False):
            bias = None if self.bias is None else self.bias.to(x.dtype)
            return _LinearFunction.apply(x, bias, self).to(output_dtype)

    def multiply_dtype(self, output_dtype: torch.dtype) -> torch.dtype:
        """The dtype to multiply in."""
        return output_dtype


class DequantizedLinear4bit(_DequantizedLinear, PackedModule, bnb.nn.Linear4bit):
    """A 4-bit layer of bitsandbytes with the forward above; multiplies in its compute_dtype."""

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        return self.unpacked("weight").to(dtype)

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        weight, shape = self._parameters["weight"].data, self.packings["weight"].shape
        return linear_4bit(x, weight, bias, shape=shape, state=self.quant_state)

    def state_of(self, name: str) -> QuantState | None:
        return self.quant_state

    def set_state(self, name: str, state: QuantState) -> None:
        self.quant_state = state
        if isinstance(self.weight, bnb.nn.Params4bit):  # where bitsandbytes and PEFT look for it
            self.weight.quant_state = state

    def multiply_dtype(self, output_dtype: torch.dtype) -> torch.dtype:
        return self.compute_dtype or output_dtype


class DequantizedLinear8bit(_DequantizedLinear, bnb.nn.Linear8bitLt):
    """An 8-bit layer of bitsandbytes with the forward above."""

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        return bnb.functional.int8_vectorwise_dequant(self.weight.data, self.weight.SCB).to(dtype)

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return linear_8bit(x, self.weight.data, bias, scale=self.weight.SCB)


class _LinearFunction(torch.autograd.Function):
    """F.linear that dequantizes once more in the backward instead of keeping the weight."""

    @staticmethod
    def forward(ctx, x, bias, layer):
        ctx.layer = layer
        return layer.multiply(x, bias)

    @staticmethod
    def backward(ctx, grad):
        x_grad = bias_grad = None
        if ctx.needs_input_grad[0]:
            x_grad = grad @ ctx.layer.dequantized(grad.dtype)
        if ctx.needs_input_grad[1]:
            bias_grad = grad.flatten(0, -2).sum(0)
        return x_grad, bias_grad, None


def stored_config(stored: Stored) -> FineGrainedFP8Config | Mxfp4Config | None:
    """How quantized files are read: into plain weights, or (None) as their config says."""
    configs = {"fp8": FineGrainedFP8Config, "mxfp4": Mxfp4Config}
    return configs[stored.method](dequantize=True) if stored.method in configs else None


def finish_quantization(
    model: PreTrainedModel, quantization: QuantizationConfig, precision: Precision
) -> None:
    """After loading: check that it was done as asked, make the layers exact, log the share.

    Raises ModelError when no layer could be quantized. Call it before adapters are added.
    """
    if quantization.method == "none":
        return
    theirs, ours = {
        "4bit": (bnb.nn.Linear4bit, DequantizedLinear4bit),
        "8bit": (bnb.nn.Linear8bitLt, DequantizedLinear8bit),
    }[quantization.method]
    layers = [module for module in model.modules() if isinstance(module, theirs)]
    compute = getattr(torch, precision.compute)
    for layer in layers:
        if quantization.method == "4bit":
            layer.packings = {"weight": _packing(layer, quantization)}
            layer.compute_dtype = compute  # that of a quantized file may be another
        layer.__class__ = ours
    open_packed(model, quantization, compute)
    if not packed_sizes(model):
        raise ModelError(
            f"--quantization {quantization.method}: {type(model).__name__} has no layer that "
            "bitsandbytes can quantize.\n"
            "  expected: linear layers\n  do: leave --quantization out"
        )
    _log_share(model)


def _packing(layer: bnb.nn.Linear4bit, quantization: QuantizationConfig) -> Packing:
    return packing_of(
        layer.weight,
        quantization,
        shape=torch.Size((layer.out_features, layer.in_features)),
        transposed=issubclass(layer.source_cls, Conv1D),
    )


def quantized_share(model: nn.Module) -> tuple[float, Counter[str]]:
    """Share of all weights that are quantized, and the number of the others by kind.

    A kind is a parameter name with its layer numbers replaced by `*`. Tied weights count once.
    """
    packed, others = packed_sizes(model), Counter()
    for name, count in weight_counts(model).items():
        if name not in packed:
            others[re.sub(r"\.\d+\.", ".*.", name)] += count
    total = sum(packed.values())
    return total / (total + others.total()), others


def _log_share(model: nn.Module) -> None:
    share, others = quantized_share(model)
    if share >= ENOUGH_QUANTIZED:
        log.info(f"{share:.0%} of the weights are quantized")
    else:
        total = others.total() / (1 - share)
        largest = [(k, n / total) for k, n in others.most_common(_NAMED) if n >= total / 200]
        named = ", ".join(f"{kind} {part:.0%}" for kind, part in largest)
        log.warning(
            f"only {share:.0%} of the weights are quantized; at full size remain: {named}. "
            "embedding and head are never quantized, nor the experts of a mixture in 8 bits or in "
            "a model that was quantized before; plan memory for them"
        )
