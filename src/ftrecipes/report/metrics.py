"""metrics.jsonl: one JSON object a line for each step, evaluation and event, at once on disk."""

import json
import math
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from ftrecipes.report.whole_file import WholeFile
from ftrecipes.runtime import log


class MetricsFile:
    """Writes on rank 0 and does nothing on the others. A context manager: it closes the file.

    A line that can not be written (the disk is full) is left out and told once: training is worth
    more than its numbers, and there may be room again when the weights are saved.
    """

    def __init__(self, path: Path, *, rank: int):
        self._file = WholeFile(path) if rank == 0 else None
        self._is_told = False

    def write(self, kind: str, **fields: object) -> None:
        """Add one line: `kind` (step, evaluation, epoch, end, ...), the time, and `fields`.

        JSON has no NaN and no infinity: such a number becomes null, and its text stands beside it
        in `<name>_text`.
        """
        if self._file is None:
            return
        line = {"kind": kind, "unix_seconds": round(time.time(), 3)} | spell_out(fields)
        try:
            self._file.write((json.dumps(line, allow_nan=False) + "\n").encode())
        except OSError as error:
            if not self._is_told:
                log.warning(
                    f"A line of {self._file.path} could not be written: {error}. Training goes "
                    "on; make room on the disk, or the weights can not be saved either"
                )
            self._is_told = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()


def spell_out(fields: dict[str, object]) -> dict[str, object]:
    """`fields` with null for what is not finite, and its text (nan, inf, -inf) beside it."""
    spelled: dict[str, object] = {}
    for name, value in fields.items():
        if isinstance(value, float) and not math.isfinite(value):
            spelled |= {name: None, f"{name}_text": str(value)}
        else:
            spelled[name] = value
    return spelled
