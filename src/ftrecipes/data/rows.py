"""The values that leave this package, and the raw rows they are made of.

Legend: R rows, T positions. A token is a position whose label counts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from ftrecipes.config.errors import DataError
from ftrecipes.data.chain import ChainedArrays
from ftrecipes.data.facts import Facts, count_facts
from ftrecipes.data.row_names import RowNames, number_rows

SHOWN_FAULTS = 5


@dataclass(frozen=True)
class RawRows:
    """Rows as they were read, the columns found in them, and where each stands."""

    rows: Sequence[Mapping]
    """A list, or a data set of the library `datasets`."""
    columns: list[str]
    name: str
    """What a person calls them all: "train.jsonl"."""
    sources: RowNames
    """What a person calls each: "train.jsonl line 17"."""
    reader: Callable[[Mapping], object] | None = None
    """Reads a row of a named data set (see kinds.Row); None = the columns tell how."""
    fingerprint: str | None = None
    """Changes with the content; None = it can not be told, so nothing of it is cached."""
    parts: "tuple[RawSet, ...]" = ()
    """The data sets that the rows are of, one behind another, where `--dataset` lists them."""

    def __len__(self) -> int:
        return len(self.rows)

    def pick(self, indices: Sequence[int], *, fingerprint: str | None) -> "RawRows":
        """These rows, in this order."""
        is_list = isinstance(self.rows, list)
        rows = [self.rows[i] for i in indices] if is_list else self.rows.select(indices)
        return replace(self, rows=rows, sources=self.sources.pick(indices), fingerprint=fingerprint)


@dataclass(frozen=True)
class RawSet:
    """One data set of several."""

    name: str
    raw: RawRows
    weight: float | None = None
    """Share of the rows that are drawn, over the sum of all; None = each row once."""
    own: Mapping[str, object] = field(default_factory=dict)
    """Settings of DataConfig that are not those of the other sets."""


def collect_rows(
    rows: Iterable[Mapping], *, name: str, lines: Sequence[int] | None = None
) -> RawRows:
    """RawRows of any rows: on these lines of the file, or numbered from 1."""
    rows = list(rows)
    columns = dict.fromkeys(key for row in rows if isinstance(row, Mapping) for key in row)
    unit, numbers = ("row", range(1, len(rows) + 1)) if lines is None else ("line", lines)
    return RawRows(rows, list(columns), name, number_rows(name, unit, numbers))


@dataclass(frozen=True)
class Intake:
    """What came in before rows were skipped and cut to size; kept with the rows it became."""

    num_read: int = 0
    """Rows as they were read."""
    num_positions: int = 0
    """Of all rows that can be used, before any was cut."""
    num_tokens: int = 0
    """Labels of them that count."""
    skipped: list[str] = field(default_factory=list)
    """Each row that can not be used, and why: "train.jsonl line 17: no whole JSON object"."""
    long: dict[str, int] = field(default_factory=dict)
    """Source of each row longer than the context, and its positions."""
    long_answers: list[str] = field(default_factory=list)
    """Sources of those in which one answer alone is longer than the context."""
    muted: list[str] = field(default_factory=list)
    """Sources of those without an answer left to train, because they say so of each."""
    remarks: list[str] = field(default_factory=list)
    """What messages say of themselves that is not heeded."""


@dataclass(frozen=True)
class RowSet:
    """The rows of one data set of several, in a split."""

    name: str
    num_rows: int
    weight: float | None = None
    """As in RawSet."""
    intake: Intake = field(default_factory=Intake)
    facts: Facts | None = None
    """Of its rows alone, where they are known."""


@dataclass(frozen=True)
class TokenRows:
    """All rows of a split, one after another."""

    input_ids: np.ndarray | ChainedArrays
    """int32 [T]; in memory, mapped from a file, or a chain of such arrays that takes slices."""
    labels: np.ndarray | ChainedArrays
    """int32 [T]: the token that the model must produce AT this position, else -100. Not shifted."""
    offsets: np.ndarray
    """int64 [R + 1]: row r is [offsets[r], offsets[r + 1])."""
    sources: Sequence[str]
    """Where each row came from."""
    report: list[str]
    """What a person should know: rows cut, dropped or without a trained token."""
    intake: Intake = field(default_factory=Intake)
    """What they were before; without counts where the rows were made in another way."""
    sets: tuple[RowSet, ...] = ()
    """The data sets that the rows are of, one behind another, where there are several."""
    known: Facts | None = None
    """The facts, where they were counted before."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """int64 [R]: positions of each row."""
        return np.diff(self.offsets)

    @cached_property
    def facts(self) -> Facts:
        """What is to be known of all tokens; counted in a pass over them unless it is known."""
        return self.known or count_facts(self.input_ids, self.labels, self.offsets)

    @property
    def token_counts(self) -> np.ndarray:
        """int64 [R]: labels of each row that count; a row's first position has no predecessor."""
        return self.facts.token_counts

    @property
    def num_positions(self) -> int:
        """Of all rows."""
        return int(self.offsets[-1])

    @property
    def num_tokens(self) -> int:
        """Labels that count, over all rows."""
        return int(self.token_counts.sum())


@dataclass(frozen=True)
class MicroBatch:
    """Whole rows, flattened; never a pad."""

    row_ids: tuple[int, ...]
    lengths: tuple[int, ...]
    input_ids: torch.Tensor
    """int64 [T]"""
    labels: torch.Tensor
    """int64 [T]; -100 at the first position of each row."""
    num_tokens: int
    """Labels that count."""


@dataclass(frozen=True)
class Totals:
    """What the micro-batches of a step, or of an evaluation, hold on all ranks together."""

    num_tokens: int
    """Labels that count."""
    lengths: tuple[int, ...]
    """Positions of each row."""

    @property
    def positions(self) -> int:
        """Of all rows."""
        return sum(self.lengths)

    @property
    def rows(self) -> int:
        """Their number."""
        return len(self.lengths)


@dataclass(frozen=True)
class Unreadable:
    """Stands for a row whose text is no row at all; `reason` says why."""

    reason: str


class RowFault(Exception):
    """One row can not be used; says why. Gathered over a split and raised together."""


def refuse_rows(faults: list[str], *, total: int, do: str) -> None:
    """Raise DataError for rows that can not be used: how many of how many, and the first few."""
    if faults:
        shown = show_faults(faults)
        raise DataError(f"{len(faults)} of {total} rows can not be used.{shown}\n  do: {do}")


def show_faults(faults: list[str]) -> str:
    """The first few reasons ("row: reason"), each on a line with its first few rows."""
    by_reason: dict[str, list[str]] = {}
    for fault in faults:
        row, _, reason = fault.partition(": ")
        by_reason.setdefault(reason, []).append(row)
    lines = [f"{_first_few(rows)}: {reason}" for reason, rows in by_reason.items()]
    hidden = len(faults) - sum(len(rows) for rows in list(by_reason.values())[:SHOWN_FAULTS])
    lines = lines[:SHOWN_FAULTS] + ([f"... and {hidden} more"] if hidden else [])
    return "".join(f"\n  {line}" for line in lines)


def _first_few(rows: list[str]) -> str:
    more = len(rows) - SHOWN_FAULTS
    return ", ".join(rows[:SHOWN_FAULTS]) + (f" and {more} more" if more > 0 else "")
