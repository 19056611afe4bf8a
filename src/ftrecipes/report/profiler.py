"""A torch trace of a few steps, and the operators that took most of them.

https://docs.pytorch.org/docs/stable/profiler.html
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import torch
from torch.profiler import profile, record_function, supported_activities

from ftrecipes.runtime import log

OPERATORS = 30  # in the table


class Profiler:
    """Writes trace-<time>.json (Chrome's format) and operators-<time>.txt into `folder`."""

    def __init__(self, folder: Path, *, device: torch.device, start: int, steps: int):
        self._folder = folder
        self._sort_by = f"self_{'cpu' if device.type == 'cpu' else 'device'}_time_total"
        self._start = start
        self._end = start + steps
        self._profile: profile | None = None
        self._taken: list[int] = []

    @contextmanager
    def watch(self, step: int, write: Callable[..., None]) -> Iterator[None]:
        """Around each step; nothing is done outside of the trace."""
        if not self._start <= step < self._end:
            yield
            return
        if self._profile is None:
            self._profile = profile(activities=supported_activities(), record_shapes=True)
            self._profile.start()
        with record_function(f"step {step}"):
            yield
        self._taken.append(step)
        if step == self._end - 1:
            self._finish()

    def close(self) -> None:
        """Keep what a run that ended early has left of the trace; say when there is none."""
        if self._profile is not None:
            self._finish()
        if not self._taken:
            log.warning(
                f"--use_profiler: there is no trace, because the run ended before step "
                f"{self._start} was over. Lower --profiler_start"
            )

    def _finish(self) -> None:
        trace, self._profile = self._profile, None
        stamp = f"{datetime.now():%Y%m%d-%H%M%S-%f}"
        path = self._folder / f"trace-{stamp}.json"
        try:
            trace.stop()
            self._folder.mkdir(parents=True, exist_ok=True)
            trace.export_chrome_trace(str(path))
            if not path.exists():  # torch 2.13 raises nothing, and leaves a part beside it
                path.with_suffix(".json.tmp").unlink(missing_ok=True)
                raise OSError("the disk may be full")
            table = trace.key_averages().table(sort_by=self._sort_by, row_limit=OPERATORS)
            (self._folder / f"operators-{stamp}.txt").write_text(table, encoding="utf-8")
        except (OSError, RuntimeError) as error:
            log.warning(f"--use_profiler: the trace could not be written: {error}")
        else:
            log.info(f"trace of {len(self._taken)} steps: {path} (chrome://tracing, Perfetto)")
