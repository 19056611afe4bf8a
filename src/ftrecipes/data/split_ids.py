"""A whole split as its check sees it: what its ids mean, where its labels end.

Legend: R rows, T positions of all rows.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from transformers import PreTrainedTokenizerBase

from ftrecipes.config.sections import DataConfig
from ftrecipes.data.facts import IGNORED
from ftrecipes.data.findings import GOES_ON, Finding, ShownToken, finding
from ftrecipes.data.rows import TokenRows

AROUND = 6
"""Tokens that are shown on either side."""
BYTE = re.compile("<0x[0-9A-F]{2}>")


@dataclass(frozen=True)
class Split:
    """A split, and what its ids mean."""

    rows: TokenRows
    tokenizer: PreTrainedTokenizerBase
    data: DataConfig
    context_length: int
    kind: str
    """chat, text or tokens."""

    @cached_property
    def is_trained(self) -> np.ndarray:
        """bool [T]"""
        return self.rows.labels != IGNORED

    @cached_property
    def lasts(self) -> np.ndarray:
        """int64 [R]: the last position of each row."""
        return self.rows.offsets[1:] - 1

    @cached_property
    def ends(self) -> np.ndarray:
        """int64: the last position of each stretch of labels."""
        goes_on = np.zeros_like(self.is_trained)
        goes_on[:-1] = self.is_trained[1:]
        goes_on[self.lasts] = False
        return np.flatnonzero(self.is_trained & ~goes_on)

    @cached_property
    def last_ends(self) -> np.ndarray:
        """int64: the last of them in each row that has some."""
        of_row = self.row_of(self.ends)
        return self.ends[np.append(of_row[1:] != of_row[:-1], True)[: len(of_row)]]

    @cached_property
    def is_mark(self) -> np.ndarray:
        """bool [highest id + 1]: whether an id is one of a template's marks."""
        marks = list(marks_of(self.tokenizer).values())
        highest = max(int(self.rows.facts.used_ids.max()), len(self.tokenizer), *marks)
        found = np.zeros(highest + 1, dtype=bool)
        found[[*marks, *known_ids(self.tokenizer.eos_token_id)]] = True
        return found

    @cached_property
    def end_ids(self) -> np.ndarray:
        """The end token, and marks that end a row's last stretch of labels."""
        found = np.unique(self.rows.input_ids[self.last_ends])
        # An empty list alone would be one of floats.
        eos = np.array(known_ids(self.tokenizer.eos_token_id), dtype=found.dtype)
        return np.union1d(found[self.is_mark[found]], eos)

    @cached_property
    def is_long(self) -> np.ndarray:
        """bool [R]: the row was cut."""
        long = self.rows.intake.long
        at_limit = self.rows.lengths >= self.context_length
        found = np.zeros(len(self.rows), dtype=bool)
        for row in np.flatnonzero(at_limit) if long else ():
            found[row] = self.rows.sources[row] in long
        return found

    def is_one_of(self, ids: Sequence[int], at: np.ndarray | slice = slice(None)) -> np.ndarray:
        """bool: whether the id at each position (of those `at`) is one of `ids`."""
        found = np.zeros(len(self.is_mark), dtype=bool)
        found[list(ids)] = True
        return found[self.rows.input_ids[at]]

    def row_of(self, positions: np.ndarray) -> np.ndarray:
        """int64: the row that each position is in."""
        return np.searchsorted(self.rows.offsets, positions, side="right") - 1

    def found(self, code: str, text: str, positions: np.ndarray, **more: str) -> Finding:
        """A finding about these positions, shown at the first of them; `text` has {rows}."""
        row = int(self.row_of(positions[:1])[0])
        count = len(np.unique(self.row_of(positions)))
        return finding(
            code,
            text.replace("{rows}", f"{count} of {len(self.rows)} rows"),
            source=self.rows.sources[row],
            tokens=self.around(int(positions[0])),
            **more,
        )

    def around(self, position: int) -> tuple[ShownToken, ...]:
        """The tokens of its row about a position."""
        row = int(self.row_of(np.array([position]))[0])
        first, last = self.rows.offsets[row : row + 2].tolist()
        start, end = max(position - AROUND, first), min(position + AROUND + 1, last)
        texts = [self.tokenizer.decode([token]) for token in self.rows.input_ids[start:end]]
        trained = self.is_trained[start:end].tolist()
        if start == first:
            trained[0] = False  # nothing comes before it that could foretell it
        shown = map(ShownToken, texts, trained)
        return (*[GOES_ON] * (start > first), *shown, *[GOES_ON] * (end < last))

    def word(self, token: int) -> str:
        """A token as it is written."""
        return self.tokenizer.convert_ids_to_tokens(int(token))


def marks_of(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Tokens that may be marks of a template: those added to the vocabulary, and their ids.

    Some vocabularies have bytes, blanks and line ends among these (Gemma's).
    """
    return {
        text: token
        for text, token in tokenizer.added_tokens_encoder.items()
        if text.strip(" \n\t\u2581") and not BYTE.fullmatch(text)
    }


def known_ids(token: int | None) -> list[int]:
    return [] if token is None else [token]
