"""A stack of small modules that are checkpointed, and a stream on which copies are late."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from ftrecipes.parallel.offload import HostStash
from ftrecipes.parallel.recompute import recompute
from ftrecipes.parallel.side_stream import SideStream

CPU = torch.device("cpu")
WIDTH = 8


class LateStream(SideStream):
    """Makes each copy as late as it may be: when what computes waits for it.

    Before that there is NaN at its end, and nothing but the code under test keeps its beginning
    alive. So what reads too early gets NaN, and what frees too early has lost its values.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._queue: list[Callable[[], None]] = []
        self._made = 0
        self.log: list[str] = []

    def to_host(self, tensor: Tensor) -> Tensor:
        host = torch.full((tensor.numel(),), torch.nan, dtype=tensor.dtype)
        place = (tensor.storage_offset(), tensor.shape, tensor.stride())
        self._queue.append(partial(_copy, _weak(tensor), place, host))
        return host

    def to_device(self, host: Tensor) -> Tensor:
        self.log.append("fetch")
        device = torch.full_like(host, torch.nan)
        self._queue.append(partial(device.copy_, host))
        return device

    def mark(self) -> int:
        return len(self._queue)

    def wait(self, mark: int) -> None:
        self.log.append("wait")
        for copy in self._queue[self._made : mark]:
            copy()
        self._made = max(self._made, mark)


def _weak(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def _copy(storage: StorageWeakRef, place: tuple, host: Tensor) -> None:
    assert not storage.expired(), "freed before it was copied"
    alive = torch.UntypedStorage._new_with_weak_ptr(storage.cdata)
    host.copy_(torch.empty(0, dtype=host.dtype).set_(alive, *place).reshape(-1))


class Layer(nn.Module):
    """Takes its input by keyword or not; notes how often it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.calls = 0

    def forward(self, x: Tensor, *, table: tuple[Tensor, ...] = ()) -> Tensor:
        self.calls += 1
        return x + self.linear(torch.tanh(sum(table, x)))


class Stack(nn.Module):
    """Layers one after another; `inputs` refers weakly to what each of them was given."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(depth))
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) / 3
        self.inputs: list[StorageWeakRef] = []

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        self.inputs.clear()
        for layer in self.layers:
            self.inputs.append(_weak(x))
            x = layer(x)
        return x.square().mean()

    @property
    def calls(self) -> list[int]:
        """How often each layer has computed."""
        return [layer.calls for layer in self.layers]


def stacked(stash: HostStash | None, *, depth: int = 4) -> Stack:
    """A stack with all of its layers checkpointed."""
    stack = Stack(depth)
    recompute(stack, list(stack.layers), **({"keeping": stash.keeping} if stash else {}))
    return stack


def batch(seed: int = 1) -> Tensor:
    """Two rows of three positions."""
    return torch.randn(2, 3, WIDTH, generator=torch.Generator().manual_seed(seed))


INPUT_BYTES = 2 * 3 * WIDTH * 4


def gradients(model: nn.Module) -> list[Tensor]:
    """Of all parameters; they are taken away."""
    found = [parameter.grad for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    return found


def equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    """Bit for bit."""
    return all(a.equal(b) for a, b in zip(found, expected, strict=True))
