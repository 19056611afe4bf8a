"""Looks after the other ranks: who died, who failed and why, who is stuck, and where."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch.distributed import Store


class Watch(Protocol):
    """What a rank tells about itself; none of it is a collective, and none of it waits."""

    def phase(self, text: str) -> None:
        """What this rank does from now on, in a few words (`step 12`); counts as progress."""

    def beat(self) -> None:
        """Progress inside a phase: a micro-batch, a tensor, a token."""

    def failed(self, error: BaseException) -> None:
        """Leave the error of this rank for the others, which end with it."""


class NoWatch:
    """The watch of a process that is alone."""

    def phase(self, text: str) -> None:
        """Nobody else to tell."""

    def beat(self) -> None:
        """Nobody else to tell."""

    def failed(self, error: BaseException) -> None:
        """Nobody else to tell."""


@contextmanager
def open_watch(
    store: "Store",
    *,
    rank: int,
    size: int,
    local_rank: int,
    local_size: int,
    host: str,
    timeout_seconds: float,
) -> Iterator[Watch]:
    """A watch over all ranks while the body runs; every rank opens one, with the group's store."""
    yield NoWatch()
