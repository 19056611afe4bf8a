"""Text to ids and labels, in batches."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from transformers import PreTrainedTokenizerBase

from ftrecipes.config.chat_templates import BUILT_IN
from ftrecipes.config.errors import DataError
from ftrecipes.data.chat import ChatRenderer, Rendered
from ftrecipes.data.facts import IGNORED
from ftrecipes.data.kinds import ChatRow, Row, TextRow, TokenRow
from ftrecipes.data.masks import Span, label_spans


class Encoder:
    """A tokenizer at work: `render` takes a row, `encode` many rendered ones.

    `train_on` says whose words are trained, see DataConfig.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, train_on: str = "assistant"):
        self._tokenizer = tokenizer
        self._train_on = train_on
        self._opening = opening_ids(tokenizer)

    @cached_property
    def _chat(self) -> ChatRenderer:
        if self._tokenizer.chat_template is None:
            raise DataError(
                "The rows are dialogs, and the tokenizer has no chat template to write them with.\n"
                "  do: take an instruct model, name one with --tokenizer_name, choose a template "
                f"(--data.chat_template {' or '.join(BUILT_IN)}, or FILE.jinja), or use rows with "
                "`instruction` and `output`"
            )
        return ChatRenderer(self._tokenizer, train_on=self._train_on)

    def render(self, row: Row) -> Rendered | TokenRow:
        """Text, and the spans to train; finished tokens pass.

        Raises RowFault, and DataError for a tokenizer without the chat template or the end token
        that rows of this kind need.
        """
        if isinstance(row, ChatRow):
            return self._chat.render(row)
        if isinstance(row, TextRow):
            if self._tokenizer.eos_token_id is None:
                raise DataError(
                    "The tokenizer has no end token, so the model could not learn where a text "
                    "ends.\n  do: name another with --tokenizer_name"
                )
            text = row.prompt + row.answer
            start = 0 if self._train_on == "all" else len(row.prompt)
            return Rendered(text, [(start, len(text))], is_plain=True)
        return row

    def encode(self, batch: Sequence[Rendered | TokenRow]) -> list[TokenRow]:
        """Ids and labels of rows, all of which are text or all of which are tokens."""
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
            if row.is_plain:
                token_row = self._enclose(token_row, text=row.text, offsets=offsets)
            rows.append(token_row)
        return rows

    def _enclose(self, row: TokenRow, *, text: str, offsets: Sequence[Span]) -> TokenRow:
        """Plain text between what the tokenizer puts first (BOS) and one EOS, which is trained.

        A text that brings its own, as a chat that was rendered before does, gets no second one.
        """
        eos, opening = self._tokenizer.eos_token_id, self._opening
        ends = np.flatnonzero(row.input_ids == eos)
        is_ended = len(ends) > 0 and not text[offsets[ends[-1]][1] :].strip()
        end = np.array([] if is_ended else [eos], dtype=np.int32)
        if np.array_equal(row.input_ids[: len(opening)], opening):
            opening = opening[:0]
        return TokenRow(
            np.concatenate([opening, row.input_ids, end]),
            np.concatenate([np.full_like(opening, IGNORED), row.labels, end]),
        )


def opening_ids(tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """int32: what the tokenizer itself puts before a text, BOS or nothing."""
    enclosed = tokenizer("a", return_special_tokens_mask=True)
    at = enclosed["special_tokens_mask"].index(0)
    return np.array(enclosed["input_ids"][:at], dtype=np.int32)
