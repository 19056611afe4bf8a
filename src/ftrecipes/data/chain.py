"""Sequences one behind another, none of them copied."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain

import numpy as np


class ChainedRows(Sequence[Mapping]):
    """Raw rows of several data sets or files."""

    def __init__(self, parts: Sequence[Sequence[Mapping]]):
        self._parts = parts
        self._ends = list(accumulate(map(len, parts), initial=0))[1:]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[Mapping]:
        return chain.from_iterable(self._parts)

    def select(self, indices: Sequence[int]) -> list[Mapping]:
        """These rows, in this order."""
        return [self[index] for index in indices]

    def __getitem__(self, index: int) -> Mapping:
        if not 0 <= index < len(self):
            raise IndexError(index)
        at = bisect_right(self._ends, index)
        return self._parts[at][index - (self._ends[at - 1] if at else 0)]


class ChainedArrays:
    """Arrays of one dimension and one dtype, of which slices are asked."""

    def __init__(self, parts: Sequence[np.ndarray]):
        self.parts = tuple(parts)
        self._ends = list(accumulate(map(len, parts), initial=0))[1:]

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, place: slice) -> np.ndarray:
        """The positions [start, stop): a view where they are of one part, else a copy."""
        start, stop, step = place.indices(len(self))
        assert step == 1, step
        found = []
        at = bisect_right(self._ends, start)
        while start < stop:
            first = self._ends[at - 1] if at else 0
            end = min(stop, self._ends[at])
            found.append(self.parts[at][start - first : end - first])
            start, at = end, at + 1
        return found[0] if len(found) == 1 else np.concatenate(found or [self.parts[0][:0]])
