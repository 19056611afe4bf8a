"""Chat rows to text through the tokenizer's own template, and where in it the answers stand.

Nothing is known about any template. What the model must produce is found by rendering: the text of
an answer begins where the prompt that generation would be given ends, and ends where the rendering
of the dialog up to it ends. Where a template is not stable under such prefixes (it rewrites earlier
thoughts, ends only the last answer, knows no generation prompt), the answer is exchanged for a
character that occurs nowhere, and what stays the same before and behind it bounds the answer.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

from transformers import PreTrainedTokenizerBase

from ftrecipes.config.errors import DataError
from ftrecipes.data.kinds import ChatRow
from ftrecipes.data.masks import Span
from ftrecipes.data.rows import RowFault
from ftrecipes.data.spans import SpanFinder
from ftrecipes.data.template import Messages, Template, unused_character, unused_characters
from ftrecipes.data.tools import with_last_name, with_objects, with_texts
from ftrecipes.data.whose import gaps, whose_words

COMMON_KEYS = {"role", "content", "tool_calls", "tool_call_id", "name"}
"""Keys of messages that are checked elsewhere, or that many templates have no place for."""


@dataclass(frozen=True)
class Rendered:
    """A row as text, and the spans of it that the model must produce, in characters.

    `is_plain`: BOS and EOS are still to come. `unread`: keys of messages that the template does not
    know. `is_muted`: the messages leave themselves out, and nothing is left to train.
    `is_unheeded`: some say that they are trained, and they are not.
    """

    text: str
    spans: list[Span]
    is_plain: bool = False
    unread: frozenset[str] = frozenset()
    is_muted: bool = False
    is_unheeded: bool = False


class ChatRenderer:
    """Renders dialogs with a tokenizer's template. Raises RowFault for those it can not.

    `train_on` says whose words are trained: `assistant`, `last_assistant` or `all`.
    Raises DataError when the tokenizer has several templates and none of them is the default.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, train_on: str = "assistant"):
        self._tokenizer = tokenizer
        self._train_on = train_on
        try:
            self._without_tools = Template(tokenizer, None)
        except ValueError as error:
            raise DataError(
                f"The tokenizer does not say which of its chat templates to use.\n  got: {error}\n"
                "  do: name one of them `default` in the tokenizer's folder"
            ) from error
        self._special = list(tokenizer.added_tokens_encoder)
        self._writes_tools: bool | None = None

    def render(self, row: ChatRow) -> Rendered:
        """The text of a dialog and the span of each answer with the mark that ends it.

        White space that the template writes behind that mark is not the model's. Where a template
        writes no mark (or only behind the last answer), the answer's own text is the span. With
        `all` everything behind BOS is one, less the messages that leave themselves out. A row of
        which the template leaves something out is refused.
        """
        template = Template(self._tokenizer, row.tools) if row.tools else self._without_tools
        messages, text = write_dialog([_unmarked(message) for message in row.messages], template)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RowFault("the row holds half a character (a lone surrogate)") from error
        self._check_tools(row, messages, text)
        trained, muted = whose_words(row, self._train_on)
        sought = trained
        if self._train_on == "all":
            sought = [i for i in muted if not _is_blank(messages[i])]
        _check_contents(messages, text, template, sought=sought)
        finder = SpanFinder(template, messages, text, self._special)
        spans = [finder.find(index) for index in sought]
        following = [*(start for start, _ in spans[1:]), len(text)]
        for (start, end), limit in zip(spans, following, strict=False):
            if not start < end <= limit:
                raise RowFault("the chat template leaves an answer out, or changes their order")
        if self._train_on == "all":
            bos = self._tokenizer.bos_token or ""
            opening = len(bos) if text.startswith(bos) else 0
            spans = gaps(spans, start=opening, end=len(text)) if trained else []
        keys = {str(key) for message in messages for key, value in message.items() if value}
        return Rendered(
            text,
            spans,
            unread=frozenset(key for key in keys - COMMON_KEYS if not template.names(key)),
            is_muted=not trained,
            is_unheeded=any(
                message.get("train") and index not in trained
                for index, message in enumerate(row.messages)
            ),
        )

    def _check_tools(self, row: ChatRow, messages: Messages, text: str) -> None:
        """Raise RowFault for tools that the template passes over; found out once a split."""
        if not row.tools:
            return
        if self._writes_tools is None:
            self._writes_tools = self._without_tools.try_write(messages) != text
        if not self._writes_tools:
            raise RowFault("the chat template leaves the tools out: it is not made for tools")


def write_dialog(messages: Messages, template: Template) -> tuple[Messages, str]:
    """The dialog in a form that the template takes, and its text.

    Arguments of calls are objects, or JSON text for a template that joins them to other text.
    """
    if not any("tool_calls" in message for message in messages):
        return messages, template.write(messages)
    for form in _forms(messages):
        text = template.try_write(form)
        if text is not None and not _shows_python(form, text):
            return form, text
    template.write(with_objects(messages))  # a refusal is told in the template's own words
    raise RowFault("the chat template writes the arguments of tool calls as Python, not as JSON")


def _forms(messages: Messages) -> Iterator[Messages]:
    for arguments in (with_objects(messages), with_texts(messages)):
        yield arguments
        yield [
            message if "content" in message else {**message, "content": ""} for message in arguments
        ]


def _shows_python(messages: Messages, text: str) -> bool:
    """Whether the template, and no message, writes an object as Python does, {'a': True}."""
    said = [str(message.get("content")) for message in messages]
    for message in messages:
        for call in message.get("tool_calls", ()):
            arguments = call["function"]["arguments"]
            shown, meant = str(arguments), json.dumps(arguments, ensure_ascii=False)
            is_object = not isinstance(arguments, str) and shown != meant
            if is_object and shown in text and not any(shown in words for words in said):
                return True
    return False


def _check_contents(
    messages: Messages, text: str, template: Template, *, sought: Sequence[int]
) -> None:
    """Raise RowFault for words or calls that the template leaves out.

    Answers without calls that are `sought` are passed over: their spans are looked for.
    """
    # Words that are in the text may be those of another message, so marks are looked for.
    marks = cycle(unused_characters(text))
    marked = [
        {**message, "content": next(marks)} if _is_checked(message, index in sought) else message
        for index, message in enumerate(messages)
    ]
    written = template.try_write(marked) or ""

    def is_left_out(index: int, other: Mapping) -> bool:
        exchanged = [*messages[:index], other, *messages[index + 1 :]]
        return template.try_write(exchanged) == text

    for index, (message, other) in enumerate(zip(messages, marked, strict=True)):
        left_out = []
        if "tool_calls" in message:
            left_out.append(("tool_calls", with_last_name(message, unused_character(text))))
        if other is not message and other["content"] not in written:
            left_out.append(("content", other))
        for key, changed in left_out:
            if is_left_out(index, changed):
                raise RowFault(
                    f"the chat template leaves messages[{index}].{key} out (role {message['role']})"
                )


def _is_checked(message: Mapping, is_sought: bool) -> bool:
    is_found = is_sought and message["role"] == "assistant" and "tool_calls" not in message
    return bool(message.get("content")) and not is_found


def _is_blank(message: Mapping) -> bool:
    return "tool_calls" not in message and not message["content"].strip()


def _unmarked(message: Mapping) -> Mapping:
    """Without what it says of its training."""
    return {key: value for key, value in message.items() if key != "train"}
