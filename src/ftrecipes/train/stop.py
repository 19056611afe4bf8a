"""A stop that a signal asked of one rank ends training on all of them, in the same place.

A rank that left alone would leave the others waiting in a collective, and what was trained could
not be saved.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ftrecipes.runtime.collectives import sum_floats
from ftrecipes.runtime.signals import STOP_SIGNALS, Stopped
from ftrecipes.runtime.world import World


class Stop(Protocol):
    """Whether this rank was asked to stop, for runtime.signals notes it and goes on."""

    number: int
    """The signal that asked; 0 = none."""


@dataclass(frozen=True)
class NeverNoted:
    """Of one process: a signal interrupts it at once."""

    number: int = 0


NEVER = NeverNoted()


def votes(stop: Stop) -> list[float]:
    """1.0 for the signal of this rank, 0.0 for the others: numbers that ranks can add up."""
    return [float(stop.number == number) for number in STOP_SIGNALS]


def elected(sums: Sequence[float]) -> int:
    """The first signal that any rank was sent, by the sums of `votes`; 0 = none."""
    return next((int(n) for n, sent in zip(STOP_SIGNALS, sums, strict=True) if sent), 0)


def stop_together(stop: Stop, world: World) -> None:
    """Raise Stopped on every rank when one was asked to stop; all ranks call it."""
    number = elected(sum_floats(votes(stop), world))
    if number:
        raise Stopped(number, together=True)
