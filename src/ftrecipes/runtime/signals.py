"""Signals that ask a run to stop: they interrupt training, and wait while a result is saved.

Of several processes one may not leave alone: they note a stop, and agree where to end.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# By which the watch reaches a main thread that waits in a system call. Nothing happens on it by
# default, and neither launchers nor schedulers send it.
PEER_SIGNAL = signal.SIGURG
# torchrun hands a Ctrl-C on to processes that have had it from the terminal a moment before.
REPEAT_SECONDS = 3.0

Handler = Callable[[int, FrameType | None], object]


class Stopped(KeyboardInterrupt):
    """A signal asked the process to stop; `number` is the signal's. `together`: all ranks raise it,
    in the same place."""

    def __init__(self, number: int, *, together: bool = False):
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number, self.together = number, together


@dataclass
class Noted:
    """The stop signal that has arrived; 0 = none."""

    number: int = 0


@contextmanager
def stops_raised() -> Iterator[None]:
    """Inside, SIGINT, SIGTERM and SIGHUP raise Stopped. For commands; main thread only."""
    with handled(STOP_SIGNALS, _raise):
        yield


@contextmanager
def stops_deferred() -> Iterator[None]:
    """A stop signal that arrives inside does only at the end what it does around: it raises
    Stopped, or is noted for ranks to agree on. So does what the watch has to say of the others.
    """
    arrived: list[int] = []
    with handled((*STOP_SIGNALS, PEER_SIGNAL), lambda number, _: arrived.append(number)):
        yield
    if PEER_SIGNAL in arrived:
        signal.raise_signal(PEER_SIGNAL)
    for number in [number for number in arrived if number != PEER_SIGNAL][:1]:
        around = signal.getsignal(number)
        if not callable(around):
            raise Stopped(number)
        around(number, None)


@contextmanager
def stops_noted() -> Iterator[Noted]:
    """Stop signals that arrive inside are noted, for ranks to agree on a step after which all stop.

    Whoever asks again after some seconds does not want to wait: that raises Stopped. One that was
    noted but never agreed on came after the last step, and the run is ending anyway.
    """
    noted = Noted()
    first_at = 0.0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal first_at
        if not noted.number:
            noted.number, first_at = number, time.monotonic()
        elif time.monotonic() - first_at > REPEAT_SECONDS:
            raise Stopped(number)

    with handled(STOP_SIGNALS, note):
        yield noted


@contextmanager
def handled(numbers: tuple[int, ...], handler: Handler) -> Iterator[None]:
    """Signals of `numbers` go to `handler` inside. In another thread than the main one: nothing."""
    # Python delivers signals to the main thread, and lets only that one set handlers.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def ignore_stops() -> None:
    """From here on, to the end of the `handled` around: the process ends already, and in order."""
    if threading.current_thread() is threading.main_thread():
        for number in STOP_SIGNALS:
            signal.signal(number, _ignore)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Unlike SIG_IGN, a handler is not inherited by programs that are started."""


def _raise(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)
