"""What a run would train on, for a person to look at before a weight is read.

Rows and labels are those that the run itself would have: read, tokenised, cut and laid into
micro-batches by the same code, from the same cache. Where the run would be refused for some of its
rows, the others are shown all the same, with the refusal.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from transformers import PreTrainedTokenizerBase

from ftrecipes.config.errors import ConfigError, DataError
from ftrecipes.config.faults import shown
from ftrecipes.config.names import close
from ftrecipes.config.schema import RunConfig
from ftrecipes.data.doctor import verdict
from ftrecipes.data.loader import loader_of
from ftrecipes.data.mix import describe_draws, often_drawn
from ftrecipes.data.preview_notices import Notice, all_notices
from ftrecipes.data.preview_rows import PreviewRow, RowViewer
from ftrecipes.data.preview_totals import Packing, Pair, SplitTotals, count, count_batches, leaks
from ftrecipes.data.raws import load_raws
from ftrecipes.data.rows import RawRows, TokenRows
from ftrecipes.data.sets import has_answers, tokenize_split
from ftrecipes.data.splits import examine_sets

SEARCHED = 20_000
"""Names that a misspelt one is compared with."""


@dataclass(frozen=True)
class Preview:
    """All that is shown."""

    notices: list[Notice]
    """What to look at, the worst first."""
    totals: list[SplitTotals]
    """Of the training rows, and of those to evaluate on where there are some."""
    packing: Packing
    sets: list[tuple[str, str]]
    """Name of each data set of several, and what an epoch draws of it."""
    leaked: list[Pair]
    """Validation rows with the tokens of a training row."""
    rows: list[PreviewRow]
    numbers: dict[str, int]
    """Number of the row that each notice points to, by its source."""
    refusal: DataError | None
    """Why a run with these flags would be refused."""


def preview(
    config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    num_rows: int,
    row: str | None = None,
    world_size: int = 1,
) -> Preview:
    """The preview of a run, with `num_rows` of its training rows, or the one that is named `row`.

    `config` and `tokenizer` are settled as for the run; micro-batches are those of `world_size`
    processes. Raises DataError when there are no rows to show at all, and ConfigError for a `row`
    that there is not.
    """
    faults: list[DataError] = []
    raws = load_raws(config, tokenizer, faults=faults)
    if refusal := _joined(faults):
        raise refusal from faults[0]
    found = {name: _tokenize(raw, config, tokenizer) for name, raw in raws.items()}
    rows, val_rows = found["train"][0], found.get("validation", (None,))[0]
    loader = loader_of(config, rows, world_size=world_size)
    chosen = choose(rows, num_rows) if row is None else find(row, raws["train"], rows)
    viewer = RowViewer(raws["train"], rows, tokenizer, data=config.data, loader=loader)
    totals = [
        count(own, tokenizer, name=name, has_answers=has_answers(raws[name], own, config.data))
        for name, (own, _) in found.items()
    ]
    leaked = leaks(rows, val_rows) if val_rows else []
    packing = count_batches(loader)
    findings = examine_sets(
        *(raws["train"], rows, tokenizer),
        data=config.data,
        context_length=config.train.context_length,
    )
    notices = all_notices(
        *(totals, config.data),
        findings=findings,
        leaked=leaked,
        packing=packing,
        often=often_drawn(rows),
    )
    sources = {notice.source for notice in notices}
    refusals = [*(own for _, own in found.values()), verdict(findings, strict=config.data.strict)]
    return Preview(
        notices=notices,
        totals=totals,
        packing=packing,
        sets=describe_draws(rows, seed=config.train.seed),
        leaked=leaked,
        rows=[viewer.view(index, why=why) for index, why in chosen],
        numbers={name: number for name in sources if (number := viewer.number_of(name))},
        refusal=_joined([refusal for refusal in refusals if refusal]),
    )


def _joined(refusals: Sequence[DataError]) -> DataError | None:
    """All of them as one, each once."""
    words = list(dict.fromkeys(map(str, refusals)))
    return DataError("\n\n".join(words)) if words else None


def choose(rows: TokenRows, number: int) -> list[tuple[int, str]]:
    """So many rows to look at, and why: those that tell most, then some spread over the others."""
    counts = rows.token_counts
    long = rows.intake.long
    full_lengths = [
        long.get(source, length)
        for source, length in zip(rows.sources, rows.lengths.tolist(), strict=True)
    ]
    fewest = "no trained token" if counts.min() == 0 else "the fewest trained tokens"
    telling: dict[int, str] = {}
    for index, why in (
        (0, "the first"),
        (int(np.argmax(full_lengths)), "the longest"),
        (int(np.argmin(counts)), fewest),
    ):
        telling[index] = f"{telling[index]}, {why}" if index in telling else why
    chosen = dict(list(telling.items())[:number])
    spread = np.linspace(0, len(rows) - 1, num=min(number, len(rows)), dtype=int).tolist()
    for index in [*spread, *range(min(number, len(rows)))]:
        if len(chosen) < number:
            chosen.setdefault(index, "")
    return list(chosen.items())


def find(name: str, raw: RawRows, rows: TokenRows) -> list[tuple[int, str]]:
    """The row with this number or name; all its parts, if it was split.

    Raises ConfigError when there is none, and DataError for a row that was read and left out.
    """
    # Python knows other digits too, and refuses numbers of thousands of them.
    number = int(name) if re.fullmatch("[0-9]{1,18}", name) else None
    if number is not None and not 1 <= number <= len(raw):
        raise ConfigError(
            f"--row {name}: there is no such row.\n"
            f"  expected: 1 to {len(raw)}, for the training rows of {raw.name}"
        )
    source = name if number is None else raw.sources[number - 1]
    found = [
        index
        for index, own in enumerate(rows.sources)
        if own == source or own.startswith(f"{source} part ")
    ]
    if not found and source in raw.sources:
        raise DataError(_left_out(source, rows))
    if not found:
        near = close(name, raw.sources[:SEARCHED])
        raise ConfigError(
            f"--row {shown(name)}: there is no such row.\n"
            f"  expected: 1 to {len(raw)}, or a name such as {raw.sources[0]!r}"
            + (f"\n  do: did you mean {near!r}?" if near else "")
        )
    return [(index, "") for index in found]


def _left_out(source: str, rows: TokenRows) -> str:
    """Why a row is not among the others."""
    if source in rows.intake.long:
        return (
            f"{source} is dropped.\n  got: {rows.intake.long[source]} positions\n"
            "  do: raise --context_length, or choose another --data.truncation"
        )
    reasons = [fault for fault in rows.intake.skipped if fault.startswith(f"{source}: ")]
    return f"{reasons[0]}\n  do: correct this row"


def _tokenize(
    raw: RawRows, config: RunConfig, tokenizer: PreTrainedTokenizerBase
) -> tuple[TokenRows, DataError | None]:
    """The rows, and the refusal that a run would end with; then it is the rows without the faulty.

    Raises DataError when there are no others.
    """
    data, length = config.data, {"context_length": config.train.context_length}
    try:
        return tokenize_split(raw, tokenizer, data=data, **length), None
    except DataError as error:
        refusal = error
    truncation = "right" if data.truncation == "error" else data.truncation
    lenient = replace(data, on_bad_row="skip", truncation=truncation)
    if lenient == data:
        raise refusal
    try:
        return tokenize_split(raw, tokenizer, data=lenient, **length), refusal
    except DataError:
        raise refusal from None
