"""What a forward leaves in memory for its backward, and what a step computes: counted, not guessed.

Counted is where operators run: a storage that one of them made while a block computed, and that
lives when the forward is through, is kept for the backward, by whatever holds it (the graph, the
inputs of a checkpoint, the results that a selective one keeps, a copy for the host). It counts
once, with all of its bytes. torch's allocator says the same, which a test shows.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ftrecipes.parallel.recompute import Recomputed, without_wrapper
from ftrecipes.report.memory import device_memory, reset_device_peak

# Operators whose names begin so are what a block's time goes into. Those of backwards are among
# them, in the same number whatever is computed again.
PRODUCTS = (
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::_scaled_dot_product",
    "aten::_flash_attention_forward",
    "torch_attn::_varlen_attn",
    "ftrecipes::linear_",
)


@dataclass(frozen=True)
class Kept:
    """What the forwards of blocks have left, and what they computed."""

    total_bytes: int
    host_bytes: int  # of these, in copies for the host
    products: int


class Made(TorchDispatchMode):
    """Notes the storages that operators make while a block computes."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[StorageWeakRef, int] = {}  # bytes of what was made, or given
        self.made: dict[StorageWeakRef, bool] = {}  # -> by a wrapper, around its module
        self.given: Counter[StorageWeakRef] = Counter()  # -> to how many blocks
        self.handed_on: set[StorageWeakRef] = set()
        self.blocks_open = 0
        self.in_wrapper = False
        self.products = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if self.blocks_open:
            given = _storages((args, kwargs)).keys()
            made = {ref: size for ref, size in _storages(result).items() if ref not in given}
            self.sizes |= made
            self.made = dict.fromkeys(made, self.in_wrapper) | self.made
            self.products += _is_product(func)
        return result

    def begin(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        """A block starts to compute."""
        self.blocks_open += 1
        inputs = _storages((args, kwargs))
        self.sizes |= inputs
        self.given.update(inputs.keys())

    def end(self, _: nn.Module, __: Any, output: Any) -> None:
        """A block is through."""
        self.blocks_open -= 1
        self.handed_on |= _storages(output).keys()

    def enter_wrapper(self, *_: Any) -> None:
        """A wrapper starts to keep its inputs."""
        self.in_wrapper = True

    def enter_module(self, *_: Any) -> None:
        """The module in a wrapper starts to compute."""
        self.in_wrapper = False

    def kept(self) -> Kept:
        """Bytes of what lives. The first block's input is part of it; what several blocks are given
        (rotary tables, masks) is not, nor what the last one hands on."""
        gc.collect()
        own = self.made.keys() | {ref for ref, blocks in self.given.items() if blocks == 1}
        living = {ref for ref in own if not ref.expired()} - (self.handed_on - self.given.keys())
        copies = [self.sizes[ref] for ref in living if self.made.get(ref)]
        return Kept(sum(self.sizes[ref] for ref in living), sum(copies), self.products)


def kept_by(blocks: Sequence[nn.Module], forward: Callable[[], Any]) -> Kept:
    """What a forward of these blocks, two at least, keeps as long as its result is there."""
    made = Made()
    with _watched(blocks, made), made:
        result = forward()
    kept = made.kept()
    del result
    return kept


@contextmanager
def _watched(blocks: Sequence[nn.Module], made: Made) -> Iterator[None]:
    with ExitStack() as hooks:
        for block in blocks:
            hooks.callback(block.register_forward_pre_hook(made.begin, with_kwargs=True).remove)
            hooks.callback(block.register_forward_hook(made.end).remove)
        for part in {part for block in blocks for part in block.modules()}:
            if isinstance(part, Recomputed):
                inner = without_wrapper(part)
                hooks.callback(part.register_forward_pre_hook(made.enter_wrapper).remove)
                hooks.callback(inner.register_forward_pre_hook(made.enter_module).remove)
        yield


def _storages(values: Any) -> dict[StorageWeakRef, int]:
    """Storages of all tensors in there, and the bytes of each."""
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
    storages = [tensor.untyped_storage() for tensor in tensors]
    return {StorageWeakRef(storage): storage.nbytes() for storage in storages}


class Products(TorchDispatchMode):
    """Counts matrix products and attentions that run; none whose result was kept."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += _is_product(func)
        return func(*args, **(kwargs or {}))


def _is_product(func: OpOverload) -> bool:
    return func.name().startswith(PRODUCTS)


def products_in(run: Callable[[], Any]) -> int:
    """How many products `run` computes."""
    with Products() as products:
        run()
    return products.count


def calls_of(blocks: Sequence[nn.Module], run: Callable[[], Any]) -> float:
    """How often `run` computes a block, on average."""
    calls = []
    with ExitStack() as hooks:
        for block in map(without_wrapper, blocks):
            hooks.callback(block.register_forward_pre_hook(lambda *_: calls.append(1)).remove)
        run()
    return len(calls) / len(blocks)


def allocated_by(device: torch.device, run: Callable[[], Any]) -> tuple[int, int]:
    """Bytes that torch's allocator has given out more than before: while the result of `run` is
    there, and at the peak."""
    if device.type != "cpu":
        reset_device_peak(device)
        before = torch.accelerator.memory_allocated(device)
        result = run()
        after = torch.accelerator.memory_allocated(device)
        peak = device_memory(device)["device_peak_allocated_bytes"]
        del result
        return after - before, peak - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = run()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = highest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        highest = max(highest, held)
    del result
    return held, highest
