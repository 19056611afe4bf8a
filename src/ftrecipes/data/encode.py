"""Text to ids and labels, in batches."""

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from ftrecipes.data.chat import ChatRenderer, Rendered
from ftrecipes.data.formats import ChatRow, Row, TextRow, TokenRow
from ftrecipes.data.masks import label_spans
from ftrecipes.data.rows import IGNORED


class Encoder:
    """A tokenizer at work: `render` takes a row, `encode` many rendered ones."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._tokenizer = tokenizer
        self._chat = None if tokenizer.chat_template is None else ChatRenderer(tokenizer)
        self._opening = opening_ids(tokenizer)

    def render(self, row: Row) -> Rendered | TokenRow:
        """Text, and the spans to train; finished tokens pass. Raises RowFault."""
        if isinstance(row, ChatRow):
            return self._chat.render(row.messages)
        if isinstance(row, TextRow):
            text = row.prompt + row.answer
            return Rendered(text, [(len(row.prompt), len(text))])
        return row

    def encode(self, batch: Sequence[Rendered | TokenRow]) -> list[TokenRow]:
        """Ids and labels of rows that are all of one kind."""
        if not batch or isinstance(batch[0], TokenRow):
            return list(batch)
        # A chat template has written every special token itself, BOS too; plain text gets its own.
        encoded = self._tokenizer(
            [row.text for row in batch],
            add_special_tokens=False,
            return_attention_mask=False,
            return_offsets_mapping=True,
            verbose=False,
        )
        rows = []
        for row, ids, offsets in zip(
            batch, encoded["input_ids"], encoded["offset_mapping"], strict=True
        ):
            labels = label_spans(ids, text=row.text, offsets=offsets, spans=row.spans)
            token_row = TokenRow(np.array(ids, dtype=np.int32), labels)
            rows.append(token_row if self._chat else self._enclose(token_row))
        return rows

    def _enclose(self, row: TokenRow) -> TokenRow:
        """Plain text between what the tokenizer puts first (BOS) and one EOS, which is trained."""
        end = np.array([self._tokenizer.eos_token_id], dtype=np.int32)
        end = end[:0] if row.input_ids[-1] == end[0] else end
        return TokenRow(
            np.concatenate([self._opening, row.input_ids, end]),
            np.concatenate([np.full_like(self._opening, IGNORED), row.labels, end]),
        )


def opening_ids(tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """int32: what the tokenizer itself puts before a text, BOS or nothing."""
    enclosed = tokenizer("a", return_special_tokens_mask=True)
    at = enclosed["special_tokens_mask"].index(0)
    return np.array(enclosed["input_ids"][:at], dtype=np.int32)
