"""Results that are kept, and that the module or others change in place: no gradient changes."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from ftrecipes.model.module_names import canonical_name
from ftrecipes.parallel.op_counts import OpCounts
from ftrecipes.parallel.recompute import recompute
from ftrecipes.parallel.selective import keeping_ops
from ftrecipes.parallel.wrap import blocks_of, lora_aware_wrap_policy
from tests import reference, tiny_families, tiny_models
from tests.parallel.stacks import D, assert_equal, gradients, stack


def shift(x: Tensor) -> Tensor:
    """Changes what it is given in place, behind `aten._unsafe_view`."""
    x += 1
    return x.tanh()


def shift_twice(x: Tensor) -> Tensor:
    x.view(-1).mul_(2)
    torch.add(x.detach(), 1, out=x.data)
    return x.tanh()


class Raw(torch.autograd.Function):
    """Doubles what it is given, and tells autograd only, as rotary kernels of flash-attn do."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        x.detach().numpy()[:] *= 2
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return grad * 2


def double(x: Tensor) -> Tensor:
    return Raw.apply(x.view(x.shape)).tanh()


def double_flat(x: Tensor) -> Tensor:
    flat = Raw.apply(x.flatten(0, 1) @ torch.eye(x.shape[-1]))
    return flat.tanh().view_as(x)


@pytest.mark.parametrize("between", [double, double_flat])
def test_results_that_kernels_unknown_to_torch_change_are_not_kept(between):
    counts = OpCounts()
    assert_equal(gradients(stack(between), keeping_ops((), counts)), gradients(stack(between)))
    assert counts.recomputed["aten.mm"] == 2
    assert counts.kept["aten.addmm"] == 2


@pytest.mark.parametrize("between", [shift, shift_twice])
def test_results_that_are_changed_in_place_are_kept_as_they_were(between):
    counts = OpCounts()
    assert_equal(gradients(stack(between), keeping_ops((), counts)), gradients(stack(between)))
    assert counts.kept["aten.mm"] == 2
    assert counts.recomputed["aten.mm"] == 0


def test_why_the_contexts_of_torch_do_not_serve():
    """torch 2.13 gives back what was changed. When this fails, its contexts may be used."""
    products = [torch.ops.aten.mm.default]
    contexts = partial(create_selective_checkpoint_contexts, products)
    found, expected = gradients(stack(shift), contexts), gradients(stack(shift))
    assert not found["blocks.0.up.weight"].allclose(expected["blocks.0.up.weight"], rtol=0.01)


@pytest.mark.parametrize("family", ["falcon", "gemma3n_text", "gpt_oss", "llama4_text"])
def test_families_that_change_products_in_place(family):
    """Those of all that transformers has, and nothing is multiplied again for it."""
    found = {}
    for counts in (None, OpCounts()):
        model = tiny_families.build(family).train()
        with torch.no_grad():
            for parameter in model.parameters():  # biases start at zero
                parameter += 0.05 * torch.randn_like(parameter)
        if counts is not None:
            blocks = blocks_of(lora_aware_wrap_policy(model))
            recompute(model, blocks, contexts=keeping_ops((), counts))
        reference.backward_step(model, tiny_models.random_rows((7, 12)))
        found[counts is None] = reference.gradients(model)
    expected = found[True]
    assert_equal({canonical_name(name): grad for name, grad in found[False].items()}, expected)
    assert not [name for name in counts.recomputed if "mm" in name]
    assert counts.kept.total() > 0


class Leaving(nn.Module):
    """Its product leaves it, after it was used within."""

    def __init__(self) -> None:
        super().__init__()
        self.product, self.out = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        product = self.product(x)
        return product, self.out(product.tanh())


class Changing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Leaving(), Leaving()])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            product, x = block(x)
            product.mul_(3)
            x = x + product
        return x


def test_results_that_leave_the_module_may_be_changed_outside():
    counts = OpCounts()
    assert_equal(gradients(Changing(), keeping_ops((), counts)), gradients(Changing()))
    assert counts.kept == {}
    assert counts.recomputed["aten.addmm"] == 2  # `out` is behind what the backward needs
