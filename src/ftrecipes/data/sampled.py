"""Some rows of a split read and rendered once more, to look at them closely.

Legend: T positions of a whole row, before any cut.
"""

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from transformers import PreTrainedTokenizerBase

from ftrecipes.config.sections import DataConfig
from ftrecipes.data.chat import write_dialog
from ftrecipes.data.facts import IGNORED
from ftrecipes.data.formats import choose_reader
from ftrecipes.data.kinds import ChatRow, Row, TextRow
from ftrecipes.data.masks import Span
from ftrecipes.data.rows import RawRows, RowFault, TokenRows
from ftrecipes.data.template import Messages, Template, unused_character

SAMPLED = 16
SEED = 1
MARKS = ("train", "weight")
"""What a message says of its training; no template is shown that."""


@dataclass(frozen=True)
class SampledRow:
    """A row as it was read, and as it was tokenised."""

    source: str
    row: Row
    input_ids: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Dialog:
    """A dialog and what the template makes of all of it."""

    source: str
    messages: Messages
    tools: list[Mapping]
    template: Template
    text: str
    ids: list[int]
    offsets: list[Span]
    """Characters of each token."""
    is_trained: np.ndarray
    """bool [T]; False where the row was cut."""
    first: int | None
    """Where in `ids` the tokenised row begins; None when it is another one."""

    @cached_property
    def answers(self) -> list[int]:
        """Indices of the assistant's messages."""
        return [i for i, message in enumerate(self.messages) if message["role"] == "assistant"]

    def spans_of(self, index: int) -> list[Span]:
        """Where in the text the words of message `index` are; none where that can not be told."""
        content, mark = self.messages[index].get("content"), unused_character(self.text)
        if not content:
            return []
        other = {**self.messages[index], "content": mark}
        exchanged = [*self.messages[:index], other, *self.messages[index + 1 :]]
        first, *others = (self.template.try_write(exchanged) or "").split(mark)
        if not others:
            return []
        room = len(self.text) - len(first) - sum(map(len, others))
        length = room // len(others)
        words = self.text[len(first) : len(first) + length]
        if length <= 0 or words.join([first, *others]) != self.text:
            return []
        starts = [len(first)]
        for other_text in others[:-1]:
            starts.append(starts[-1] + length + len(other_text))
        return [(start, start + length) for start in starts]

    def between(self, start: int, end: int) -> str:
        """The text of the tokens [start, end)."""
        if start >= end:
            return ""
        return self.text[self.offsets[start][0] : self.offsets[end - 1][1]]


def sample_rows(
    raw: RawRows, rows: TokenRows, tokenizer: PreTrainedTokenizerBase, data: DataConfig
) -> list[SampledRow]:
    """The first row and some others, the same each time."""
    drawn = random.Random(SEED).sample(range(len(rows)), min(SAMPLED, len(rows)))
    chosen = {}
    for index in sorted({0, *drawn}):
        chosen.setdefault(_raw_name(rows.sources[index], data), index)
    read = raw.reader or choose_reader(raw, tokenizer, data, is_told=False)
    found = []
    for at, name in enumerate(raw.sources):
        if name not in chosen:
            continue
        index = chosen[name]
        part = slice(rows.offsets[index], rows.offsets[index + 1])
        tokens = rows.input_ids[part], rows.labels[part]
        found.append(SampledRow(rows.sources[index], read(raw.rows[at]), *tokens))
    return found


def _raw_name(source: str, data: DataConfig) -> str:
    """Name of the row that a part was made of."""
    return re.sub(r" part \d+$", "", source) if data.truncation == "split" else source


def dialogs_of(sampled: list[SampledRow], tokenizer: PreTrainedTokenizerBase) -> Iterator[Dialog]:
    """Those that are dialogs, rendered."""
    for one in sampled:
        if isinstance(one.row, ChatRow):
            found = _dialog(one, one.row, tokenizer)
            if found is not None:
                yield found


def _dialog(one: SampledRow, row: ChatRow, tokenizer: PreTrainedTokenizerBase) -> Dialog | None:
    template = Template(tokenizer, row.tools)
    plain = [
        {key: item for key, item in message.items() if key not in MARKS} for message in row.messages
    ]
    try:
        messages, text = write_dialog(plain, template)
    except RowFault:
        return None  # it was taken before; a template that is not the same each time is told
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ids = encoded["input_ids"]
    first = _find(one.input_ids, ids)
    is_trained = np.zeros(len(ids), dtype=bool)
    if first is not None:
        is_trained[first : first + len(one.labels)] = one.labels != IGNORED
    return Dialog(
        source=one.source,
        messages=messages,
        tools=list(row.tools or ()),
        template=template,
        text=text,
        ids=ids,
        offsets=encoded["offset_mapping"],
        is_trained=is_trained,
        first=first,
    )


def _find(part: np.ndarray, ids: list[int]) -> int | None:
    """Where `part` stands in `ids`: mostly at the beginning, or at the end of a row cut left."""
    whole = np.asarray(ids)
    most = len(whole) - len(part)
    for start in (0, most, *range(1, most)):
        if 0 <= start <= most and np.array_equal(whole[start : start + len(part)], part):
            return start
    return None


def text_rows(sampled: list[SampledRow]) -> list[tuple[SampledRow, TextRow]]:
    """Those that are plain text."""
    return [(one, one.row) for one in sampled if isinstance(one.row, TextRow)]
