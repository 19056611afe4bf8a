"""What a person calls each row, kept as numbers: a million rows have no million texts.

Legend: R rows.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np


@dataclass(frozen=True, eq=False)
class RowNames(Sequence[str]):
    """The names of rows: "train.jsonl line 17", and "train.jsonl line 17 part 2" of a split one.

    Equal to any sequence of the same texts.
    """

    labels: tuple[str, ...]
    """What stands before the numbers: "train.jsonl line"."""
    of: np.ndarray
    """int32 [R]: which label a row has."""
    numbers: np.ndarray
    """int64 [R]"""
    parts: np.ndarray
    """int32 [R]: which part of a row that was split, from 1; 0 for a whole row."""

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int | slice) -> "str | Self":
        if isinstance(index, slice):
            return self.pick(index)
        name = f"{self.labels[self.of[index]]} {self.numbers[index]}"
        return f"{name} part {self.parts[index]}" if self.parts[index] else name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None

    def pick(self, rows: Sequence[int] | np.ndarray | slice) -> Self:
        """The names of these rows, in this order."""
        of, numbers, parts = self.of[rows], self.numbers[rows], self.parts[rows]
        return replace(self, of=of, numbers=numbers, parts=parts)

    def of_parts(self, rows: np.ndarray, parts: np.ndarray) -> Self:
        """The names of parts (0 = the whole) of these rows, none of which is a part yet."""
        return replace(self.pick(rows), parts=np.asarray(parts, dtype=np.int32))

    def renamed(self, rename: Callable[[str], str]) -> Self:
        """With other labels."""
        return replace(self, labels=tuple(rename(label) for label in self.labels))

    def find(self, name: str) -> np.ndarray:
        """int64: the indices of the row with this name, of each of its parts if it was split."""
        label, _, number = name.rpartition(" ")
        if label.endswith(" part"):
            whole, part = label.removesuffix(" part"), number
            found = self.find(whole)
            return found[[str(self.parts[row]) == part for row in found]]
        same = [at for at, own in enumerate(self.labels) if own == label]
        # Python knows other digits too, and refuses numbers of thousands of them.
        if not same or not (number.isascii() and number.isdigit() and len(number) <= 18):
            return np.array([], dtype=np.int64)
        return np.flatnonzero(np.isin(self.of, same) & (self.numbers == int(number)))


def number_rows(name: str, unit: str, numbers: Iterable[int]) -> RowNames:
    """Names of rows of one file or split: `unit` is "line" or "row"."""
    numbers = np.fromiter(numbers, dtype=np.int64)
    nought = np.zeros(len(numbers), dtype=np.int32)
    return RowNames((f"{name} {unit}",), nought, numbers, nought)


def join_names(parts: Sequence[RowNames]) -> RowNames:
    """Names of rows one behind another."""
    labels = list(dict.fromkeys(label for part in parts for label in part.labels))
    of = [np.array([labels.index(one) for one in part.labels])[part.of] for part in parts]
    return RowNames(
        tuple(labels),
        np.concatenate(of).astype(np.int32),
        np.concatenate([part.numbers for part in parts]),
        np.concatenate([part.parts for part in parts]),
    )
