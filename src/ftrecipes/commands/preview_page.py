"""A preview as one page for a browser: no script, nothing that is loaded from elsewhere."""

from collections.abc import Iterable, Iterator
from html import escape

from ftrecipes.commands.preview_words import (
    LINE_END,
    batch_numbers,
    borders,
    data_name,
    look_at,
    row_facts,
    split_numbers,
    title,
    visible,
)
from ftrecipes.config.check_preview import PAGE_MARK
from ftrecipes.config.schema import PreviewConfig
from ftrecipes.config.visible import visible_lines
from ftrecipes.data.preview import Preview
from ftrecipes.data.preview_rows import PreviewRow, PreviewToken
from ftrecipes.data.preview_totals import SplitTotals

# A browser that obeys it fetches nothing and runs nothing, whatever a row may hold.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
STYLE = """
:root { color-scheme: light dark; --t: #b7e4c0; --u: #8fd3a0; --line: #8888; --weak: #6b6b6b; }
@media (prefers-color-scheme: dark) {
  :root { --t: #14532d; --u: #1b6b3b; --weak: #a0a0a0; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 1.5rem auto;
  padding: 0 1rem; }
h2 { margin: 1.6rem 0 .4rem; font-size: 1.15rem; }
code, .tokens { font: 13px/1.7 ui-monospace, monospace; }
table { border-collapse: collapse; }
td { padding: .1rem 1rem .1rem 0; vertical-align: top; }
.bars td:nth-child(-n+2) { text-align: right; font-variant-numeric: tabular-nums; }
.bar { background: var(--u); height: .8rem; min-width: 2px; }
.notices li { margin: .3rem 0; white-space: pre-line; }
.error b { color: #c62828; } .warning b { color: #b26a00; }
.facts, .legend, small { color: var(--weak); }
.tokens { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid var(--line);
  border-radius: 6px; padding: .6rem; }
.tokens span { border-right: 1px dotted var(--line); }
.tokens .t { background: var(--t); text-decoration: underline; }
.tokens .t:nth-child(even) { background: var(--u); }
.tokens span:hover { outline: 2px solid #2979ff; }
"""


def page(found: Preview, config: PreviewConfig) -> str:
    """The page; what to look at stands first."""
    return "".join(
        f"{line}\n"
        for line in (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            PAGE_MARK,
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Preview of {escape(data_name(config))}</title>",
            f"<style>{STYLE}</style></head><body>",
            *_body(found, config),
            "</body></html>",
        )
    )


def _body(found: Preview, config: PreviewConfig) -> Iterator[str]:
    train = config.train
    yield f"<h1>Preview of <code>{escape(data_name(config))}</code></h1>"
    template = config.data.chat_template
    asked = f", chat template <code>{escape(template)}</code>" if template else ""
    yield f'<p class="facts">for <code>{escape(train.model_name)}</code>{asked}</p>'
    if found.refusal is not None:
        yield '<h2>A run would be refused</h2><div class="tokens error">'
        yield f"{escape(visible_lines(str(found.refusal)))}</div>"
    yield "<h2>To look at</h2>"
    yield from _notices(found)
    for totals in found.totals:
        yield f"<h2>{escape(totals.name)}, all rows</h2>"
        yield from _numbers(split_numbers(totals, config))
        yield from _histogram(totals)
    yield "<h2>Micro-batches of the first epoch</h2>"
    yield from _numbers(batch_numbers(found, config))
    if found.rows:
        yield "<h2>Rows</h2>"
        yield (
            '<p class="legend">Underlined on green: trained. Plain: context. Dots: borders of '
            f"tokens. {LINE_END}: line end. Rest on a token to see its position, its id and why "
            "it is trained or not. No row is padded: rows of a micro-batch lie end to end.</p>"
        )
    for row in found.rows:
        yield from _row(row)


def _notices(found: Preview) -> Iterator[str]:
    if not found.notices:
        yield "<p>Nothing that these numbers tell.</p>"
        return
    yield '<ul class="notices">'
    for notice in found.notices:
        words = [f"<b>{notice.severity}</b>: {escape(visible_lines(notice.text))}"]
        if notice.source:
            words.append(f"<small>look at: {escape(look_at(notice, found))}</small>")
        if notice.mend:
            words.append(f"<small>do: {escape(notice.mend)}</small>")
        yield f'<li class="{notice.severity}">{"<br>".join(words)}</li>'
    yield "</ul>"


def _numbers(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield '<table class="numbers">'
    for name, value in pairs:
        yield f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>"
    yield "</table>"


def _histogram(totals: SplitTotals) -> Iterator[str]:
    most = max(each.rows for each in totals.histogram)
    yield '<p class="facts">Rows by length, in positions:</p><table class="bars">'
    for each in totals.histogram:
        bar = f'<div class="bar" style="width:{each.rows / most * 20:.2f}rem"></div>'
        cells = (f"{each.low} to {each.high}", f"{each.rows}", bar if each.rows else "")
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    yield "</table>"


def _row(row: PreviewRow) -> Iterator[str]:
    yield f'<h2 id="row-{row.number}">{escape(title(row))}</h2>'
    for fact in row_facts(row):
        yield f'<div class="facts">{escape(fact)}</div>'
    spans = (_token(position, token) for position, token in enumerate(row.tokens, start=1))
    yield f'<div class="tokens">{"".join(spans)}</div>'
    beside = list(borders(row))
    if len(beside) > 1:
        yield f"<details><summary>The {len(beside)} rows of its micro-batch</summary><table>"
        for first, last, source, is_this in beside:
            mark = "this row" if is_this else ""
            yield f"<tr><td>{first}-{last}</td><td>{escape(source)}</td><td>{mark}</td></tr>"
        yield "</table></details>"


def _token(position: int, token: PreviewToken) -> str:
    shown = escape(visible(token.text).replace(LINE_END, f"{LINE_END}\n"))
    words = f"position {position}, id {token.id}\n{token.kind}: {token.reason}"
    return f'<span class="{token.kind[0]}" title="{escape(words)}">{shown}</span>'
