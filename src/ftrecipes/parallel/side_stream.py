"""Copies between a device and the host's memory, beside what is computed."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class SideStream:
    """A stream of its own for copies. On a CPU there is none, and copies are made at once.

    Copies are queued, and each starts after all that the computing stream was given before. That
    stream is asked for at every call: a backward runs in another thread than its forward, and the
    stream that is current while a model is built may be neither's.

    What comes to the device is put into memory that torch's allocator keeps for the side stream. It
    can be let go at any time, even while it is filled or read: what takes it next is a later copy,
    which is queued behind both.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = None if device.type == "cpu" else torch.Stream(device)

    def to_host(self, tensor: Tensor) -> Tensor:
        """Its elements, flat, in the host's memory: page-locked, or the host waits for each copy.

        `tensor` must live until the computing stream has waited for a later `mark`. The result may
        be let go at any time: torch's allocator of such memory notes the stream of every copy, and
        gives a block out anew when that stream has come so far (torch 2.13, copy_kernel_cuda and
        CachingHostAllocatorImpl::free). It rounds sizes up to powers of two.
        """
        pinned = self._stream is not None
        host = torch.empty(tensor.numel(), dtype=tensor.dtype, pin_memory=pinned)
        with self._beside():
            host.copy_(tensor.reshape(-1), non_blocking=True)
        return host

    def to_device(self, host: Tensor) -> Tensor:
        """Its elements on the device, once the computing stream has waited for a later `mark`."""
        with self._beside():
            place = torch.empty(host.shape, dtype=host.dtype, device=self._device)
            return place.copy_(host, non_blocking=True)

    def mark(self) -> torch.Event | None:
        """The moment when all copies that were asked for are made."""
        return None if self._stream is None else self._stream.record_event()

    def wait(self, mark: torch.Event | None) -> None:
        """What is computed from now on comes after the mark. Does not hold up the host."""
        if mark is not None:
            torch.accelerator.current_stream(self._device).wait_event(mark)

    @contextmanager
    def _beside(self) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.accelerator.current_stream(self._device))
        with self._stream:
            yield
