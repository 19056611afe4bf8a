"""Operators by name, and those whose results must not be kept."""

import bitsandbytes  # noqa: F401 - its operators are there once it is imported
import pytest
import torch
from torch import Tensor, nn
from torch.library import Library

from ftrecipes.config.errors import ConfigError
from ftrecipes.parallel.op_counts import OpCounts
from ftrecipes.parallel.operators import KeptOps, name_of
from ftrecipes.parallel.recompute import recompute
from ftrecipes.parallel.selective import keeping_ops

ATTENTION = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_flash_attention_forward",
    "_efficient_attention_forward",
    "_cudnn_attention_forward",
)
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "_scaled_mm", "convolution")


@pytest.mark.parametrize("name", [*ATTENTION, *PRODUCTS])
def test_products_and_attention_are_kept(name):
    op = getattr(torch.ops.aten, name).default
    assert op in KeptOps()
    assert op not in KeptOps([f"-aten.{name}"])


@pytest.mark.parametrize(
    "name",
    [
        *("mm.out", "_flash_attention_forward_no_dropout_inplace", "silu", "add.Tensor", "view"),
        *("_scaled_dot_product_flash_attention_backward", "convolution_backward", "native_dropout"),
    ],
)
def test_others_are_not(name):
    packet, _, overload = name.partition(".")
    assert getattr(getattr(torch.ops.aten, packet), overload or "default") not in KeptOps()


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("probability", [0.0, 0.1])
def test_attention_that_drops_is_not_kept(name, probability):
    op = getattr(torch.ops.aten, name).default
    place = [argument.name for argument in op._schema.arguments].index("dropout_p")
    args = [*[None] * place, probability]
    assert KeptOps([f"aten.{name}"]).keeps(op, args, {}, None) == (probability == 0)
    assert KeptOps().keeps(op, args[:place], {"dropout_p": probability}, None) == (not probability)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("aten.gellu", "there is no operator aten.gellu.*\n.*\n  nearest: aten.gelu, "),
        ("torch.gelu", "nearest: aten.gelu, "),
        ("bitsandbytes::gemm4bit", "nearest: bitsandbytes.gemm_4bit"),
        ("aten.gelu.defaults", "nearest: aten.gelu.default"),
        ("-aten.mmm", "there is no operator aten.mmm"),
        ("aten.add_", "aten.add_ can not be kept.\n  got: it changes what it is given"),
        ("aten.mm.out", "got: it changes what it is given"),
        ("aten.transpose", "got: its result is a view"),
        ("aten.native_dropout", "got: it draws random numbers"),
        ("aten.rand_like", "got: it draws random numbers"),
        ("aten.matmul", "got: it is made of other operators"),
        ("aten.rms_norm", "got: it is made of other operators"),
        ("-aten.gelu", "-aten.gelu would have no effect"),
        ("-aten.mm.out", "-aten.mm.out would have no effect"),
    ],
)
def test_names_that_do_not_serve(name, words):
    with pytest.raises(ConfigError, match=f"(?s)^--activation_checkpointing.save_ops: .*{words}"):
        KeptOps([name])


def test_all_overloads_that_can_be_kept():
    kept = KeptOps(["aten.add", "aten.sum.dim_IntList"])
    assert torch.ops.aten.add.Tensor in kept
    assert torch.ops.aten.add.Scalar in kept
    assert torch.ops.aten.add.out not in kept
    assert torch.ops.aten.sum.dim_IntList in kept
    assert torch.ops.aten.sum.default not in kept
    assert name_of(torch.ops.aten.add.Tensor) == "aten.add.Tensor"


@pytest.fixture(scope="module")
def attention_of_a_kernel():
    """An operator named as flash-attn and the kernels of the hub name theirs, which drops."""
    library = Library("our_flash_attn_test", "DEF")
    library.define("_flash_attn_forward(Tensor x, float dropout_p) -> Tensor")

    def forward(x: Tensor, dropout_p: float) -> Tensor:
        return nn.functional.dropout(x, dropout_p) + 1

    library.impl("_flash_attn_forward", forward, "CompositeExplicitAutograd")
    yield torch.ops.our_flash_attn_test._flash_attn_forward
    library._destroy()


class Dropping(nn.Module):
    """Drops in an operator, and then outside."""

    def __init__(self, attention, probability: float) -> None:
        super().__init__()
        self.attention, self.probability = attention, probability
        torch.manual_seed(0)
        self.out = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.attention(x, self.probability)
        return self.out(nn.functional.dropout(x, 0.5).tanh()).tanh()


@pytest.mark.parametrize("probability", [0.0, 0.3])
def test_what_is_drawn_after_attention_that_drops_is_drawn_alike(
    attention_of_a_kernel, probability
):
    found, counts = [], OpCounts()
    for checkpointed in (False, True):
        model = nn.Sequential(Dropping(attention_of_a_kernel, probability))
        if checkpointed:
            recompute(model, [model[0]], contexts=keeping_ops((), counts))
        torch.manual_seed(1)
        model(torch.ones(3, 8)).sum().backward()
        found.append([parameter.grad for parameter in model.parameters()])
    assert all(one.equal(other) for one, other in zip(*found, strict=True))
    name = "our_flash_attn_test._flash_attn_forward"
    assert counts.kept[name] == (probability == 0)
    assert counts.recomputed[name] == (probability > 0)
