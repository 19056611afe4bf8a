"""Speed over the last steps, what it says about the time left, and where the time went."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Activity = Literal["steps", "evaluation", "sampling", "saving"]


class Throughput:
    """Sliding window over the last `window` steps; nothing but steps is in it."""

    def __init__(self, window: int = 20):
        self._steps: deque[tuple[float, int, int, int]] = deque(maxlen=window)

    def add(self, *, seconds: float, num_tokens: int, positions: int, flops: int = 0) -> None:
        """Count one step: its duration, counted labels, processed positions and operations."""
        self._steps.append((seconds, num_tokens, positions, flops))

    @property
    def tokens_per_second(self) -> float:
        """Counted labels trained per second."""
        return self._rate(1)

    @property
    def positions_per_second(self) -> float:
        """Positions (labels that count or not) processed per second."""
        return self._rate(2)

    @property
    def flops_per_second(self) -> float:
        """Floating-point operations per second."""
        return self._rate(3)

    def seconds_for(self, steps: int) -> float:
        """Expected seconds of `steps` more steps."""
        return steps * sum(step[0] for step in self._steps) / max(1, len(self._steps))

    def _rate(self, column: int) -> float:
        return rate(sum(step[column] for step in self._steps), sum(step[0] for step in self._steps))


class TimeSheet:
    """Wall time since it was made, and how much of it each activity took."""

    def __init__(self):
        self._began = time.perf_counter()
        self._seconds: dict[Activity, float] = {
            "steps": 0.0,
            "evaluation": 0.0,
            "sampling": 0.0,
            "saving": 0.0,
        }

    def add(self, activity: Activity, seconds: float) -> None:
        """Count `seconds` of an activity."""
        self._seconds[activity] += seconds

    @contextmanager
    def measure(self, activity: Activity) -> Iterator[None]:
        """Count the time inside; also when it ends with an exception."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(activity, time.perf_counter() - began)

    def fields(self) -> dict[str, float]:
        """`wall_seconds`, and the seconds of each activity beside steps."""
        spent = {f"{name}_seconds": n for name, n in self._seconds.items() if name != "steps"}
        return {"wall_seconds": time.perf_counter() - self._began} | spent

    def describe(self) -> str:
        """The shares that are not zero: `steps 90 %, evaluation 8 %, the rest 2 %`."""
        wall = time.perf_counter() - self._began
        shares = self._seconds | {"the rest": wall - sum(self._seconds.values())}
        percents = {name: round(100 * rate(seconds, wall)) for name, seconds in shares.items()}
        return ", ".join(f"{name} {share} %" for name, share in percents.items() if share)


def rate(amount: float, seconds: float) -> float:
    """`amount` per second; 0 when no time has passed."""
    return amount / seconds if seconds else 0.0


def clock(seconds: float) -> str:
    """`1:02:03` for 3723.4 seconds; `2:03` below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
