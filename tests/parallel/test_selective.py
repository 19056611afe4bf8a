"""Selective recomputes: what is kept is not computed again, and no gradient changes.

The reference is the same module without checkpointing. The same kernels run on the same numbers, so
gradients are equal bit for bit.
"""

import gc
import weakref

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention

from ftrecipes.config.errors import ModelError
from ftrecipes.parallel.op_counts import OpCounts
from ftrecipes.parallel.recompute import recompute
from ftrecipes.parallel.selective import counting, keeping_ops
from ftrecipes.parallel.wrap import blocks_of, lora_aware_wrap_policy
from tests import reference, tiny_models
from tests.parallel.stacks import WIDE, B, D, Stack, T, assert_equal, gradients, stack

FLOAT = 4  # bytes


def test_what_is_counted_is_what_a_hand_counts():
    """Two blocks: `up` is an mm, `down` with its bias an addmm. The recompute of a block ends with
    what `down` needs; nothing needs the sum behind it."""
    counts, full = OpCounts(), OpCounts()
    expected = gradients(stack(lambda x: (x * 2).tanh()))
    assert_equal(gradients(stack(lambda x: (x * 2).tanh()), keeping_ops((), counts)), expected)
    assert counts.kept == {"aten.mm": 2, "aten.addmm": 2}
    rows = B * T * FLOAT
    assert counts.kept_bytes == {"aten.mm": 2 * rows * WIDE, "aten.addmm": 2 * rows * D}
    assert counts.recomputed == {"aten.mul.Tensor": 2, "aten.tanh": 2}
    assert_equal(gradients(stack(lambda x: (x * 2).tanh()), counting(full)), expected)
    assert full.recomputed == {"aten.mm": 2, "aten.mul.Tensor": 2, "aten.tanh": 2}
    assert not full.kept
    assert counts.num_views == full.num_views > 0
    table = [line.split() for line in counts.lines()]
    assert [row[0] for row in table[1:]] == [
        *("aten.mul.Tensor", "aten.tanh", "aten.addmm", "aten.mm", "views")
    ]
    assert table[4] == ["aten.mm", "0", "2", f"{2 * rows * WIDE / 2**20:.2f}"]


def test_a_product_sixteen_times_as_wide_as_deep_is_computed_again():
    for width, again in ((16 * D - 1, 0), (16 * D, 2)):
        counts, named = OpCounts(), OpCounts()
        expected = gradients(stack(torch.tanh, width=width))
        assert_equal(gradients(stack(torch.tanh, width=width), keeping_ops((), counts)), expected)
        assert counts.recomputed["aten.mm"] == again
        assert counts.kept["aten.mm"] == 2 - again
        gradients(stack(torch.tanh, width=width), keeping_ops(["aten.mm"], named))
        assert (named.recomputed["aten.mm"], named.kept["aten.mm"]) == (0, 2)


def test_the_second_matrix_of_an_adapter_is_the_product_that_is_computed_again():
    settings = LoraConfig(r=1, target_modules=["q_proj"], task_type="CAUSAL_LM")
    model, counts = get_peft_model(tiny_models.build("llama"), settings), OpCounts()
    recompute(model, blocks_of(lora_aware_wrap_policy(model)), contexts=keeping_ops((), counts))
    reference.backward_step(model, tiny_models.random_rows((7, 5)))
    assert counts.recomputed["aten.mm"] == 2 * 2  # two layers, two rows
    assert counts.kept["aten.mm"] == 2 * 2 * (7 + 1)


@pytest.mark.parametrize(
    ("save_ops", "kept", "recomputed"),
    [
        (["aten.gelu"], {"aten.gelu": 2, "aten.mm": 2}, {}),
        (["aten::gelu", "-aten.mm"], {"aten.gelu": 2}, {"aten.mm": 2}),
        (["aten.gelu.default"], {"aten.gelu": 2, "aten.mm": 2}, {}),
        (["-aten::mm.default"], {}, {"aten.gelu": 2, "aten.mm": 2}),
        (["-aten.addmm"], {"aten.mm": 2}, {"aten.gelu": 2}),
    ],
)
def test_operators_that_are_named(save_ops, kept, recomputed):
    counts, gelu = OpCounts(), nn.functional.gelu
    assert_equal(gradients(stack(gelu), keeping_ops(save_ops, counts)), gradients(stack(gelu)))
    names = ("aten.gelu", "aten.mm")
    assert {name: counts.kept[name] for name in names if counts.kept[name]} == kept
    assert {
        name: counts.recomputed[name] for name in names if counts.recomputed[name]
    } == recomputed


def test_a_retained_graph_is_computed_again_once_more():
    model = stack(torch.tanh)
    recompute(model, list(model.blocks), contexts=keeping_ops())
    loss = model(torch.ones(B, T, D)).sum()
    loss.backward(retain_graph=True)
    first = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    loss.backward()
    assert_equal({name: p.grad for name, p in model.named_parameters()}, first)


@pytest.mark.parametrize("computed", [True, False])
def test_what_was_kept_goes_with_the_graph(computed):
    """At once, by counted references: results that held their graph would wait for a collection."""
    model, modes, inner = stack(torch.tanh), [], keeping_ops()

    def contexts():
        pair = inner()
        modes.append(weakref.ref(pair[1]))
        return pair

    recompute(model, list(model.blocks), contexts=contexts)
    gc.disable()
    try:
        loss = model(torch.ones(B, T, D)).sum()
        if computed:
            loss.backward()
        del loss
        assert [mode() for mode in modes] == [None, None]
    finally:
        gc.enable()


class Fickle(nn.Module):
    """Multiplies otherwise the second time, as a module with a cache of its own would."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None
        self.linear = nn.Linear(D, D, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.ones(T, 2) @ torch.ones(2, D)
        return (self.linear(x) + self.table).tanh() @ torch.ones(D, D)


def test_other_products_in_the_second_forward_are_an_error():
    """Found by its number, the first would be the table for what the layer computes."""
    with pytest.raises(ModelError, match=r"aten\.mm was not called alike") as caught:
        gradients(Stack(Fickle()), keeping_ops())
    assert "--activation_checkpointing.save_ops=-aten.mm" in str(caught.value)


def test_an_operator_that_was_added_is_to_be_left_out_again():
    class Cached(nn.Module):
        table: Tensor | None = None

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(D, D)

        def forward(self, x: Tensor) -> Tensor:
            if self.table is None:
                self.table = torch.ones(D).tanh()
            return (self.linear(x) * self.table).tanh() * x

    with pytest.raises(ModelError, match=r"leave aten\.tanh out of --activation_check.*save_ops"):
        gradients(Stack(Cached()), keeping_ops(["aten.tanh"]))


class Frozen(nn.Module):
    """A CPU has no gradient of flex attention: it works on what needs none."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.out = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        heads = x.detach().view(B, 1, T, D)
        return x + self.out(flex_attention(heads, heads, heads).tanh().view(B, T, D))


@pytest.mark.parametrize("kept", [True, False])
def test_flex_attention_is_an_operator_of_attention(kept):
    """A higher-order one, which compiles itself inside of the contexts."""
    counts = OpCounts()
    save_ops = [] if kept else ["-higher_order.flex_attention"]
    found = gradients(Stack(Frozen()), keeping_ops(save_ops, counts))
    assert_equal(found, gradients(Stack(Frozen())))
    assert counts.kept["higher_order.flex_attention"] == 2 * kept
    assert counts.recomputed["higher_order.flex_attention"] == 2 * (not kept)
