"""How often each operator's results were kept and computed again in the first step; for the log."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ftrecipes.parallel.op_counts import OpCounts
from ftrecipes.runtime import log


class OpReport:
    """Tells what the first step of this rank has counted; recomputes go on counting."""

    def __init__(self, counts: OpCounts):
        self._counts = counts
        self._is_done = False

    @contextmanager
    def watch(self, step: int, write: Callable[..., None]) -> Iterator[None]:
        """Around step `step`."""
        if self._is_done:
            yield
            return
        self._counts.clear()  # what the model was tried on before is not of the step
        yield
        self._is_done = True
        log.info(f"operators in the modules that are computed again, in step {step}:")
        for line in self._counts.lines():
            log.info(f"  {line}")

    def close(self) -> None:
        """Nothing is open."""
