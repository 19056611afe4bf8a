"""Several data sets become one split: each read and tokenised as if it were alone, then joined."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
from transformers import PreTrainedTokenizerBase

from ftrecipes.config.errors import DataError
from ftrecipes.config.mixing import DataSet
from ftrecipes.config.sections import DataConfig
from ftrecipes.data.cache import tokenize_cached
from ftrecipes.data.chain import ChainedArrays, ChainedRows
from ftrecipes.data.facts import join_facts
from ftrecipes.data.formats import choose_reader
from ftrecipes.data.kinds import Row
from ftrecipes.data.row_names import join_names
from ftrecipes.data.rows import Intake, RawRows, RawSet, RowSet, TokenRows

CAP_SEED = 43
"""Its own, so that a cap takes the same rows whatever `--seed` is."""


def cap_rows(raw: RawRows, max_rows: int | None) -> RawRows:
    """At most `max_rows` rows, drawn, in their order; which ones depends on the numbers alone."""
    if max_rows is None or len(raw) <= max_rows:
        return raw
    # MT19937's legacy stream is frozen by NumPy (NEP 19). A smaller cap takes some of the same.
    drawn = np.random.RandomState(CAP_SEED).permutation(len(raw))[:max_rows]
    fingerprint = raw.fingerprint and f"{raw.fingerprint} max_rows {max_rows}"
    return raw.pick(sorted(drawn.tolist()), fingerprint=fingerprint)


def name_apart(
    sets: Sequence[DataSet], raws: Sequence[Mapping[str, RawRows]]
) -> list[Mapping[str, RawRows]]:
    """The splits of each set, with rows named by the path of the set where two have files alike."""
    names = [
        {label.rpartition(" ")[0] for raw in own.values() for label in raw.sources.labels}
        for own in raws
    ]
    apart = []
    for at, (one, own) in enumerate(zip(sets, raws, strict=True)):
        others = set().union(*names[:at], *names[at + 1 :])
        if names[at].isdisjoint(others):
            apart.append(own)
        else:
            apart.append({split: _under(one.name, raw) for split, raw in own.items()})
    return apart


def join_raws(found: Sequence[tuple[DataSet, RawRows]]) -> RawRows:
    """The rows of all sets, one set behind another.

    A set is called what `--dataset` calls it; two splits of one set are called by their rows.
    """
    names = Counter(one.name for one, _ in found)
    raws = [raw for _, raw in found]
    prints = [f"{raw.name} {raw.fingerprint}" for raw in raws if raw.fingerprint]
    return RawRows(
        rows=ChainedRows([raw.rows for raw in raws]),
        columns=list(dict.fromkeys(column for raw in raws for column in raw.columns)),
        name=", ".join(raw.name for raw in raws),
        sources=join_names([raw.sources for raw in raws]),
        fingerprint="\n".join(prints) if len(prints) == len(raws) else None,
        parts=tuple(
            RawSet(one.name if names[one.name] == 1 else raw.name, raw, one.weight, one.own)
            for (one, _), raw in zip(found, raws, strict=True)
        ),
    )


def tokenize_split(
    raw: RawRows, tokenizer: PreTrainedTokenizerBase, *, data: DataConfig, context_length: int
) -> TokenRows:
    """The tokens of a split, of each of its sets by itself. Raises DataError with all faults."""
    if not raw.parts:
        return tokenize_cached(raw, tokenizer, data=data, context_length=context_length)
    found, faults = [], []
    for one in raw.parts:
        own = replace(data, **one.own)
        try:
            found.append(
                tokenize_cached(one.raw, tokenizer, data=own, context_length=context_length)
            )
        except DataError as fault:
            faults.append(fault)
    if faults:
        raise DataError("\n\n".join(dict.fromkeys(map(str, faults)))) from faults[0]
    return join_rows([RowSet(one.name, 0, one.weight) for one in raw.parts], found)


def parts_of(
    raw: RawRows, rows: TokenRows, data: DataConfig
) -> Iterator[tuple[RawRows, TokenRows, DataConfig]]:
    """Each set of a split with its rows and settings; the whole where there is no list of sets."""
    if not raw.parts:
        yield raw, rows, data
        return
    for one, (_, its) in zip(raw.parts, rows_by_set(rows), strict=True):
        yield one.raw, its, replace(data, **one.own)


def rows_by_set(rows: TokenRows) -> Iterator[tuple[RowSet, TokenRows]]:
    """The rows of each set by themselves; of all where there is no list of sets."""
    if not rows.sets:
        yield RowSet("", len(rows)), rows
        return
    start = 0
    for its in rows.sets:
        end = start + its.num_rows
        first, last = rows.offsets[start], rows.offsets[end]
        part = TokenRows(
            input_ids=rows.input_ids[first:last],
            labels=rows.labels[first:last],
            offsets=rows.offsets[start : end + 1] - first,
            sources=rows.sources[start:end],
            report=[],
            intake=its.intake,
            known=its.facts,
        )
        yield its, part
        start = end


def has_answers(raw: RawRows, rows: TokenRows, data: DataConfig) -> np.ndarray:
    """bool [R]: whether answers are what is trained of a row, as its set says, and not all."""
    parts = parts_of(raw, rows, data)
    return np.concatenate([np.full(len(its), own.train_on != "all") for _, its, own in parts])


def row_reader(
    raw: RawRows, tokenizer: PreTrainedTokenizerBase, data: DataConfig
) -> Callable[[int], Row]:
    """Reads the row with this index, as its set is read; it raises RowFault."""
    readers = [
        one.raw.reader or choose_reader(one.raw, tokenizer, replace(data, **one.own), is_told=False)
        for one in _parts(raw)
    ]
    set_of = _set_of(raw)
    return lambda index: readers[set_of(index)](raw.rows[index])


def row_settings(raw: RawRows, data: DataConfig) -> Callable[[int], DataConfig]:
    """The settings of the row with this index, which are those of its set."""
    settings = [replace(data, **one.own) for one in _parts(raw)]
    set_of = _set_of(raw)
    return lambda index: settings[set_of(index)]


def _parts(raw: RawRows) -> tuple[RawSet, ...]:
    return raw.parts or (RawSet(raw.name, raw),)


def _set_of(raw: RawRows) -> Callable[[int], int]:
    ends = list(accumulate(len(one.raw) for one in _parts(raw)))
    return lambda index: bisect_right(ends, index)


def join_rows(sets: Sequence[RowSet], found: Sequence[TokenRows]) -> TokenRows:
    """Rows of these sets (name and weight), one set behind another."""
    starts = np.cumsum([0, *(rows.num_positions for rows in found)])
    offsets = [rows.offsets[1:] + start for rows, start in zip(found, starts, strict=False)]
    return TokenRows(
        input_ids=ChainedArrays([rows.input_ids for rows in found]),
        labels=ChainedArrays([rows.labels for rows in found]),
        offsets=np.concatenate([[0], *offsets]),
        sources=[source for rows in found for source in rows.sources],
        report=[
            f"{one.name}: {line}"
            for one, rows in zip(sets, found, strict=True)
            for line in rows.report
        ],
        intake=_sum(
            [_under_name(one.name, rows.intake) for one, rows in zip(sets, found, strict=True)]
        ),
        sets=tuple(
            RowSet(one.name, len(rows), one.weight, rows.intake, rows.facts)
            for one, rows in zip(sets, found, strict=True)
        ),
        known=join_facts([rows.facts for rows in found]),
    )


def _under_name(name: str, intake: Intake) -> Intake:
    return replace(intake, remarks=[f"{name}: {remark}" for remark in intake.remarks])


def _sum(intakes: Sequence[Intake]) -> Intake:
    return Intake(
        num_read=sum(one.num_read for one in intakes),
        num_positions=sum(one.num_positions for one in intakes),
        num_tokens=sum(one.num_tokens for one in intakes),
        skipped=[fault for one in intakes for fault in one.skipped],
        long={source: length for one in intakes for source, length in one.long.items()},
        long_answers=[source for one in intakes for source in one.long_answers],
        remarks=[remark for one in intakes for remark in one.remarks],
        muted=[source for one in intakes for source in one.muted],
    )


def _under(name: str, raw: RawRows) -> RawRows:
    """Its rows named by the path of the set."""
    folder = name.rstrip("/")
    if len(raw) and raw.sources[0].startswith(f"{folder} "):
        return raw  # so they are already, as those of the hub

    def rename(label: str) -> str:
        if label.startswith(f"{raw.name} "):
            return folder + label.removeprefix(raw.name)
        return f"{folder}/{label}"

    return replace(raw, name=folder, sources=raw.sources.renamed(rename))
