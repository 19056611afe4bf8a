"""What a preview says, in words that screen and page share."""

from collections.abc import Iterator

from ftrecipes.config.mixing import is_mix, sets_of
from ftrecipes.config.schema import PreviewConfig
from ftrecipes.config.visible import visible_lines
from ftrecipes.data.preview import Preview
from ftrecipes.data.preview_notices import Notice
from ftrecipes.data.preview_rows import PreviewRow
from ftrecipes.data.preview_totals import SplitTotals

LINE_END = "\u21b5"


def visible(text: str) -> str:
    """`text` with what can not be seen made visible, and nothing left that steers a terminal."""
    return visible_lines(text).replace("\n", LINE_END)


def data_name(config: PreviewConfig) -> str:
    """What the rows are read from, as the person gave it."""
    if is_mix(config):
        return ", ".join(one.name for one in sets_of(config))
    return config.custom_dataset.file or config.data.train_file or config.train.dataset


def look_at(notice: Notice, found: Preview) -> str:
    """Which row shows it, as one asks for it."""
    number = found.numbers.get(notice.source)
    return visible(notice.source if number is None else f"{notice.source} (--row {number})")


def split_numbers(totals: SplitTotals, config: PreviewConfig) -> Iterator[tuple[str, str]]:
    """Name and value of each number of a split."""
    yield "rows read", f"{totals.read}"
    yield "skipped", f"{len(totals.skipped)}"
    if totals.long:
        done = {"drop": "dropped", "split": "split"}.get(config.data.truncation, "cut")
        yield f"longer than {config.train.context_length}, {done}", f"{len(totals.long)}"
    yield "rows kept", f"{totals.kept}"
    yield "without a trained token", f"{len(totals.untrained)}"
    yield "positions", f"{totals.positions}"
    yield "trained tokens", f"{totals.tokens} ({totals.share:.1%} of the positions)"
    if totals.lost_tokens:
        before = totals.tokens + totals.lost_tokens
        yield "trained tokens lost", f"{totals.lost_tokens} of {before}"
    shortest, median, high, longest = totals.lengths
    yield "row length", f"{shortest} to {longest}; half up to {median}, 95% up to {high}"
    yield "same tokens as an earlier row", f"{len(totals.duplicates)}"
    yield "answers without a word", f"{len(totals.empty_answers)}"
    yield "answers longer than the context", f"{len(totals.long_answers)}"


def batch_numbers(found: Preview, config: PreviewConfig) -> Iterator[tuple[str, str]]:
    """The same of data sets that are mixed, and of the micro-batches."""
    packing = found.packing
    for name, drawn in found.sets:
        yield visible(f"of {name}"), drawn
    yield "micro-batches", f"{packing.micro_batches} in {packing.steps} optimizer steps"
    if packing.capacity:
        yield "room in each", f"{packing.capacity} positions, {packing.fill:.1%} of it filled"
    rows = config.train.batch_size_training
    yield (
        f"pads, were rows padded {rows} by {rows}",
        f"{packing.padding_random:.1%} of the positions; {packing.padding_grouped:.1%} with rows "
        "of like length together",
    )
    if len(found.totals) > 1:
        yield "validation rows that are trained on", f"{len(found.leaked)}"


def title(row: PreviewRow) -> str:
    """The line above a row."""
    why = f", {row.why}" if row.why else ""
    return visible(f"row {row.number}{why}: {row.source}")


def row_facts(row: PreviewRow) -> Iterator[str]:
    """Lines about a row: what it holds, and where it is."""
    length = len(row.tokens)
    yield f"{length} positions, {row.num_trained} of them trained ({row.num_trained / length:.0%})"
    if row.is_cut:
        yield f"CUT: the whole row has {row.full_length} positions"
    place = row.place
    if place is None:
        yield "PASSED OVER: nothing in it is trained, so it is in no micro-batch"
        return
    used = sum(positions for _, positions in place.rows)
    room = f" of {place.capacity}" if place.capacity else ""
    beside = "alone" if len(place.rows) == 1 else f"row {place.at + 1} of {len(place.rows)}"
    yield (
        f"epoch 1, step {place.step}, micro-batch {place.number} of {place.of}: {beside} in it, "
        f"{used}{room} positions"
    )


def borders(row: PreviewRow) -> Iterator[tuple[int, int, str, bool]]:
    """Of each row of the micro-batch: first and last position in it, source, whether it is this."""
    start = 0
    for at, (source, positions) in enumerate(row.place.rows if row.place else ()):
        yield start + 1, start + positions, visible(source), at == row.place.at
        start += positions
