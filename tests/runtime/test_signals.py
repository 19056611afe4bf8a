"""Stop signals: raised, put off, noted. Sent to this process, whose handler runs at once."""

import signal

import pytest

from ftrecipes.runtime import signals
from ftrecipes.runtime.signals import (
    PEER_SIGNAL,
    STOP_SIGNALS,
    Stopped,
    handled,
    ignore_stops,
    stops_deferred,
    stops_noted,
    stops_raised,
)


class Peer(Exception):
    """What the watch raises."""


def peer(number, frame):
    raise Peer


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_stop_is_noted_and_the_first_one_counts(number):
    before = signal.getsignal(number)
    with stops_raised(), stops_noted() as noted:
        assert noted.number == 0
        signal.raise_signal(number)
        assert noted.number == number
        signal.raise_signal(signal.SIGINT)  # torchrun's, of the same Ctrl-C
        assert noted.number == number
    assert signal.getsignal(number) == before


def test_who_asks_again_after_a_while_does_not_wait(monkeypatch):
    monkeypatch.setattr(signals, "REPEAT_SECONDS", 0.0)
    with stops_noted() as noted:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Stopped, match="SIGTERM"):
            signal.raise_signal(signal.SIGTERM)
    assert noted.number == signal.SIGINT


def save(*numbers: int) -> None:
    """What must not be interrupted by signals of these numbers."""
    with stops_deferred():
        for number in numbers:
            signal.raise_signal(number)
        SAVED.append(numbers)


SAVED: list[tuple[int, ...]] = []


@pytest.fixture(autouse=True)
def nothing_saved():
    SAVED.clear()


def test_saving_puts_off_a_stop_that_would_be_noted():
    """And then notes it: a rank that left after saving the best would leave the others alone."""
    with stops_noted() as noted:
        save(signal.SIGHUP, signal.SIGTERM)
    assert noted.number == signal.SIGHUP
    assert SAVED


def test_saving_puts_off_a_stop_that_would_be_raised():
    with stops_raised(), pytest.raises(Stopped, match="SIGHUP"):
        save(signal.SIGHUP)
    assert SAVED


def test_saving_puts_off_what_the_watch_has_to_say():
    with handled((PEER_SIGNAL,), peer), pytest.raises(Peer):
        save(PEER_SIGNAL)
    assert SAVED


def test_the_watch_comes_before_a_stop():
    """torchrun's SIGTERM is the consequence of what the watch found."""
    with handled((PEER_SIGNAL,), peer), pytest.raises(Peer):
        save(signal.SIGTERM, PEER_SIGNAL)


def test_without_a_watch_nothing_is_said():
    save(PEER_SIGNAL)
    assert SAVED


def test_stops_are_ignored_until_the_end_of_the_command():
    with stops_raised():
        with stops_raised():
            ignore_stops()
            for number in STOP_SIGNALS:
                signal.raise_signal(number)
        with pytest.raises(Stopped):
            signal.raise_signal(signal.SIGTERM)
