"""The numbers of a split that tell whether something is wrong with it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain, pairwise

import numpy as np
from transformers import PreTrainedTokenizerBase

from ftrecipes.data.facts import IGNORED
from ftrecipes.data.loader import Loader
from ftrecipes.data.packing import RowIds
from ftrecipes.data.rows import TokenRows

Pair = tuple[str, str]
"""Sources of two rows with the same tokens: the later one, and that which was first."""


@dataclass(frozen=True)
class Bin:
    """Rows of `low` to `high` positions."""

    low: int
    high: int
    rows: int


@dataclass(frozen=True)
class Packing:
    """How the rows of the first epoch lie in micro-batches."""

    steps: int
    micro_batches: int
    capacity: int
    """Positions that fit into one; 0 where it is rows that are counted."""
    fill: float
    """Share of that which is used; 1 where nothing is measured out."""
    padding_random: float
    """Share of pads, were batches of `batch_size_training` random rows padded to their longest."""
    padding_grouped: float
    """The same with rows of like length together."""


@dataclass(frozen=True)
class SplitTotals:
    """A split, counted. Positions and tokens are those that are kept, but for the lost ones."""

    name: str
    read: int
    skipped: list[str]
    """Each row that can not be used, and why."""
    kept: int
    """Rows; one that was split counts as its parts."""
    long: list[str]
    """Sources of the rows longer than the context."""
    long_answers: list[str]
    """Of those in which one answer alone is longer."""
    untrained: list[str]
    """Of kept rows without a token to train on, which are passed over."""
    muted: list[str]
    """Those of them that say so of each of their answers."""
    remarks: list[str]
    """What messages say of themselves that is not heeded."""
    positions: int
    tokens: int
    lost_tokens: int
    """Tokens to train on that were cut off or dropped."""
    lengths: tuple[int, int, int, int]
    """Shortest, median, 95th percentile and longest row."""
    histogram: list[Bin]
    duplicates: list[Pair]
    """Rows with the same tokens as an earlier one."""
    empty_answers: list[str]
    """Sources of rows with an answer that holds nothing but white space and marks."""

    @property
    def share(self) -> float:
        """Trained tokens of all positions."""
        return self.tokens / self.positions


def count(
    rows: TokenRows,
    tokenizer: PreTrainedTokenizerBase,
    *,
    name: str,
    has_answers: np.ndarray | None = None,
) -> SplitTotals:
    """The totals of a split.

    `has_answers` (bool [R]; None = all) says where a stretch of labels is an answer: with
    `--data.train_on all` it may be the template's alone.
    """
    lengths, intake = rows.lengths, rows.intake
    empty = empty_answers(rows, tokenizer)
    middle, high = np.percentile(lengths, [50, 95], method="inverted_cdf").tolist()
    return SplitTotals(
        name=name,
        read=intake.num_read,
        skipped=intake.skipped,
        kept=len(rows),
        long=list(intake.long),
        long_answers=intake.long_answers,
        untrained=_named(rows, np.flatnonzero(rows.token_counts == 0)),
        muted=intake.muted,
        remarks=intake.remarks,
        positions=int(lengths.sum()),
        tokens=rows.num_tokens,
        lost_tokens=intake.num_tokens - rows.num_tokens,
        lengths=(int(lengths.min()), int(middle), int(high), int(lengths.max())),
        histogram=histogram(lengths),
        duplicates=duplicates(rows),
        empty_answers=_named(rows, empty if has_answers is None else empty[has_answers[empty]]),
    )


def count_batches(loader: Loader) -> Packing:
    """How rows lie in the micro-batches of the first epoch, and what padding them would cost."""
    plan = loader.world_plan(0)
    batches = list(chain.from_iterable(plan))
    packs = loader.strategy == "packing"
    capacity = loader.batch_size * loader.context_length if packs else 0
    used = int(loader.rows.lengths[list(chain.from_iterable(batches))].sum())
    return Packing(
        steps=len(plan),
        micro_batches=len(batches),
        capacity=capacity,
        fill=used / (capacity * len(batches)) if packs else 1.0,
        padding_random=_padding(loader, shuffle="plain"),
        padding_grouped=_padding(loader, shuffle="grouped"),
    )


def histogram(lengths: np.ndarray) -> list[Bin]:
    """Rows by length, in bins that grow with it (1, 2, 3-4, 5-6, 7-8, 9-12, 13-16, 17-24, ...)."""
    edges = [0, 1, 2]
    while edges[-1] < lengths.max():
        last = edges[-1]
        is_power = last & (last - 1) == 0
        edges.append(last * 3 // 2 if is_power and last > 1 else last * 4 // 3)
    counts = np.histogram(lengths, bins=np.array(edges) + 0.5)[0].tolist()
    bins = [
        Bin(low + 1, high, rows) for low, high, rows in zip(edges, edges[1:], counts, strict=False)
    ]
    filled = [at for at, found in enumerate(bins) if found.rows]
    return bins[filled[0] : filled[-1] + 1]


def duplicates(rows: TokenRows) -> list[Pair]:
    """Rows whose ids are those of an earlier row, with that one."""
    first: dict[bytes, int] = {}
    found = []
    for row, digest in enumerate(_digests(rows)):
        earlier = first.setdefault(digest, row)
        if earlier != row:
            found.append((rows.sources[row], rows.sources[earlier]))
    return found


def leaks(rows: TokenRows, val_rows: TokenRows) -> list[Pair]:
    """Validation rows whose ids are those of a training row, with that one."""
    trained = {digest: row for row, digest in reversed(list(enumerate(_digests(rows))))}
    return [
        (val_rows.sources[row], rows.sources[trained[digest]])
        for row, digest in enumerate(_digests(val_rows))
        if digest in trained
    ]


def empty_answers(rows: TokenRows, tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """Rows with a stretch of labels that is no word: only white space and special tokens."""
    labels = rows.labels[:]
    trained = labels != IGNORED
    ids = np.unique(labels[trained])
    words = [bool(tokenizer.decode([i], skip_special_tokens=True).strip()) for i in ids.tolist()]
    is_word = np.zeros(len(trained), dtype=bool)
    is_word[trained] = np.array(words, dtype=bool)[np.searchsorted(ids, labels[trained])]
    # A stretch ends with its row too.
    begins = trained & np.append(True, ~trained[:-1])
    begins[rows.offsets[:-1]] |= trained[rows.offsets[:-1]]
    starts = np.flatnonzero(begins)
    stretch = np.cumsum(begins) - 1
    counts = np.bincount(stretch[trained], weights=is_word[trained], minlength=len(starts))
    return np.unique(np.searchsorted(rows.offsets, starts[counts == 0], side="right") - 1)


def _digests(rows: TokenRows) -> list[bytes]:
    """A hash of the ids of each row."""
    input_ids = rows.input_ids[:]
    content, size = memoryview(input_ids).cast("B"), input_ids.itemsize
    bounds = (rows.offsets * size).tolist()
    return [blake2b(content[start:end], digest_size=16).digest() for start, end in pairwise(bounds)]


def _padding(loader: Loader, *, shuffle: str) -> float:
    padded = replace(loader, strategy="padding", shuffle=shuffle)
    batches: list[RowIds] = list(chain.from_iterable(padded.world_plan(0)))
    lengths = loader.rows.lengths
    room = sum(int(lengths[list(batch)].max()) * len(batch) for batch in batches if batch)
    used = sum(int(lengths[list(batch)].sum()) for batch in batches)
    return 1 - used / room


def _named(rows: TokenRows, indices: Sequence[int]) -> list[str]:
    return [rows.sources[index] for index in indices]
