"""Rows of at most so many positions, and what of them that costs."""

from collections.abc import Sequence

import numpy as np

from ftrecipes.data.facts import IGNORED
from ftrecipes.data.kinds import TokenRow
from ftrecipes.data.rows import Intake, refuse_rows

LOST_SHARE_WARNED = 0.05

Named = tuple[str, TokenRow]
"""A row behind the words that name it."""

DONE = {
    "right": "were cut at the right",
    "left": "were cut at the left",
    "drop": "were dropped",
    "split": "were split into {parts} rows",
}


def fit_rows(
    rows: list[Named], *, context_length: int, truncation: str, report: list[str]
) -> list[Named]:
    """`rows` with none longer than `context_length` positions; what is lost goes to the report.

    `truncation` is that of DataConfig. Raises DataError naming the rows under `error`.
    """
    long = [(source, row) for source, row in rows if len(row.input_ids) > context_length]
    if not long:
        return rows
    if truncation == "error":
        refuse_rows(
            [f"{source}: {len(row.input_ids)} positions" for source, row in long],
            total=len(rows),
            do="raise --context_length, or cut rows: --data.truncation right",
        )
    kept = [
        part
        for named in rows
        for part in _fit(named, context_length=context_length, truncation=truncation)
    ]
    report += _lost(rows, kept, long=long, context_length=context_length, truncation=truncation)
    return kept


def measure(rows: Sequence[Named], *, context_length: int) -> Intake:
    """What `rows`, not yet cut, are and hold; of the long ones by name."""
    long = {source: row for source, row in rows if len(row.input_ids) > context_length}
    return Intake(
        num_positions=sum(len(row.input_ids) for _, row in rows),
        num_tokens=sum(row.num_tokens for _, row in rows),
        long={source: len(row.input_ids) for source, row in long.items()},
        long_answers=[name for name, row in long.items() if _longest_answer(row) > context_length],
    )


def _longest_answer(row: TokenRow) -> int:
    """Positions of the longest stretch of labels that count; 0 where all of the row is trained."""
    if row.num_tokens >= len(row.labels) - 1:
        return 0  # a text, no answer
    edges = np.flatnonzero(np.diff(row.labels != IGNORED, prepend=False, append=False))
    return int(np.diff(edges)[::2].max(initial=0))


def _fit(named: Named, *, context_length: int, truncation: str) -> list[Named]:
    """What is kept of one row; each part has the row's labels but that of its first position."""
    source, row = named
    length = len(row.input_ids)
    if length <= context_length:
        return [named]
    if truncation == "drop":
        return []
    if truncation == "right":
        return [(source, _part(row, 0, context_length))]
    if truncation == "left":
        return [(source, _part(row, length - context_length, length))]
    # The last position of a part is the first of the next one, where nothing is trained because
    # nothing comes before it. So each token is trained once.
    starts = range(0, length - 1, context_length - 1)
    parts = [
        (f"{source} part {number}", _part(row, start, start + context_length))
        for number, start in enumerate(starts, start=1)
    ]
    # A part without a token is of no use, but a row without any must stay one to be reported.
    return [part for part in parts if part[1].num_tokens] or parts[:1]


def _part(row: TokenRow, start: int, end: int) -> TokenRow:
    return TokenRow(row.input_ids[start:end], row.labels[start:end])


def _lost(
    rows: Sequence[Named],
    kept: Sequence[Named],
    *,
    long: Sequence[Named],
    context_length: int,
    truncation: str,
) -> list[str]:
    tokens = sum(row.num_tokens for _, row in rows)
    lost_tokens = tokens - sum(row.num_tokens for _, row in kept)
    done = DONE[truncation].format(parts=len(kept) - len(rows) + len(long))
    lost = f"{lost_tokens} of {tokens} tokens to train on are lost"
    if truncation != "split":
        positions = sum(len(row.input_ids) for _, row in rows)
        lost_positions = positions - sum(len(row.input_ids) for _, row in kept)
        lost = f"{lost_positions} of {positions} positions and {lost}"
    long_rows = f"{len(long)} of {len(rows)} rows are longer than {context_length} positions"
    told = [f"{long_rows} and {done}: {lost}"]
    if lost_tokens > LOST_SHARE_WARNED * tokens:
        told.append(
            f"{lost_tokens / tokens:.0%} of the tokens to train on are lost to their length: raise "
            "--context_length, or choose another --data.truncation (right, left, split, drop, "
            "error)"
        )
    return told
