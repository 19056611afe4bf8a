"""Rows as a person looks at them: each token with its text, and why it is trained or not."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np
from transformers import PreTrainedTokenizerBase

from ftrecipes.config.sections import DataConfig
from ftrecipes.data.encode import Encoder
from ftrecipes.data.facts import IGNORED
from ftrecipes.data.kinds import TokenRow
from ftrecipes.data.loader import Loader
from ftrecipes.data.rows import RawRows, RowFault, TokenRows
from ftrecipes.data.sets import row_reader, row_settings
from ftrecipes.data.speakers import GIVEN, TEMPLATE, speakers
from ftrecipes.data.token_texts import TokenTexts

FIRST = "first position: nothing comes before it"
END = "end of the answer"
# Where whose word it is says less than why it is what it is.
TRAINED = {TEMPLATE: "part of the answer", GIVEN: "its label is given", "unknown": "answer"}
ALL_TRAINED = {GIVEN: "its label is given", "unknown": "trained"}
CONTEXT = {
    **{role: f"{role}, not trained" for role in ("assistant", "answer")},
    GIVEN: "its label is -100",
    "unknown": "not an answer",
}


@dataclass(frozen=True)
class PreviewToken:
    """One position of a row, as the model is given it."""

    text: str
    id: int
    kind: Literal["trained", "context"]
    reason: str
    """Whose word it is, or what else made it trained or not."""


@dataclass(frozen=True)
class Segment:
    """Tokens next to each other of one kind and one reason; positions count from 1."""

    first: int
    last: int
    kind: Literal["trained", "context"]
    reason: str
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """The micro-batch of the first epoch that holds a row; numbers count from 1."""

    step: int
    number: int
    """Of the micro-batch, among those of the epoch."""
    of: int
    capacity: int
    """Positions that fit in; 0 where it is rows that are counted."""
    rows: tuple[tuple[str, int], ...]
    """Source and positions of each row in it, in order."""
    at: int
    """Which of them this one is, from 0."""


@dataclass(frozen=True)
class PreviewRow:
    """A row of the training split, exactly as its micro-batch holds it."""

    number: int
    """Of the row as it was read, from 1."""
    source: str
    why: str
    """Why this one is shown; empty where somebody asked for it."""
    tokens: tuple[PreviewToken, ...]
    full_length: int
    """Positions before the row was cut."""
    place: Place | None
    """None for a row without a token to train on, which is in no micro-batch."""

    @property
    def num_trained(self) -> int:
        return sum(token.kind == "trained" for token in self.tokens)

    @property
    def is_cut(self) -> bool:
        return self.full_length > len(self.tokens)

    def segments(self) -> list[Segment]:
        """The tokens as a person reads them."""
        found: list[Segment] = []
        for (kind, reason), group in groupby(self.tokens, lambda t: (t.kind, t.reason)):
            texts = tuple(token.text for token in group)
            first = found[-1].last + 1 if found else 1
            found.append(Segment(first, first + len(texts) - 1, kind, reason, texts))
        return found


class RowViewer:
    """Makes PreviewRows of a split."""

    def __init__(
        self,
        raw: RawRows,
        rows: TokenRows,
        tokenizer: PreTrainedTokenizerBase,
        *,
        data: DataConfig,
        loader: Loader,
    ):
        self._raw, self._rows, self._data, self._loader = raw, rows, data, loader
        self._tokenizer = tokenizer
        self._texts = TokenTexts(tokenizer)
        self._read = row_reader(raw, tokenizer, data)
        self._settings = row_settings(raw, data)
        self._special = set(tokenizer.added_tokens_decoder)
        self._numbers = {source: number for number, source in enumerate(raw.sources, start=1)}
        steps = loader.world_plan(0)
        self._batches = [
            (step, batch) for step, plan in enumerate(steps, start=1) for batch in plan
        ]
        # Of a row that is drawn several times the first.
        numbered = reversed(list(enumerate(self._batches)))
        self._batch_of = {row: number for number, (_, batch) in numbered for row in batch}

    def view(self, index: int, *, why: str = "") -> PreviewRow:
        """Row `index` of the TokenRows."""
        source = self._rows.sources[index]
        whole, part = self._whole(source)
        stored = self._stored(index)
        place, ids, labels = self._as_given(index, stored)
        number = self._numbers[whole]
        train_on = self._settings(number - 1).train_on
        said = self._said(stored, number=number, part=part, train_on=train_on)
        kinds = np.where(labels == IGNORED, "context", "trained").tolist()
        # Where all is trained, a mark ends no answer, and what the template writes is its own.
        special = () if train_on == "all" else self._special
        trained = ALL_TRAINED if train_on == "all" else TRAINED
        reasons = _reasons(said, stored, labels, special=special, trained_words=trained)
        texts = self._texts(ids.tolist())
        return PreviewRow(
            number=number,
            source=source,
            why=why,
            tokens=tuple(map(PreviewToken, texts, ids.tolist(), kinds, reasons)),
            full_length=self._rows.intake.long.get(whole, len(ids)),
            place=place,
        )

    def number_of(self, source: str) -> int | None:
        """Number of a row as it was read, or of that of which `source` is a part; None = no row."""
        return self._numbers.get(source) or self._numbers.get(source.rpartition(" part ")[0])

    def _whole(self, source: str) -> tuple[str, int]:
        """The row as it was read, and which part of it this is: 0 for a row that was not split."""
        if source in self._numbers:
            return source, 0
        whole, _, part = source.rpartition(" part ")
        return whole, int(part)

    def _stored(self, index: int) -> TokenRow:
        part = slice(*self._rows.offsets[index : index + 2])
        return TokenRow(self._rows.input_ids[part], self._rows.labels[part])

    def _as_given(
        self, index: int, stored: TokenRow
    ) -> tuple[Place | None, np.ndarray, np.ndarray]:
        """Where the row is in the first epoch; its ids and labels as the model is given them."""
        number = self._batch_of.get(index)
        if number is None:
            # No label counts, or it is that of the first position alone.
            return None, stored.input_ids, np.full_like(stored.labels, IGNORED)
        step, row_ids = self._batches[number]
        batch, at = self._loader.micro_batch(row_ids), row_ids.index(index)
        start = sum(batch.lengths[:at])
        part = slice(start, start + batch.lengths[at])
        ids, labels = batch.input_ids[part].numpy(), batch.labels[part].numpy()
        assert np.array_equal(ids, stored.input_ids), (index, ids, stored.input_ids)
        assert np.array_equal(labels[1:], stored.labels[1:]), (index, labels, stored.labels)
        loader = self._loader
        packs = loader.strategy == "packing"
        place = Place(
            step=step,
            number=number + 1,
            of=len(self._batches),
            capacity=loader.batch_size * loader.context_length if packs else 0,
            rows=tuple((self._rows.sources[row], int(self._rows.lengths[row])) for row in row_ids),
            at=at,
        )
        return place, ids, labels

    def _said(self, stored: TokenRow, *, number: int, part: int, train_on: str) -> list[str] | None:
        """Who says each position; None where rendering the row again gives other tokens.

        That may be: a template that writes the time, a tokenizer with code of its own.
        """
        try:
            encoder = Encoder(self._tokenizer, train_on=train_on)
            full, said = speakers(self._read(number - 1), self._tokenizer, encoder)
        except RowFault:
            return None
        length, whole = len(stored.input_ids), len(full.input_ids)
        # As lengths.py cuts them.
        start = max(part - 1, 0) * (self._loader.context_length - 1)
        if not part and self._data.truncation == "left":
            start = whole - length
        kept = slice(start, start + length)
        same = np.array_equal(full.input_ids[kept], stored.input_ids)
        return said[kept] if same else None


def _reasons(
    said: Sequence[str] | None,
    stored: TokenRow,
    labels: np.ndarray,
    *,
    special: Collection[int],
    trained_words: Mapping[str, str],
) -> list[str]:
    """Of each position, why it is trained or why not."""
    trained = labels != IGNORED
    ends = trained & np.append(~trained[1:], True)
    reasons = []
    for at, who in enumerate(said or ["unknown"] * len(labels)):
        if trained[at]:
            is_end = ends[at] and int(stored.input_ids[at]) in special
            reasons.append(END if is_end else trained_words.get(who, who))
        elif stored.labels[at] != IGNORED:
            reasons.append(FIRST)
        else:
            reasons.append(CONTEXT.get(who, who))
    return reasons
