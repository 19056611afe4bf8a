"""Speed over the last steps, and what it says about the time left."""

from collections import deque


class Throughput:
    """Sliding window over the last `window` steps; evaluations are not in it."""

    def __init__(self, window: int = 20):
        self._steps: deque[tuple[float, int, int]] = deque(maxlen=window)

    def add(self, *, seconds: float, num_tokens: int, positions: int) -> None:
        """Count one step: its duration, counted labels and processed positions."""
        self._steps.append((seconds, num_tokens, positions))

    @property
    def tokens_per_second(self) -> float:
        """Counted labels trained per second."""
        return self._rate(1)

    @property
    def positions_per_second(self) -> float:
        """Positions (labels that count or not) processed per second."""
        return self._rate(2)

    def seconds_for(self, steps: int) -> float:
        """Expected seconds of `steps` more steps."""
        return steps * sum(step[0] for step in self._steps) / max(1, len(self._steps))

    def _rate(self, column: int) -> float:
        seconds = sum(step[0] for step in self._steps)
        return sum(step[column] for step in self._steps) / seconds if seconds else 0.0


def clock(seconds: float) -> str:
    """`1:02:03` for 3723.4 seconds; `2:03` below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
