"""Chat rows to text through the tokenizer's own template, and where in it the answers stand.

Nothing is known about any template. What the model must produce is found by rendering: the text of
an answer begins where the prompt that generation would be given ends, and ends where the rendering
of the dialog up to it ends. Where a template is not stable under such prefixes (it rewrites earlier
thoughts, ends only the last answer, knows no generation prompt), the answer is exchanged for a
character that occurs nowhere, and what stays the same before and behind it bounds the answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from ftrecipes.config.errors import DataError
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


@dataclass(frozen=True)
class Rendered:
    """A row as text, and the spans of it that the model must produce, in characters.

    `is_open`: nothing ends the last answer.
    """

    text: str
    spans: list[tuple[int, int]]
    is_open: bool = False


class ChatRenderer:
    """Renders dialogs with a tokenizer's template. Raises RowFault for those it can not.

    Raises DataError when the tokenizer has several templates and none of them is the default.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._tokenizer = tokenizer
        try:
            template = tokenizer.get_chat_template()
        except ValueError as error:
            raise DataError(
                f"The tokenizer does not say which of its chat templates to use.\n  got: {error}\n"
                "  do: name one of them `default` in the tokenizer's folder"
            ) from error
        # Without one, the header of an answer would pass for a part of the answer.
        self._has_prompt = "add_generation_prompt" in template
        self._special = list(tokenizer.added_tokens_encoder)

    def render(self, messages: Messages) -> Rendered:
        """The text of a dialog and the span of each answer with the mark that ends it.

        White space that the template writes behind that mark is not the model's. Where a template
        writes no mark (or only behind the last answer), the answer's own text is the span.
        """
        text = self._text(messages)
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        spans = [self._span(messages, index, text=text) for index in answers]
        for (start, end), (following, _) in zip(spans, [*spans[1:], (len(text), 0)], strict=True):
            if not start < end <= following:
                raise RowFault("the chat template leaves an answer out, or changes their order")
        last_answer = messages[answers[-1]]["content"]
        return Rendered(text, spans, is_open=_ends_with(text[: spans[-1][1]], last_answer))

    def _span(self, messages: Messages, index: int, *, text: str) -> tuple[int, int]:
        prompt = self._prompt(messages[:index])
        is_last = index == len(messages) - 1
        whole = text if is_last else self._text_or_none(messages[: index + 1])
        if (
            self._has_prompt
            and prompt is not None
            and whole is not None
            and text.startswith(prompt)
            and text.startswith(whole)
            and not _ends_with(whole, messages[index]["content"])
        ):
            return len(prompt), len(whole.rstrip())
        return self._span_by_exchange(messages, index, text=text, prompt=prompt)

    def _span_by_exchange(
        self, messages: Messages, index: int, *, text: str, prompt: str | None
    ) -> tuple[int, int]:
        mark = next(char for char in map(chr, range(0xE000, 0xF8FF)) if char not in text)
        marked = [*messages[:index], {**messages[index], "content": mark}, *messages[index + 1 :]]
        exchanged = self._text(marked)
        ending_here = self._text(marked[: index + 1])
        if exchanged.count(mark) != 1 or ending_here.count(mark) != 1:
            raise RowFault(f"the chat template does not write messages[{index}].content once")
        before, _, behind = exchanged.partition(mark)
        if not text.endswith(behind):
            raise RowFault(f"the chat template changes what follows messages[{index}]")
        end = len(text) - len(behind)
        # Not all of `before`, where the template writes more round an answer that holds thoughts.
        start = min(end, len(_common_prefix(text, before)))
        if prompt is not None and text.startswith(prompt):
            # What a template writes between prompt and answer is the model's (opened thoughts, the
            # space of the first word), but a header is not when there is no generation prompt.
            between = text[len(prompt) : start]
            if self._has_prompt or not between.strip():
                start = min(start, len(prompt))
        return start, end + self._mark_length(behind, ending_here.partition(mark)[2])

    def _mark_length(self, behind: str, ending: str) -> int:
        """Length of the mark that ends an answer, behind which the dialog goes on with `behind`.

        `ending` is what follows the answer when it is the last message. What both have in common
        ends the answer; short of all of `ending`, only whole special tokens count.
        """
        common = _common_prefix(behind, ending)
        if common != ending:
            common = common[: self._whole_specials(common)]
        return len(common.rstrip())

    def _whole_specials(self, text: str) -> int:
        ends = [text.rfind(token) + len(token) for token in self._special if token in text]
        return max(ends, default=0)

    def _prompt(self, messages: Messages) -> str | None:
        return self._text_or_none(messages, add_generation_prompt=True) if messages else None

    def _text_or_none(self, messages: Messages, **options: bool) -> str | None:
        """The text, or None where the template does not take a dialog that ends there."""
        try:
            return self._tokenizer.apply_chat_template(list(messages), tokenize=False, **options)
        except REFUSALS:
            return None

    def _text(self, messages: Messages) -> str:
        try:
            return self._tokenizer.apply_chat_template(list(messages), tokenize=False)
        except REFUSALS as error:
            raise RowFault(f"the chat template refuses the dialog: {error}") from error


def _ends_with(text: str, answer: str) -> bool:
    """Whether nothing but white space stands behind the answer."""
    return text.rstrip().endswith(answer.rstrip())


def _common_prefix(text: str, other: str) -> str:
    same, different = 0, min(len(text), len(other)) + 1
    while different - same > 1:
        middle = (same + different) // 2
        if text[:middle] == other[:middle]:
            same = middle
        else:
            different = middle
    return text[:same]
