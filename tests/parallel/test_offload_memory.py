"""What a stash holds and when it lets go: of forwards, backwards, and those that never come."""

import gc
import threading

import pytest
import torch
from torch import nn

from ftrecipes.parallel import offload
from ftrecipes.parallel.offload import HostStash
from tests.parallel.offloading import (
    CPU,
    INPUT_BYTES,
    LateStream,
    batch,
    equal,
    gradients,
    stacked,
)


@pytest.fixture(params=["at once", "late"])
def stash(request, monkeypatch) -> HostStash:
    if request.param == "late":
        monkeypatch.setattr(offload, "SideStream", LateStream)
    return HostStash(CPU)


def live(stash: HostStash) -> tuple[int, int, int]:
    """Calls, tensors that were copied, and copies, which are there."""
    return len(stash._calls), len(stash._copies), stash.host_bytes


NOTHING = (0, 0, 0)


def step(model: nn.Module, *seeds: int) -> list[torch.Tensor]:
    """Gradients of several micro-batches, one after another."""
    for seed in seeds:
        model(batch(seed)).backward()
    return gradients(model)


def test_a_forward_leaves_no_input_on_the_device_and_a_backward_none_on_the_host(stash):
    plain = stacked(None)
    loss = plain(batch())
    assert [ref.expired() for ref in plain.inputs] == [False] * 4
    loss.backward()

    stack = stacked(stash)
    loss = stack(batch())
    assert [ref.expired() for ref in stack.inputs] == [True] * 4
    assert stash.host_bytes == 4 * INPUT_BYTES
    seen = []
    for layer in stack.layers:
        layer.register_full_backward_hook(lambda *_: seen.append(stash.host_bytes // INPUT_BYTES))
    stack(batch()).backward()
    assert seen == [7, 6, 5, 4]  # each layer that is through has let go of its own
    loss.backward()
    assert live(stash) == NOTHING
    assert stash.peak_host_bytes == 8 * INPUT_BYTES
    assert stack.calls == [4] * 4


def test_what_is_on_its_way_lives_until_it_is_there(stash):
    """Whoever lets go of it meanwhile."""
    leaf = batch().requires_grad_()
    x = leaf * 2
    with stash.keeping():
        result = x.sin().sum()
        del x
    result.backward()
    assert leaf.grad.equal(2 * (leaf * 2).cos())
    assert stash.peak_host_bytes == INPUT_BYTES


def test_fetched_inputs_are_let_go_one_by_one(stash):
    """At most two are on the device: that of the layer which computes, and the next one."""
    stack = stacked(stash, depth=6)
    most = []

    def note(*_: object) -> None:
        fetched = [len(call.fetched) for call in stash._calls.values()]
        most.append(sum(fetched))

    loss = stack(batch())
    for layer in stack.layers:
        layer._checkpoint_wrapped_module.register_forward_pre_hook(note)
    loss.backward()
    assert most == [1] * 5 + [0]


def test_many_steps_take_no_more_than_one(stash):
    stack = stacked(stash)
    for seed in range(20):
        step(stack, seed)
        assert live(stash) == NOTHING
    assert stash.peak_host_bytes == 4 * INPUT_BYTES


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_micro_batches_whose_graphs_live_at_once(stash, order):
    plain, stack = stacked(None), stacked(stash)
    losses = [stack(batch(seed)) for seed in range(4)]
    assert stash.host_bytes == 4 * 4 * INPUT_BYTES
    for seed in order:
        losses[seed].backward()
        losses[seed] = None
        ahead = sum(len(call.fetched) for call in stash._calls.values())
        assert ahead <= 1, "fetched for a graph whose turn it was not"
    assert equal(gradients(stack), step(plain, *order))
    assert live(stash) == NOTHING


def test_a_graph_that_is_dropped_takes_all_with_it(stash):
    plain, stack = stacked(None), stacked(stash)
    loss = stack(batch())
    assert stash.host_bytes > 0
    del loss
    assert live(stash) == NOTHING
    assert equal(step(stack, 3), step(plain, 3))


def test_without_gradients_nothing_is_kept(stash):
    stack = stacked(stash)
    with torch.no_grad():
        loss = stack(batch())
    assert loss.equal(stacked(None)(batch()))
    assert stash.peak_host_bytes == 0
    assert stack.calls == [1] * 4


def test_a_second_backward_fetches_again(stash):
    plain, stack = stacked(None), stacked(stash)
    found, expected = [], []
    for model, results in ((plain, expected), (stack, found)):
        loss = model(batch())
        for again in (True, False):
            loss.backward(retain_graph=again)
            results += gradients(model)
    assert equal(found, expected)
    assert stack.calls == [3] * 4
    del loss
    assert live(stash) == NOTHING


def test_a_backward_over_freed_copies_is_refused_by_torch(stash):
    loss = stacked(stash)(batch())
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_gradients_of_gradients(stash):
    def norm(model: nn.Module) -> list[torch.Tensor]:
        first = torch.autograd.grad(model(batch()), list(model.parameters()), create_graph=True)
        sum(each.square().sum() for each in first).backward()
        return gradients(model)

    assert equal(norm(stacked(stash)), norm(stacked(None)))
    gc.collect()  # a graph of a graph is a cycle
    assert live(stash) == NOTHING


class Failing(RuntimeError):
    """What a layer is made to raise."""


@pytest.mark.parametrize("in_backward", [False, True])
def test_after_an_exception_nothing_is_left_and_the_next_step_is_right(stash, in_backward):
    plain, stack = stacked(None), stacked(stash)
    inner = stack.layers[2]._checkpoint_wrapped_module

    def fail(*_: object) -> None:
        if inner.calls == in_backward:
            raise Failing

    handle = inner.register_forward_pre_hook(fail)
    with pytest.raises(Failing) as caught:
        stack(batch()).backward()
    assert stash.peak_host_bytes == (4 if in_backward else 3) * INPUT_BYTES
    caught.value.__traceback__ = None  # it refers to what was computed
    del caught
    gc.collect()
    assert live(stash) == NOTHING
    handle.remove()
    stack.zero_grad(set_to_none=True)
    assert equal(step(stack, 3), step(plain, 3))


def test_a_backward_in_another_thread(stash):
    """Of a device the backward runs in one of autograd's threads, not in that of the forward."""
    plain, stack = stacked(None), stacked(stash)
    losses = [stack(batch())]
    thread = threading.Thread(target=lambda: losses.pop().backward())
    thread.start()
    thread.join()
    assert equal(gradients(stack), step(plain, 1))
    assert live(stash) == NOTHING


def test_a_layer_that_no_gradient_reaches_keeps_nothing(stash):
    """And what comes before it in the order of the forward is found all the same."""
    stack = stacked(stash)
    for layer in stack.layers[2:]:
        layer.requires_grad_(False)
    x = stack.first(batch())
    for layer in stack.layers[:2]:
        x = layer(x)
    for layer in stack.layers[2:]:
        layer(x)
    assert stash.host_bytes == 2 * INPUT_BYTES
    x.sum().backward()
    del x
    assert live(stash) == NOTHING
    assert stack.calls == [2, 2, 1, 1]
