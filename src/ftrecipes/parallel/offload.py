"""Inputs of checkpointed modules wait for the backward in the host's memory, not on the device."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.weak import WeakTensorKeyDictionary

from ftrecipes.config.errors import ConfigError
from ftrecipes.parallel.side_stream import SideStream


class HostStash:
    """The host's memory as the place where checkpoints keep their inputs.

        recompute(model, blocks, keeping=HostStash(device).keeping)

    An input moves when gradients flow through it. Leaves stay, which the graph holds anyway
    (parameters, and views of them), and so does what needs no gradient: masks, rotary tables, ids,
    and what a frozen embedding hands to the first block. A copy lives as long as the graph that
    needs it.

    In the backward the inputs of a module are fetched while the one that was called after it
    computes: one ahead, since that takes three times its forward, which has hidden the same copy
    once already. Another one ahead would only take more memory.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type == "mps":
            raise ConfigError(
                "--activation_checkpointing.offload has no use on this device.\n"
                "  got: mps, whose memory is the host's\n"
                "  do: leave --activation_checkpointing.offload out"
            )
        self._device = torch.empty(0, device=device).device  # with its index
        self._side = SideStream(self._device)
        self._numbers = count()
        self._calls: weakref.WeakValueDictionary[int, _Call] = weakref.WeakValueDictionary()
        self._copies = WeakTensorKeyDictionary()  # tensor -> weak reference to its copy
        self._ahead = -1  # number of the call that was fetched ahead of use
        self._bytes = _Bytes()

    @property
    def host_bytes(self) -> int:
        """Bytes of inputs in the host's memory now."""
        return self._bytes.now

    @property
    def peak_host_bytes(self) -> int:
        """Most bytes that were there at once."""
        return self._bytes.peak

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Around one checkpoint and the forward in it: what the checkpoint saves goes to the host.

        Only its inputs come here: for what the module saves the checkpoint has hooks of its own.
        """
        call = _Call(next(self._numbers))
        held: list[Tensor] = []
        try:
            with saved_tensors_hooks(partial(self._keep, call, held), self._bring):
                yield
        finally:
            if held:
                # The computing stream waits for copies that the module's own work has hidden; then
                # the memory is free for what it computes next. Tensor.record_stream would not hold
                # up that stream, but it keeps memory until the device has come so far: a host that
                # queues a whole forward ahead of it would find none free, and gain nothing.
                self._side.wait(self._side.mark())
                held.clear()

    def _keep(self, call: "_Call", held: list[Tensor], tensor: Tensor) -> "_Stays | _Moved":
        if not self._moves(tensor):
            return _Stays(tensor, _Version(tensor, tensor))
        copy = self._copies.get(tensor, lambda: None)()  # the same may go to several modules
        if copy is None or copy.version.is_other(tensor):
            held.append(tensor.detach())
            copy = _Copy(tensor, self._side, self._bytes)
            self._copies[tensor] = weakref.ref(copy)
        call.copies.append(copy)
        self._calls[call.number] = call
        return _Moved(call, len(call.copies) - 1)

    def _moves(self, tensor: Tensor) -> bool:
        if type(tensor) is not Tensor or tensor.device != self._device or tensor.numel() == 0:
            return False
        if tensor.is_leaf:  # also what needs no gradient
            return False
        return tensor._base is None or not tensor._base.is_leaf

    def _bring(self, kept: "_Stays | _Moved") -> Tensor:
        if isinstance(kept, _Stays):
            kept.version.check()
            return kept.tensor
        call, index = kept
        call.copies[index].version.check()
        if index not in call.fetched:
            call.fetch(self._side)
        self._side.wait(call.arrived)
        call.is_asked = True
        self._look_ahead(call)
        return call.fetched.pop(index)

    def _look_ahead(self, call: "_Call") -> None:
        """Fetch what is asked for next: a backward goes through the calls from the last one on."""
        waiting = [n for n, each in self._calls.items() if n < call.number and not each.is_asked]
        number = max(waiting, default=-1)
        last, self._ahead = self._calls.get(self._ahead), number
        if last is not None and not last.is_asked and last.number != number:
            last.fetched.clear()  # it belongs to another graph, whose turn it is not
        ahead = self._calls.get(number)
        if ahead is not None and not ahead.fetched:
            ahead.fetch(self._side)


class _Call:
    """What one forward of a checkpointed module has moved; lives as long as its graph."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.copies: list[_Copy] = []
        self.fetched: dict[int, Tensor] = {}  # index of the copy -> on the device again
        self.arrived: torch.Event | None = None
        self.is_asked = False

    def fetch(self, side: SideStream) -> None:
        """Begin to bring all of it to the device."""
        self.fetched = {index: copy.back(side) for index, copy in enumerate(self.copies)}
        self.arrived = side.mark()


class _Copy:
    """The values of a tensor in the host's memory, and how they lay on the device.

    They come back with the same strides, so that the same kernels run; but for those that lay
    between values of others, which come back without gaps.
    """

    def __init__(self, tensor: Tensor, side: SideStream, counted: "_Bytes") -> None:
        strides = tensor.stride()
        extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, strides, strict=True))
        if extent <= tensor.numel():  # less where it was expanded: each place goes once
            places = tensor.as_strided((extent,), (1,))
        else:
            places, strides = tensor, torch.empty(tensor.shape, device="meta").stride()
        self._shape, self._strides = tensor.shape, strides
        self._host = side.to_host(places)
        counter = tensor.detach()
        counter.data = tensor.new_empty(0)  # lets go of the memory, and keeps the counter
        self.version = _Version(tensor, counter)
        counted.add(self._host.nbytes)
        weakref.finalize(self, counted.add, -self._host.nbytes).atexit = False

    def back(self, side: SideStream) -> Tensor:
        """Begin to bring it to the device."""
        return side.to_device(self._host).as_strided(self._shape, self._strides)


class _Version:
    """That a tensor is as it was: torch 2.13 does not look at what hooks keep.

    `counter` is a tensor with the same version counter.
    """

    def __init__(self, tensor: Tensor, counter: Tensor) -> None:
        self._then, self._counter = tensor._version, counter
        self._dtype, self._shape = tensor.dtype, tensor.shape

    def is_other(self, tensor: Tensor) -> bool:
        """Whether it was written to since."""
        return tensor._version != self._then

    def check(self) -> None:
        """Raise RuntimeError, as a checkpoint without hooks does, where it was written to."""
        if self.is_other(self._counter):
            raise RuntimeError(
                "an input of a checkpointed module has been modified by an inplace operation: "
                f"{self._dtype} of shape {list(self._shape)} is at version "
                f"{self._counter._version}; expected version {self._then} instead"
            )


class _Stays(NamedTuple):
    """What autograd keeps of an input that stays on the device."""

    tensor: Tensor
    version: _Version


class _Moved(NamedTuple):
    """What autograd keeps of an input that has moved."""

    call: _Call
    index: int  # of the copy


class _Bytes:
    """How many there are, and were at most."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    def add(self, number: int) -> None:
        """Some more; or fewer, where it is negative."""
        self.now += number
        self.peak = max(self.peak, self.now)
