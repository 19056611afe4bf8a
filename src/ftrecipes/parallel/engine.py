"""How forwards, gradients and tensors are reached, on one process or on the shares of several.

What uses an engine does not know which one it has. `Sharded` stands on torch FSDP2: a unit's
parameters are gathered by the forward hooks of its module, and the gradients of its trainable
parameters are summed into shares by the backward. Blocks are called as modules and need nothing;
the root and the head are entered through `run` and `run_head`.
"""

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from ftrecipes.runtime.shares import Share


class Engine(Protocol):
    """One step of training as seen by the code that computes it.

    All ranks call `run`, `run_head`, `accumulate`, `gather` and `sum` in the same order; the other
    members are local.
    """

    share: Share
    """Which rows of a tensor this rank keeps."""
    shard_group: dist.ProcessGroup | None
    """The ranks that keep one copy of the model between them; None for one process."""
    replicas: int
    """How many copies of the model the world keeps."""
    squares_weight: float
    """1 / replicas. The squared norm of a tensor is the sum over the world of the squared norms of
    `local`, times this."""

    def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        """fn(*args), which may call the model or its parts. Every forward goes through here.

        With gradients on, tensors in `args` and in the result carry what sums the gradients; the
        backward follows outside. With gradients off everything is in shares again afterwards. A
        `run` inside of a `run` only calls.
        """

    def run_head(self, fn: Callable[..., Any], *args: Any) -> Any:
        """fn(*args), which may compute with the parameters of the head; called inside of `run`.

        The function takes them while it runs, and computes by `head.forward(...)`: a call of the
        module would run its hooks once for every chunk.
        """

    def accumulate(self, is_last: bool) -> None:
        """Before each micro-batch: whether its backward sums the gradients of this step over ranks.

        The others keep theirs, whole and in float32, until that one adds its own. Called by all
        ranks with the same.
        """

    def local(self, tensor: Tensor) -> Tensor:
        """This rank's rows of a parameter or gradient; writing into them writes the tensor."""

    def gather(self, tensor: Tensor) -> Tensor:
        """All rows of a parameter or gradient, on every rank of the shard group."""

    def settle(self) -> None:
        """Put every parameter back into shares, also after a backward that failed.

        What that one had not summed yet is lost, but for what earlier micro-batches left.
        """

    def sum(self, tensor: Tensor) -> Tensor:
        """The tensor, summed in place over all ranks of the world."""


class OneProcess:
    """Everything is here: a forward is a call, and a tensor is its own share."""

    share = Share()
    shard_group: dist.ProcessGroup | None = None
    replicas = 1
    squares_weight = 1.0

    def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        return fn(*args)

    def run_head(self, fn: Callable[..., Any], *args: Any) -> Any:
        return fn(*args)

    def accumulate(self, is_last: bool) -> None:
        pass

    def local(self, tensor: Tensor) -> Tensor:
        return tensor

    def gather(self, tensor: Tensor) -> Tensor:
        return tensor

    def settle(self) -> None:
        pass

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor


class Sharded:
    """An engine over modules that `fully_shard` has cut; made by `shard.shard`.

    `units` are all sharded modules, the root last; `head` is one of them, or None when the head
    belongs to the root. `home` is where shares stay: the device of the mesh, or the CPU.
    `sums_once`, the same on all ranks: whether `accumulate` leaves the sum to the last micro-batch.
    """

    def __init__(
        self,
        units: Sequence[FSDPModule],
        *,
        head: FSDPModule | None,
        mesh: DeviceMesh,
        home: torch.device,
        sums_once: bool,
    ) -> None:
        self.home = home
        self.units = tuple(units)
        self.head = head
        self.root = self.units[-1]
        names = mesh.mesh_dim_names
        self.share = Share(mesh.get_local_rank("shard"), mesh["shard"].size())
        self.shard_group = mesh.get_group("shard")
        self.replicas = mesh["replicate"].size() if "replicate" in names else 1
        self.squares_weight = 1.0 / self.replicas
        self._trained = _that_train(self.units)
        self.sums_once = sums_once
        self._reached = False  # whether each of them was gathered at least once
        self._running = self._entered = False
        self._enter_root = _entrance(self.root)
        self._enter_head = _entrance(head) if head is not None else _call

    def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        if self._running:
            return fn(*args)
        with self._recovering():
            result = self._enter_root(fn, *args)
        if not torch.is_grad_enabled():
            for unit in self.units:
                unit.reshard()
        return result

    def run_head(self, fn: Callable[..., Any], *args: Any) -> Any:
        return self._enter_head(fn, *args)

    def accumulate(self, is_last: bool) -> None:
        if not self.sums_once:
            return
        if not is_last and not self._reached:
            # torch 2.13 keeps the gradients of this micro-batch with the gathered parameters, and
            # fails where there never were any: in parts for images, say, that no text reaches.
            self._reached = True
            for unit in self._trained:
                unit.unshard()
                unit.reshard()
        for unit in self._trained:
            unit.set_requires_gradient_sync(is_last, recurse=False)

    def local(self, tensor: Tensor) -> Tensor:
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def gather(self, tensor: Tensor) -> Tensor:
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def settle(self) -> None:
        for parameter in self.root.parameters():
            if not isinstance(parameter, DTensor):  # gathered, and with what a backward left
                parameter.grad = None
        if self._entered:
            self.root.reset_iter_state()

    def sum(self, tensor: Tensor) -> Tensor:
        dist.all_reduce(tensor)
        return tensor

    @contextmanager
    def _recovering(self):
        """After an exception FSDP does not know what it was doing; the next forward is another."""
        self._running = self._entered = True
        try:
            yield
        except BaseException:
            self.settle()
            raise
        finally:
            self._running = False


def _that_train(units: Sequence[FSDPModule]) -> list[FSDPModule]:
    """Units with a trained parameter of their own, not only in those before them."""
    taken: set[int] = set()
    found = []
    for unit in units:
        own = {id(p): p for p in unit.parameters() if id(p) not in taken}
        taken |= own.keys()
        if any(parameter.requires_grad for parameter in own.values()):
            found.append(unit)
    return found


def _call(fn: Callable[..., Any], *args: Any) -> Any:
    return fn(*args)


def _entrance(module: nn.Module) -> Callable[..., Any]:
    """A method of the module that calls a function inside of its forward hooks."""
    module.enter_unit = _call
    register_fsdp_forward_method(module, "enter_unit")
    return module.enter_unit
