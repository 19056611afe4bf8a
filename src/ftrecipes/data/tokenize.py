"""A split's raw rows to tokens and labels, checked, cut to size and counted."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from transformers import PreTrainedTokenizerBase

from ftrecipes.config.errors import DataError
from ftrecipes.config.sections import DataConfig
from ftrecipes.data.chat import Rendered
from ftrecipes.data.encode import Encoder
from ftrecipes.data.fields import not_a_row
from ftrecipes.data.formats import choose_reader
from ftrecipes.data.kinds import Row, TokenRow
from ftrecipes.data.lengths import Named, fit_rows, measure
from ftrecipes.data.rows import RawRows, RowFault, TokenRows, refuse_rows, show_faults
from ftrecipes.runtime import log

# A batch ends with the first of the two: text in work is held several times over.
BATCH_ROWS = 1000
BATCH_CHARACTERS = 1_000_000
SHOWN_SOURCES = 3
MEND = "correct these rows, or leave them out with --data.on_bad_row skip"
MEND_ALL = "correct the rows, or take a model or tokenizer that is made for such rows"


@dataclass
class Notes:
    """What a person should know of the rows, gathered on the way."""

    faults: list[str] = field(default_factory=list)
    """Each row that can not be used, and why."""
    muted: list[str] = field(default_factory=list)
    """Rows whose messages leave themselves out."""
    num_unheeded: int = 0
    """Rows with messages that say they are trained, and are not."""
    unread: Counter[str] = field(default_factory=Counter)
    """Rows by key of a message that the chat template does not know."""


def tokenize_rows(
    raw: RawRows, tokenizer: PreTrainedTokenizerBase, *, data: DataConfig, context_length: int
) -> TokenRows:
    """Every row as ids and labels, none longer than `context_length` positions.

    `data` says the format, the names of the columns, and what becomes of rows that are too long or
    can not be used; what is lost is counted in the report. Rows without a trained token stay in the
    set (the loader passes over them) and are reported. Raises DataError naming the rows that can
    not be used, and for a set that is empty or has no label.
    """
    if len(raw) == 0:
        raise DataError(f"{raw.name} has no rows.\n  do: check the data set")
    if not tokenizer.is_fast:
        raise DataError(
            f"{type(tokenizer).__name__} does not say which characters a token stands for, so "
            "answers can not be told from prompts.\n"
            "  do: name a fast tokenizer (one with a tokenizer.json) with --tokenizer_name"
        )
    notes = Notes()
    rows = list(_encoded_rows(raw, tokenizer, data=data, notes=notes))
    if data.on_bad_row == "error" or not rows:
        refuse_rows(notes.faults, total=len(raw), do=MEND if rows else MEND_ALL)
    remarks = _remarks(notes, total=len(raw), train_on=data.train_on)
    report = [*_left_out(notes, total=len(raw)), *remarks]
    said = {"skipped": notes.faults, "remarks": remarks, "muted": notes.muted}
    intake = replace(measure(rows, context_length=context_length), num_read=len(raw), **said)
    rows = fit_rows(rows, context_length=context_length, truncation=data.truncation, report=report)
    _report_empty(rows, raw=raw, context_length=context_length, report=report)
    return TokenRows(
        input_ids=np.concatenate([row.input_ids for _, row in rows]),
        labels=np.concatenate([row.labels for _, row in rows]),
        offsets=np.cumsum([0, *(len(row.input_ids) for _, row in rows)]),
        sources=[source for source, _ in rows],
        report=report,
        intake=intake,
    )


def _encoded_rows(
    raw: RawRows, tokenizer: PreTrainedTokenizerBase, *, data: DataConfig, notes: Notes
) -> Iterator[Named]:
    """Each row that can be used, in order."""
    if not raw.columns:
        named = zip(raw.sources, raw.rows, strict=True)
        notes.faults += [f"{source}: {not_a_row(row)}" for source, row in named]
        return
    read = raw.reader or choose_reader(raw, tokenizer, data)
    encoder = Encoder(tokenizer, train_on=data.train_on)
    for batch in _batches(_rendered(raw, read, encoder, notes=notes)):
        encoded = encoder.encode([row for _, row in batch])
        for (source, _), row in zip(batch, encoded, strict=True):
            if len(row.input_ids):
                yield source, row
            else:
                notes.faults.append(f"{source}: the tokenizer makes no tokens of it")


def _rendered(
    raw: RawRows, read: Callable[[Mapping], Row], encoder: Encoder, *, notes: Notes
) -> Iterator[tuple[str, Rendered | TokenRow]]:
    with log.progress(len(raw), unit="row") as bar:
        for source, row in zip(raw.sources, raw.rows, strict=True):
            bar.update()
            try:
                if not isinstance(row, Mapping):
                    raise RowFault(not_a_row(row))
                rendered = encoder.render(read(row))
            except RowFault as fault:
                notes.faults.append(f"{source}: {fault}")
                continue
            except RecursionError:
                notes.faults.append(f"{source}: its objects and lists are nested too deep")
                continue
            if isinstance(rendered, Rendered):
                notes.muted += [source] * rendered.is_muted
                notes.num_unheeded += rendered.is_unheeded
                notes.unread.update(rendered.unread)
            yield source, rendered


def _batches(
    rows: Iterable[tuple[str, Rendered | TokenRow]],
) -> Iterator[list[tuple[str, Rendered | TokenRow]]]:
    batch, characters = [], 0
    for source, row in rows:
        batch.append((source, row))
        characters += len(row.text) if isinstance(row, Rendered) else 0
        if len(batch) == BATCH_ROWS or characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _left_out(notes: Notes, *, total: int) -> list[str]:
    report = []
    if notes.faults:
        shown = show_faults(notes.faults)
        report.append(
            f"{len(notes.faults)} of {total} rows can not be used and are skipped:{shown}"
        )
    if notes.muted:
        report.append(
            f"{len(notes.muted)} of {total} rows have no answer left to train: each is left out by "
            '"train": false or "weight": 0'
        )
    return report


def _remarks(notes: Notes, *, total: int, train_on: str) -> list[str]:
    remarks = []
    if notes.num_unheeded:
        remarks.append(
            f'{notes.num_unheeded} of {total} rows have messages with "train": true or "weight": 1 '
            f"that --data.train_on {train_on} does not train"
        )
    for key, count in sorted(notes.unread.items()):
        remarks.append(
            f"{count} of {total} rows have messages with the key {key!r}, which the chat template "
            "does not know: what it holds is not trained on"
        )
    return remarks


def _report_empty(
    rows: list[Named], *, raw: RawRows, context_length: int, report: list[str]
) -> None:
    """Report rows without a token to train on; raise DataError when there are no others."""
    empty = [source for source, row in rows if row.num_tokens == 0]
    if len(empty) == len(rows):
        raise DataError(
            f"None of {len(raw)} rows has a token to train on within --context_length "
            f"{context_length} ({raw.sources[0]} and on).\n"
            + "".join(f"  {line}\n" for line in report)
            + "  expected: at least one row with an answer (a label other than -100)\n"
            "  do: raise --context_length, or correct what the rows say of their training: train "
            "and weight of messages, labels of tokens"
        )
    if empty:
        names = ", ".join(empty[:SHOWN_SOURCES]) + (", ..." if len(empty) > SHOWN_SOURCES else "")
        report.append(
            f"{len(empty)} of {len(raw)} rows have no token to train on and are passed over: "
            f"{names}"
        )
