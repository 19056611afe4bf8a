"""Signals that ask a run to stop: they interrupt training, and wait while a result is saved."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """A signal asked the process to stop; `number` is the signal's."""

    def __init__(self, number: int):
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


@contextmanager
def stops_raised() -> Iterator[None]:
    """Inside, SIGINT, SIGTERM and SIGHUP raise Stopped. For commands; main thread only."""
    with _handled_by(_raise):
        yield


@contextmanager
def stops_deferred() -> Iterator[None]:
    """A stop signal that arrives inside raises Stopped only at the end."""
    arrived: list[int] = []
    with _handled_by(lambda number, _: arrived.append(number)):
        yield
    if arrived:
        raise Stopped(arrived[0])


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    # Python delivers signals to the main thread, and lets only that one set handlers.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)
