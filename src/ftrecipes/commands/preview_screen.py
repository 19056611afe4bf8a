"""A preview for a terminal, or a file: nothing is told by colour alone."""

import sys
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ftrecipes.commands.preview_words import (
    LINE_END,
    batch_numbers,
    borders,
    look_at,
    row_facts,
    split_numbers,
    title,
    visible,
)
from ftrecipes.config.schema import PreviewConfig
from ftrecipes.config.visible import visible_lines
from ftrecipes.data.preview import Preview
from ftrecipes.data.preview_rows import PreviewRow, Segment
from ftrecipes.data.preview_totals import SplitTotals

MARKS = {"trained": "T", "context": "."}
# Two of each, so that tokens next to each other can be told apart.
STYLES = {"trained": ("black on green", "black on bright_green"), "context": ("", "dim")}
SEVERITY = {"error": "bold red", "warning": "bold yellow", "info": "cyan"}
WIDTH_WITHOUT_TERMINAL = 120
LONGEST_PART = 60  # tokens of one segment, unless the row was asked for
MOST_PARTS = 40
BAR = 40
SHOWN_BORDERS = 12


def screen(found: Preview, config: PreviewConfig) -> str:
    """The text for standard output: rows, totals, and last, where one looks first, the notices."""
    console = Console(file=sys.stdout, highlight=False, emoji=False, markup=False)
    if not console.is_terminal:
        console.width = max(console.width, WIDTH_WITHOUT_TERMINAL)
    with console.capture() as captured:
        for part in _parts(found, config):
            console.print(part)
    encoding = sys.stdout.encoding or "utf-8"
    text = "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())
    if not _can_write(LINE_END, encoding):
        text = text.replace(LINE_END, "\\n")
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _can_write(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _parts(found: Preview, config: PreviewConfig) -> Iterator[RenderableType]:
    if found.rows:
        yield Text("T trained   . context, not trained").append(
            f"   {LINE_END} line end   No row is padded: rows of a micro-batch lie end to end.\n"
        )
    for row in found.rows:
        yield from _row(row, is_asked=config.row is not None)
    for totals in found.totals:
        yield _heading(f"{totals.name}, all rows")
        yield _numbers(split_numbers(totals, config))
        yield _histogram(totals)
    yield _heading("micro-batches of the first epoch")
    yield _numbers(batch_numbers(found, config))
    yield Text("")
    yield _heading("to look at")
    yield _notices(found)


def _heading(text: str) -> Text:
    return Text(f"--- {text}", style="bold")


def _numbers(pairs: Iterator[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in pairs:
        table.add_row(f"  {name}", value)
    return table


def _histogram(totals: SplitTotals) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    most = max(each.rows for each in totals.histogram)
    for each in totals.histogram:
        bar = "#" * -(-each.rows * BAR // most)
        table.add_row(f"  {each.low:>6} to {each.high:<6}", f"{each.rows:>7}", Text(bar, "green"))
    return Group(Text("  rows by length, in positions:"), table, Text(""))


def _notices(found: Preview) -> RenderableType:
    if not found.notices:
        return Text("  nothing that these numbers tell")
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    for notice in found.notices:
        text = Text(visible_lines(notice.text))
        if notice.source:
            text.append(f"\nlook at: {look_at(notice, found)}")
        if notice.mend:
            text.append(f"\ndo: {notice.mend}")
        table.add_row(Text(f"  {notice.severity}:", SEVERITY[notice.severity]), text)
    return table


def _row(row: PreviewRow, *, is_asked: bool) -> Iterator[RenderableType]:
    yield _heading(title(row))
    for fact in row_facts(row):
        yield Text(f"  {fact}")
    segments = row.segments()
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(max_width=24)
    table.add_column(overflow="fold")
    for at, segment in enumerate(segments):
        half = MOST_PARTS // 2
        if is_asked or len(segments) <= MOST_PARTS or not half <= at < len(segments) - half:
            table.add_row(*_segment(segment, is_whole=is_asked))
        elif at == half:
            hidden = len(segments) - MOST_PARTS
            table.add_row("...", "", "", f"{hidden} more parts (--row {row.number} shows all)")
    yield table
    if is_asked:
        yield from _details(row)
    yield Text("")


def _segment(segment: Segment, *, is_whole: bool) -> tuple[str, Text, str, Text]:
    places = (
        f"{segment.first}-{segment.last}" if segment.last > segment.first else f"{segment.first}"
    )
    mark = Text(MARKS[segment.kind], "bold green" if segment.kind == "trained" else "dim")
    words, half = Text(), LONGEST_PART // 2
    hidden = 0 if is_whole else max(0, len(segment.texts) - LONGEST_PART)
    for at, text in enumerate(segment.texts):
        if not hidden or at < half or at >= len(segment.texts) - half:
            words.append(visible(text), STYLES[segment.kind][at % 2])
        elif at == half:
            words.append(f" [... {hidden} tokens ...] ", "italic")
    return f"  {places}", mark, segment.reason, words


def _details(row: PreviewRow) -> Iterator[RenderableType]:
    """Every token on a line of its own, and the rows beside this one."""
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for name in ("  position", "", "id", "text", "why"):
        table.add_column(name, justify="right" if name in ("  position", "id") else "left")
    for position, token in enumerate(row.tokens, start=1):
        style = STYLES[token.kind][position % 2]
        text = Text(visible(token.text), style) if token.text else Text("(of the same character)")
        table.add_row(f"{position}", MARKS[token.kind], f"{token.id}", text, token.reason)
    yield table
    found = list(borders(row))
    if len(found) > 1:
        yield Text("  rows of the micro-batch, by position; none sees another:")
        for first, last, source, is_this in found[:SHOWN_BORDERS]:
            yield Text(f"  {'>' if is_this else ' '} {first}-{last}  {source}")
        if len(found) > SHOWN_BORDERS:
            yield Text(f"    ... and {len(found) - SHOWN_BORDERS} more")
