"""Inputs of checkpointed modules in host memory: the same numbers, whatever they are and when.

The reference is the same model without a stash, or without checkpoints. The same kernels run on the
same numbers, so all gradients are bit-equal. Every test runs on two streams: that of a CPU, which
copies at once, and one that copies as late as it may.
"""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from ftrecipes.config.errors import ConfigError
from ftrecipes.parallel import offload
from ftrecipes.parallel.offload import HostStash
from ftrecipes.parallel.recompute import Recomputed, recompute
from tests import tiny_models
from tests.parallel.offloading import CPU, INPUT_BYTES, WIDTH, LateStream, batch, equal, stacked
from tests.parallel.offloading import gradients as taken
from tests.parallel.test_recompute import ROWS, build, gradients

KEPT = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default]
SELECTIVE = {"contexts": partial(create_selective_checkpoint_contexts, KEPT)}
# which parts of each block are checkpointed (empty: the block), and how
WAYS = {
    "blocks": ([""], {}),
    "attention, given by keyword": (["self_attn"], {}),
    "attention and mlp": (["self_attn", "mlp"], {}),
    "selective": ([""], SELECTIVE),
}


@pytest.fixture(params=["at once", "late"])
def stash(request, monkeypatch) -> HostStash:
    if request.param == "late":
        monkeypatch.setattr(offload, "SideStream", LateStream)
    return HostStash(CPU)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("way", WAYS)
def test_the_same_gradients_and_a_second_forward(stash, way, dropout):
    expected = gradients(build(dropout, recomputing=False))
    model, calls = build(dropout, recomputing=False), []
    names, settings = WAYS[way]
    blocks = model.get_base_model().model.layers
    parts = [block.get_submodule(name) for block in blocks for name in names]
    for part in parts:
        part.register_forward_pre_hook(lambda module, _: calls.append(module))
    recompute(model, parts, keeping=stash.keeping, **settings)
    found = gradients(model)
    assert found.keys() == expected.keys()
    assert all(found[name].equal(expected[name]) for name in found)
    assert len(calls) == 2 * len(parts) * len(ROWS)
    longest = max(len(ids) for ids, _ in ROWS) * model.config.hidden_size * 4
    # the embedding is frozen: no gradient flows through what the first part is given
    assert stash.peak_host_bytes == (len(parts) - 1) * longest
    assert stash.host_bytes == 0


def test_a_mixture_of_experts_trained_in_full(stash):
    def numbers(**how) -> list[Tensor]:
        model = tiny_models.build("mixtral").train()
        if how:
            recompute(model, list(model.model.layers), **how)
        gradients(model)
        return [parameter.grad for parameter in model.parameters()]

    assert equal(numbers(keeping=stash.keeping), numbers())


def test_inputs_are_fetched_one_module_ahead_and_waited_for(monkeypatch):
    """While a layer computes again, the copy of what the one before it takes is on its way."""
    monkeypatch.setattr(offload, "SideStream", LateStream)
    stash = HostStash(CPU)
    stack = stacked(stash)
    loss = stack(batch())
    log = stash._side.log
    log.clear()
    for index, layer in enumerate(stack.layers):
        inner = layer._checkpoint_wrapped_module
        inner.register_forward_pre_hook(lambda *_, index=index: log.append(f"layer {index}"))
    loss.backward()
    ahead = ["wait", "fetch", "layer 2", "wait", "fetch", "layer 1", "wait", "layer 0"]
    assert log == ["fetch", "wait", "fetch", "layer 3", *ahead]


class Spy(nn.Module):
    """Keeps what it is given each time."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.given.append(x.detach())
        return x.sin() * 2


# what is done to a tensor of 2 x 3 x WIDTH, and how many elements are copied then
KINDS = {
    "plain": (lambda x: x, 48),
    "turned": (lambda x: x.transpose(0, 2), 48),
    "expanded": (lambda x: x[:1, None].expand(5, 4, 3, WIDTH), 24),
    "turned and expanded": (lambda x: x.transpose(0, 2)[..., None].expand(WIDTH, 3, 2, 6), 48),
    "overlapping": (lambda x: x.reshape(-1).unfold(0, 8, 2), 48),
    "a row of it": (lambda x: x[1], 24),
    "one number": (lambda x: x[1, 1, 1], 1),
    "bfloat16": (lambda x: x.bfloat16(), 48),
    "float16": (lambda x: x.half().transpose(0, 1), 48),
    "float64": (lambda x: x.double(), 48),
    "every second row, expanded": (lambda x: x[:, ::2, None].expand(2, 2, 4, WIDTH), 48),
    "columns of it": (lambda x: x[..., 1:4], 18),
    "none": (lambda x: x[:0, :1, :1], 0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_comes_back_as_it_was(stash, kind):
    change, places = KINDS[kind]

    def run(**how) -> tuple[Tensor, Spy]:
        leaf, spy = batch().requires_grad_(), Spy()
        Recomputed(spy, **how)(change(leaf * 1.5)).sum().backward()
        return leaf.grad, spy

    expected, _ = run()
    found, spy = run(keeping=stash.keeping)
    first, second = spy.given
    assert found.equal(expected)
    assert second.equal(first)
    assert second.dtype == first.dtype
    assert second.stride() == first.stride() or kind == "columns of it"
    assert not places or second.data_ptr() != first.data_ptr()
    assert stash.peak_host_bytes == places * first.itemsize


class Marked(Tensor):
    """A tensor of another class, as DTensor is one."""


@torch.no_grad()
def row_of(tensor: Tensor) -> Tensor:
    return tensor[1]


COMPUTED = batch().requires_grad_() * 2
STAYS = {
    "a parameter": nn.Parameter(batch()),
    "a view of a parameter": nn.Parameter(batch())[:, 1:],
    "what needs no gradient": batch(),
    "a leaf": batch().requires_grad_(),
    "a view of a leaf": batch().requires_grad_()[1],
    "a tensor of another class": COMPUTED.as_subclass(Marked),
    "a view taken without gradients": row_of(COMPUTED),
    "ids": torch.arange(4),
}


@pytest.mark.parametrize("kind", STAYS)
def test_what_stays_is_the_tensor_itself(stash, kind):
    spy, given = Spy(), STAYS[kind]
    assert (given.requires_grad and not given.is_leaf) == ("view of" in kind or "class" in kind)
    weight = torch.ones((), requires_grad=True)
    module = nn.Module()
    module.forward = lambda x: spy(x) * weight.cos()
    Recomputed(module, keeping=stash.keeping)(given).sum().backward(inputs=[weight])
    assert [each.data_ptr() for each in spy.given] == [given.data_ptr()] * 2
    assert stash.peak_host_bytes == 0
    assert weight.grad != 0


def test_tensors_inside_of_tuples_stay(stash):
    def run(**how) -> list[Tensor]:
        stack = stacked(None, depth=1)
        layer = Recomputed(stack.layers[0]._checkpoint_wrapped_module, **how)
        x = stack.first(batch())
        layer(x=x, table=(x * 0.5, torch.full((WIDTH,), 0.1))).square().sum().backward()
        return taken(stack)

    assert equal(run(keeping=stash.keeping), run())
    assert stash.peak_host_bytes == INPUT_BYTES


def test_a_tensor_given_to_several_modules_is_copied_once(stash):
    def run(**how) -> list[Tensor]:
        stack = stacked(None, depth=3)
        layers = [Recomputed(layer._checkpoint_wrapped_module, **how) for layer in stack.layers]
        x = stack.first(batch())
        sum(layer(x).square().sum() for layer in layers).backward()
        return taken(stack)

    assert equal(run(keeping=stash.keeping), run())
    assert stash.peak_host_bytes == INPUT_BYTES
    assert stash.host_bytes == 0


@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize("with_stash", [True, False])
def test_an_input_that_is_changed_in_place_is_refused(stash, moves, with_stash):
    """As a checkpoint refuses it without a stash, although torch does not ask hooks."""
    how = {"keeping": stash.keeping} if with_stash else {}
    layer = Recomputed(stacked(None).layers[0]._checkpoint_wrapped_module, **how)
    leaf = batch().requires_grad_(moves)
    x = leaf * 1.0
    result = layer(x).sum()
    with torch.no_grad():
        x += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()
    del result
    assert stash.host_bytes == 0


def test_a_tensor_changed_in_between_is_copied_anew(stash):
    """Each module gets what was there when it was called; torch refuses the first one."""
    spies, x = [Spy(), Spy()], batch().requires_grad_() * 1.0
    first = Recomputed(spies[0], keeping=stash.keeping)(x)
    with torch.no_grad():
        x += 1
    second = Recomputed(spies[1], keeping=stash.keeping)(x)
    second.sum().backward()
    assert spies[1].given[1].equal(spies[1].given[0])
    with pytest.raises(RuntimeError, match="at version 1; expected version 0"):
        first.sum().backward()


def test_a_device_without_memory_of_its_own_is_refused():
    with pytest.raises(ConfigError, match="whose memory is the host's"):
        HostStash(torch.device("mps"))
