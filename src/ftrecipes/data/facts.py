"""What is to be known of all tokens of a split, counted while they pass and kept with them.

Legend: R rows, T positions of some of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

IGNORED = -100
"""Label of a position that is not trained; torch's cross entropy skips it by default."""


@dataclass(frozen=True)
class Facts:
    """Of the tokens of a split."""

    token_counts: np.ndarray
    """int64 [R]: labels of each row that count; a row's first position has no predecessor."""
    used_ids: np.ndarray
    """int64, sorted: the ids that occur."""
    digest: str
    """Changes with ids, labels and lengths of rows, and with nothing else."""


class FactCounter:
    """Counts the facts of rows that pass in pieces, in order."""

    def __init__(self):
        self._counts: list[np.ndarray] = []
        self._is_used = np.zeros(0, dtype=bool)
        self._hashes = [xxhash.xxh3_128() for _ in range(3)]

    def add(self, input_ids: np.ndarray, labels: np.ndarray, lengths: np.ndarray) -> None:
        """Whole rows: int32 [T], int32 [T] and int64 [R]."""
        counted = labels != IGNORED
        ends = np.cumsum(lengths)
        counted[(ends - lengths)[lengths > 0]] = False
        sums = np.concatenate([[0], np.cumsum(counted)])
        self._counts.append(sums[ends] - sums[ends - lengths])
        if len(input_ids):
            missing = int(input_ids.max()) + 1 - len(self._is_used)
            self._is_used = np.pad(self._is_used, (0, max(0, missing)))
            self._is_used[input_ids] = True
        for digest, array in zip(self._hashes, (input_ids, labels, lengths), strict=True):
            digest.update(np.ascontiguousarray(array))

    def facts(self) -> Facts:
        """Of all that passed."""
        counts = np.concatenate(self._counts or [np.zeros(0, dtype=np.int64)])
        digest = "-".join(digest.hexdigest() for digest in self._hashes)
        return Facts(counts, np.flatnonzero(self._is_used), digest)


def count_facts(input_ids: np.ndarray, labels: np.ndarray, offsets: np.ndarray) -> Facts:
    """The facts of rows that are there as a whole."""
    counter = FactCounter()
    counter.add(input_ids, labels, np.diff(offsets).astype(np.int64))
    return counter.facts()


def join_facts(parts: Sequence[Facts]) -> Facts:
    """Of rows one behind another, the facts of whose pieces are known."""
    return Facts(
        np.concatenate([part.token_counts for part in parts]),
        np.unique(np.concatenate([part.used_ids for part in parts])),
        " ".join(part.digest for part in parts),
    )
