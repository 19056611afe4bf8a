"""Whole rows into micro-batches: packed up to a number of positions, or so many rows each.

Nothing is split, nothing is dropped. Every function here is pure; what is random comes in as an
order of the rows.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np

MAX_OPEN = 1024
WINDOW_BATCHES = 50

RowIds = tuple[int, ...]


def pack(order: Sequence[int], lengths: np.ndarray, *, capacity: int) -> list[RowIds]:
    """Best fit: each row, in the given order, joins the fullest pack that still has room for it.

    At most MAX_OPEN packs are kept open, so the work per row is bounded whatever the lengths are: a
    bisection and a shift of at most MAX_OPEN entries. A row longer than `capacity` is a pack of its
    own. Packs come in the order in which they were begun.
    """
    packs: list[list[int]] = []
    open_packs: list[tuple[int, int]] = []  # (room, index of the pack), fullest first
    sizes = lengths[np.asarray(order, dtype=np.int64)].tolist()
    shortest = min(sizes, default=0)
    for row, size in zip(order, sizes, strict=True):
        at = bisect_left(open_packs, (size, -1))
        if at < len(open_packs):
            room, index = open_packs.pop(at)
        else:
            room, index = capacity, len(packs)
            packs.append([])
        packs[index].append(row)
        if room - size >= shortest:
            insort(open_packs, (room - size, index))
            if len(open_packs) > MAX_OPEN:
                open_packs.pop(0)
    return [tuple(pack) for pack in packs]


def cut(order: Sequence[int], *, batch_size: int) -> list[RowIds]:
    """Batches of `batch_size` rows in the given order; the last may be smaller."""
    return [tuple(order[at : at + batch_size]) for at in range(0, len(order), batch_size)]


def group(order: Sequence[int], lengths: np.ndarray, *, batch_size: int) -> list[RowIds]:
    """Batches of rows of like length: the order is sorted by length within windows, then cut.

    A window is 50 batches, but no more than a quarter of the rows, so that a small set too is mixed
    anew by each order.
    """
    num_batches = -(-len(order) // batch_size)
    window = batch_size * max(1, min(WINDOW_BATCHES, num_batches // 4))
    rows = np.asarray(order, dtype=np.int64)
    batches: list[RowIds] = []
    for at in range(0, len(rows), window):
        part = rows[at : at + window]
        by_length = part[np.argsort(-lengths[part], kind="stable")]
        batches += cut(by_length.tolist(), batch_size=batch_size)
    return batches


def share_evenly(batches: list[RowIds], *, parts: int) -> list[RowIds]:
    """The same rows in a multiple of `parts` micro-batches, so that every rank gets as many.

    The micro-batch with most rows is halved until the number fits; where there are fewer rows than
    parts, micro-batches without rows fill it.
    """
    batches = list(batches)
    while len(batches) % parts:
        most = max(range(len(batches)), key=lambda index: len(batches[index]))
        rows = batches[most]
        half = (len(rows) + 1) // 2
        batches[most] = rows[:half]
        batches.insert(most + 1, rows[half:])
    return batches
