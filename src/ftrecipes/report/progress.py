"""Progress of a run on rank 0: a bar on a terminal, plain log lines anywhere else."""

import logging
import sys
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from ftrecipes.report.throughput import clock
from ftrecipes.runtime import log

LINE_SECONDS = 10.0


class Progress:
    """Shows finished steps. `kind` is `bar`, `lines` (one every 10 s) or `silent`."""

    def __init__(self, *, total_steps: int, first_step: int, kind: str):
        self._total_steps = total_steps
        self._kind = kind
        self._last_line = time.monotonic()
        self._stack = ExitStack()
        self._bar = tqdm(
            total=total_steps, initial=first_step, unit="step", disable=kind != "bar", leave=True
        )

    def __enter__(self) -> Self:
        self._stack.enter_context(self._bar)
        if self._kind == "bar":
            # Log lines would tear the bar: this prints them above it.
            self._stack.enter_context(logging_redirect_tqdm([logging.getLogger("ftrecipes")]))
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def show(self, step: int, *, values: dict[str, str], seconds_left: float) -> None:
        """Step `step` is done; `values` are shown as they are, e.g. {"loss": "2.3456"}."""
        self._bar.set_postfix(values, refresh=False)
        self._bar.update()
        if self._kind == "lines" and self._is_line_due(step):
            text = ", ".join(f"{name} {value}" for name, value in values.items())
            left = f", {clock(seconds_left)} left" if step < self._total_steps else ""
            log.info(f"step {step} of {self._total_steps}: {text}{left}")

    def _is_line_due(self, step: int) -> bool:
        now = time.monotonic()
        if step not in (1, self._total_steps) and now - self._last_line < LINE_SECONDS:
            return False
        self._last_line = now
        return True


def progress_kind(rank: int) -> str:
    """`silent` but on rank 0; there `bar` when standard error is a terminal, else `lines`."""
    if rank != 0:
        return "silent"
    return "bar" if sys.stderr.isatty() else "lines"
