"""A split's raw rows to tokens and labels, checked, cut to size and counted."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np
from transformers import PreTrainedTokenizerBase

from ftrecipes.config.errors import DataError
from ftrecipes.data.chat import Rendered
from ftrecipes.data.encode import Encoder
from ftrecipes.data.formats import Row, TokenRow, choose_reader, kind_of
from ftrecipes.data.rows import RawRows, RowFault, TokenRows, Unreadable, refuse_rows
from ftrecipes.runtime import log

BATCH_ROWS = 1000
LOST_SHARE_WARNED = 0.05
SHOWN_SOURCES = 3
MEND = "correct these rows, or take them out"

Labelled = list[tuple[str, TokenRow]]
"""Rows beside the words that name them."""


def tokenize_rows(
    raw: RawRows, tokenizer: PreTrainedTokenizerBase, *, context_length: int, truncation: str
) -> TokenRows:
    """Every row as ids and labels, none longer than `context_length` positions.

    `truncation` is `right` (cut), `drop` or `error`; what is lost is counted in the report. Rows
    without a trained token stay in the set (the loader passes over them) and are reported. Raises
    DataError naming the rows that can not be used, and for a set that is empty or has no label.
    """
    if len(raw) == 0:
        raise DataError(f"{raw.name} has no rows.\n  do: check the data set")
    if not tokenizer.is_fast:
        raise DataError(
            f"{type(tokenizer).__name__} does not say which characters a token stands for, so "
            "answers can not be told from prompts.\n"
            "  do: name a fast tokenizer (one with a tokenizer.json) with --tokenizer_name"
        )
    report: list[str] = []
    rows = list(_labelled_rows(raw, tokenizer, report=report))
    rows = _fit(rows, context_length=context_length, truncation=truncation, report=report)
    empty = [source for source, row in rows if row.num_tokens == 0]
    if len(empty) == len(rows):
        raise DataError(
            f"None of {len(raw)} rows has a token to train on within --context_length "
            f"{context_length} ({raw.source(0)} and on).\n"
            + "".join(f"  {line}\n" for line in report)
            + "  expected: at least one row with an answer (a label other than -100)\n"
            "  do: raise --context_length, or correct the labels of a custom data set"
        )
    if empty:
        names = ", ".join(empty[:SHOWN_SOURCES]) + (", ..." if len(empty) > SHOWN_SOURCES else "")
        report.append(
            f"{len(empty)} of {len(raw)} rows have no token to train on and are passed over: "
            f"{names}"
        )
    return TokenRows(
        input_ids=np.concatenate([row.input_ids for _, row in rows]),
        labels=np.concatenate([row.labels for _, row in rows]),
        offsets=np.cumsum([0, *(len(row.input_ids) for _, row in rows)]),
        sources=[source for source, _ in rows],
        report=report,
    )


def _labelled_rows(
    raw: RawRows, tokenizer: PreTrainedTokenizerBase, *, report: list[str]
) -> Iterator[tuple[str, TokenRow]]:
    """Each row in order; behind the last, faulty rows are raised together and notes reported."""
    if not raw.columns:
        faults = [f"{raw.source(index)}: {_not_a_row(row)}" for index, row in enumerate(raw.rows)]
        refuse_rows(faults, total=len(raw), do=MEND)
    read = choose_reader(raw, tokenizer)
    encoder = Encoder(tokenizer)
    faults: list[str] = []
    num_open = 0
    numbered = enumerate(raw.rows)
    with log.progress(len(raw), unit="row") as bar:
        while chunk := list(islice(numbered, BATCH_ROWS)):
            named = [(raw.source(index), row) for index, row in chunk]
            rendered = list(_rendered(named, read, encoder, faults=faults))
            num_open += sum(isinstance(row, Rendered) and row.is_open for _, row in rendered)
            encoded = encoder.encode([row for _, row in rendered])
            yield from zip((source for source, _ in rendered), encoded, strict=True)
            bar.update(len(chunk))
    refuse_rows(faults, total=len(raw), do=MEND)
    if num_open:
        report.append(
            f"{num_open} of {len(raw)} rows end without an end token, because the chat template "
            "writes none: the model does not learn where to stop"
        )


def _rendered(
    rows: Sequence[tuple[str, Mapping]],
    read: Callable[[Mapping], Row],
    encoder: Encoder,
    *,
    faults: list[str],
) -> Iterator[tuple[str, Rendered | TokenRow]]:
    """The rows that can be used, beside their names; the others are told in `faults`."""
    for source, row in rows:
        try:
            if not isinstance(row, Mapping):
                raise RowFault(_not_a_row(row))
            yield source, encoder.render(read(row))
        except RowFault as fault:
            faults.append(f"{source}: {fault}")


def _not_a_row(row: object) -> str:
    if isinstance(row, Unreadable):
        return row.reason
    return f"the row is {kind_of(row)}; expected an object with keys"


def _fit(rows: Labelled, *, context_length: int, truncation: str, report: list[str]) -> Labelled:
    """Rows of at most `context_length` positions; what that cost goes to the report."""
    too_long = [(source, row) for source, row in rows if len(row.input_ids) > context_length]
    if not too_long:
        return rows
    if truncation == "error":
        faults = [f"{source}: {len(row.input_ids)} positions" for source, row in too_long]
        refuse_rows(
            faults,
            total=len(rows),
            do="raise --context_length, or cut rows: --data.truncation right",
        )
    if truncation == "right":
        kept = [(source, row.cut(context_length)) for source, row in rows]
    else:
        kept = [(source, row) for source, row in rows if len(row.input_ids) <= context_length]
    positions = sum(len(row.input_ids) for _, row in rows)
    lost_positions = positions - sum(len(row.input_ids) for _, row in kept)
    tokens = sum(row.num_tokens for _, row in rows)
    lost_tokens = tokens - sum(row.num_tokens for _, row in kept)
    verb = "cut at the right" if truncation == "right" else "dropped"
    report.append(
        f"{len(too_long)} of {len(rows)} rows are longer than {context_length} positions and were "
        f"{verb}: {lost_positions} of {positions} positions and {lost_tokens} of {tokens} tokens "
        "to train on are lost"
    )
    if lost_tokens > LOST_SHARE_WARNED * tokens:
        report.append(
            f"{lost_tokens / tokens:.0%} of the tokens to train on are lost to their length: raise "
            "--context_length, or choose another --data.truncation (right, drop, error)"
        )
    return kept
