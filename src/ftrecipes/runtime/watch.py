"""Looks after the other ranks: who died, who failed and why, who is stuck, and where.

torch tells a rank only that a connection was closed, or nothing until a collective times out. Here
each rank reports to the store what it does, a finding is published once, and every rank ends by it:
by PeerError in the main thread, or, when that waits inside a library, without it.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from ftrecipes.config.errors import PeerError
from ftrecipes.runtime import processes
from ftrecipes.runtime.findings import Report
from ftrecipes.runtime.judge import Patience
from ftrecipes.runtime.signals import PEER_SIGNAL, handled

if TYPE_CHECKING:
    from torch.distributed import Store


class Watch(Protocol):
    """What a rank tells about itself; none of it is a collective, and nobody waits for another."""

    def phase(self, text: str) -> None:
        """What this rank does from now on, in a few words (`step 12`); counts as progress."""

    def beat(self) -> None:
        """Progress inside a phase: a micro-batch, a tensor, a token."""

    def listen(self) -> None:
        """Raise PeerError when the run is known to be over: for who waits for others in a loop, and
        may do so where the watch's own call is put off. Main thread only."""

    def failed(self, error: BaseException) -> None:
        """Leave the error of this rank for the others, which end with it."""

    def explain(self, error: BaseException) -> PeerError | None:
        """What another rank has to do with an error that ends this one; None: it is its own, and
        the others have been told. May take some seconds. Main thread only."""

    def at_end(self, action: Callable[[str], None]) -> None:
        """Call `action` with the reason where the process must end without its main thread."""


class NoWatch:
    """The watch of a process that is alone."""

    def phase(self, text: str) -> None:
        """Nobody else to tell."""

    def beat(self) -> None:
        """Nobody else to tell."""

    def listen(self) -> None:
        """Nobody else to hear of."""

    def failed(self, error: BaseException) -> None:
        """Nobody else to tell."""

    def explain(self, error: BaseException) -> PeerError | None:
        """It has nothing to do with anybody else."""
        return None

    def at_end(self, action: Callable[[str], None]) -> None:
        """There is always a main thread to end."""


@contextmanager
def told_by(watch: Watch) -> Iterator[None]:
    """An error that ends the body is told to the other ranks, or becomes what they have told.

    Every rank wraps its run with it. Inside of whatever notes how the run ended, so that this is
    what it notes; outside of whatever saves what was trained. Raises PeerError instead of an error
    whose cause is another rank: a closed connection, or the stop that torchrun sends to the rest.
    """
    try:
        yield
    except BaseException as error:
        found = watch.explain(error)
        if found is None:
            raise
        raise found from error


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
    patience: Patience | None = None,
) -> Iterator[Watch]:
    """A watch over all ranks while the body runs; every rank opens one, with the group's store.

    `timeout_seconds`: without progress of this rank for so long, the run ends. At the end of the
    body the first rank waits until all have left, as the store may live in its process.
    """
    if size == 1:
        yield NoWatch()
        return
    from ftrecipes.runtime.watcher import Watcher

    pid = os.getpid()
    watcher = Watcher(
        store,
        Report(rank, host, pid, processes.place(), processes.started(pid)),
        size=size,
        timeout_seconds=timeout_seconds,
        patience=patience or Patience(),
        address=f"{os.environ.get('MASTER_ADDR', host)}:{os.environ.get('MASTER_PORT', '?')}",
    )
    with handled((PEER_SIGNAL,), watcher.listen):
        watcher.start()
        with told_by(watcher):
            yield watcher
        watcher.close()
