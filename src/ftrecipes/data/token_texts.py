"""The text of each token of a row, for a person to read."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

BROKEN = "\ufffd"
LONGEST_CHARACTER = 8
"""Tokens that one character, or one emoji of several, may take."""


class TokenTexts:
    """Texts that, joined, are what the tokenizer decodes the row to.

    A character of several tokens stands at the first of them, and the others are empty.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._tokenizer = tokenizer
        # Some decoders take a blank off the beginning of a text, so nothing is decoded at one.
        self._anchor = tokenizer("a", add_special_tokens=False)["input_ids"]
        self._anchor_text = self._decode(self._anchor)
        self._known: dict[int, str] = {}

    def __call__(self, ids: Sequence[int]) -> list[str]:
        texts: list[str] = []
        while len(texts) < len(ids):
            at = len(texts)
            text, taken = self._one(ids[at]), 1
            if BROKEN in text:
                text, taken = self._joined(ids[at : at + LONGEST_CHARACTER])
            texts += [text, *[""] * (taken - 1)]
        return texts

    def _one(self, token: int) -> str:
        if token not in self._known:
            self._known[token] = self._behind_anchor([token])
        return self._known[token]

    def _joined(self, ids: Sequence[int]) -> tuple[str, int]:
        """The shortest beginning of `ids` that is whole characters; the first alone if none is."""
        for taken in range(2, len(ids) + 1):
            text = self._behind_anchor(ids[:taken])
            if BROKEN not in text:
                return text, taken
        return self._one(ids[0]), 1

    def _behind_anchor(self, ids: Sequence[int]) -> str:
        text = self._decode([*self._anchor, *ids])
        # A decoder that changes what stands before leaves the ids to stand for themselves.
        return (
            text.removeprefix(self._anchor_text)
            if text.startswith(self._anchor_text)
            else (self._decode(ids))
        )

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, clean_up_tokenization_spaces=False)
