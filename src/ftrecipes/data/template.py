"""A tokenizer's chat template at work on one row: dialogs to text, refusals to RowFault."""

import re
from collections.abc import Iterator, Mapping, Sequence

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from ftrecipes.data.rows import RowFault

Messages = Sequence[Mapping]

# What a template raises itself, and what its expressions raise: on a message of another shape, on
# 1 / 0, on a missing item, on a macro that calls itself without end.
REFUSALS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
QUESTION = ({"role": "user", "content": "?"},)


class Template:
    """The template that the tokenizer has for rows with these tools."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, tools: Sequence[Mapping] | None):
        self._tokenizer = tokenizer
        self._tools = None if tools is None else list(tools)
        self._source = tokenizer.get_chat_template(tools=self._tools)
        # Without one, the header of an answer would pass for a part of the answer. A template that
        # only speaks of one, in a comment or a default, has none.
        self.has_prompt = "add_generation_prompt" in self._source and (
            self.try_prompt(QUESTION) not in (None, self.try_write(QUESTION))
        )

    def write(self, messages: Messages) -> str:
        """The text of a dialog. Raises RowFault with the template's own words."""
        try:
            return self._apply(messages)
        except REFUSALS as error:
            raise RowFault(f"the chat template refuses the dialog: {error}") from error

    def try_write(self, messages: Messages) -> str | None:
        """The text, or None where the template does not take a dialog that ends there."""
        try:
            return self._apply(messages)
        except REFUSALS:
            return None

    def try_prompt(self, messages: Messages) -> str | None:
        """The text that an answer to these messages is generated from, or None."""
        try:
            return self._apply(messages, add_generation_prompt=True)
        except REFUSALS:
            return None

    def names(self, key: str) -> bool:
        """Whether the word `key` is anywhere in the template."""
        return re.search(rf"\b{re.escape(key)}\b", self._source) is not None

    def _apply(self, messages: Messages, **options: bool) -> str:
        return self._tokenizer.apply_chat_template(
            list(messages), tools=self._tools, tokenize=False, **options
        )


def unused_character(text: str) -> str:
    """A character that `text` does not hold, to stand for another text while rendering."""
    return next(unused_characters(text))


def unused_characters(text: str) -> Iterator[str]:
    """All such characters that are for private use."""
    return (char for char in map(chr, range(0xE000, 0xF8FF)) if char not in text)
