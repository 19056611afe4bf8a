"""Rows whose ids tell which row and position they are, and loaders over them."""

from itertools import chain

import numpy as np

from ftrecipes.data.facts import IGNORED
from ftrecipes.data.loader import Loader
from ftrecipes.data.rows import TokenRows


def make_rows(lengths, *, unlabelled=()) -> TokenRows:
    """Row r holds the ids 1000 r, 1000 r + 1, ...; all but its first third is trained."""
    ids = [np.arange(length) + 1000 * row for row, length in enumerate(lengths)]
    labels = [np.where(np.arange(len(row)) < len(row) // 3, IGNORED, row) for row in ids]
    for row in unlabelled:
        labels[row] = np.full_like(labels[row], IGNORED)
    return TokenRows(
        input_ids=np.concatenate(ids).astype(np.int32),
        labels=np.concatenate(labels).astype(np.int32),
        offsets=np.cumsum([0, *lengths]),
        sources=[f"row {row}" for row in range(len(lengths))],
        report=[],
    )


def make_loader(rows, **options) -> Loader:
    options = {"strategy": "packing", "batch_size": 2, "context_length": 64, "seed": 3} | options
    return Loader(rows, **options)


def draw_lengths(count, seed=0) -> list[int]:
    return np.random.RandomState(seed).randint(2, 64, count).tolist()


def all_rows(plan) -> list[int]:
    return sorted(chain.from_iterable(chain.from_iterable(plan)))
