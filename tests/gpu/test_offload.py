"""Inputs of checkpointed modules in page-locked memory, copied beside the computation.

The reference computes the same on the same device. Its kernels may add in another order, by which
float32 gradients move far less than 1e-4; a value that was read too early, or another dropout mask,
moves them by as much as they are.
"""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from ftrecipes.parallel.offload import HostStash
from ftrecipes.parallel.recompute import recompute
from tests.gpu.test_training import FLOAT32, losses
from tests.parallel.offloading import gradients as taken
from tests.parallel.test_recompute import build, gradients

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda")
# inputs of 64 MiB, against which weights and their gradients (4 MiB a layer) are small
ROWS, WIDTH, DEPTH = 16384, 1024, 8
INPUT_BYTES = ROWS * WIDTH * 4


def chain(stash: HostStash | None) -> nn.Module:
    """Layers whose inputs take longer to copy than to compute; all but the first checkpointed."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH + 1))).to(CUDA)
    recompute(model, list(model)[1:], **({"keeping": stash.keeping} if stash else {}))
    return model


def batch(seed: int) -> Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed)).to(CUDA)


def close(found: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * b.abs().max().item())


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("name", ["", "self_attn"])
def test_gradients_and_dropout_masks_are_those_without(name, dropout):
    """Blocks, and attention called by keyword, in host memory: gradients, dropout 0 and 0.3."""
    expected = gradients(build(dropout, recomputing=False).to(CUDA))
    model, stash = build(dropout, recomputing=False).to(CUDA), HostStash(CUDA)
    blocks = model.get_base_model().model.layers
    recompute(model, [block.get_submodule(name) for block in blocks], keeping=stash.keeping)
    found = gradients(model)
    assert found.keys() == expected.keys()
    close(list(found.values()), list(expected.values()))
    assert stash.peak_host_bytes > 0
    assert stash.host_bytes == 0


def test_inputs_are_not_on_the_device_until_the_backward():
    """Device memory after the forward, and at the peak of the backward, with and without."""

    def measure(stash: HostStash | None) -> tuple[int, int, list[bool]]:
        model, x = chain(stash), batch(1)
        model(x).square().mean().backward()  # libraries allocate what they keep
        taken(model)
        before, given = torch.accelerator.memory_allocated(CUDA), []
        for layer in list(model)[1:]:
            layer.register_forward_pre_hook(
                lambda _, args: given.append(StorageWeakRef(args[0].untyped_storage()))
            )
        loss = model(x).square().mean()
        after = torch.accelerator.memory_allocated(CUDA) - before
        gone = [each.expired() for each in given]
        torch.accelerator.reset_peak_memory_stats(CUDA)
        loss.backward()
        return after, torch.accelerator.max_memory_allocated(CUDA) - before, gone

    stash = HostStash(CUDA)
    after, peak, gone = measure(stash)
    plain_after, plain_peak, plain_gone = measure(None)
    assert plain_gone == [False] * DEPTH
    assert plain_after >= (DEPTH + 1) * INPUT_BYTES
    assert gone == [True] * DEPTH
    assert after < 2 * INPUT_BYTES  # of which one is the result, for its square
    # two inputs instead of eight, beside two gradients and those of the weights
    assert peak <= plain_peak - DEPTH // 2 * INPUT_BYTES
    assert stash.peak_host_bytes == DEPTH * INPUT_BYTES
    assert stash.host_bytes == 0


def on_the_usual_stream(step: Callable[[], None]) -> None:
    step()


def on_a_stream_of_its_own(step: Callable[[], None]) -> None:
    """Another stream is current than when the stash was made."""
    stream = torch.Stream(CUDA)
    stream.wait_stream(torch.accelerator.current_stream(CUDA))
    with stream:
        step()
    torch.accelerator.current_stream(CUDA).wait_stream(stream)


@pytest.mark.parametrize("run", [on_the_usual_stream, on_a_stream_of_its_own])
def test_copies_keep_up_over_many_steps(run):
    """20 steps queued without a pause, also on other streams, each after a graph is dropped."""
    stash = HostStash(CUDA)
    model, plain = chain(stash), chain(None)
    batches = [batch(seed) for seed in range(4)]
    found, expected = [], []

    def step(index: int) -> None:
        model(batches[index % 4 - 1])  # dropped while its copies are on their way
        for each, results in ((model, found), (plain, expected)):
            each(batches[index % 4]).square().mean().backward()
            results.append(taken(each))

    for index in range(20):
        run(partial(step, index))
    for ours, theirs in zip(found, expected, strict=True):
        close(ours, theirs)
    assert stash.host_bytes == 0
    assert stash.peak_host_bytes == DEPTH * INPUT_BYTES


def test_a_run_with_offload(finetune):
    """--activation_checkpointing.offload in a whole run: losses of a run without it."""
    flags = {"activation_checkpointing.offload": True, **FLOAT32}
    ours = losses(finetune("offload", use_peft=False, **flags))
    assert ours == pytest.approx(losses(finetune("plain", use_peft=False, **FLOAT32)), rel=1e-4)
