"""Where the answers of a rendered dialog stand, found by rendering it again in parts or changed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ftrecipes.data.masks import Span
from ftrecipes.data.rows import RowFault
from ftrecipes.data.template import Messages, Template, unused_character
from ftrecipes.data.tools import with_last_name

Write = Callable[[Messages], str | None]


@dataclass(frozen=True)
class SpanFinder:
    """Finds the answers of one dialog in the `text` that the template makes of it."""

    template: Template
    messages: Messages
    text: str
    special: Sequence[str]
    """Texts of the tokenizer's added tokens: what may end an answer."""

    def find(self, index: int) -> Span:
        """Characters of answer `index` and of the mark that ends it. Raises RowFault.

        Of a message that is no answer the words alone.
        """
        message = self.messages[index]
        if message["role"] != "assistant":
            return self._words(index)
        prompt_end = self._end_of(self.template.try_prompt, index)
        is_last = index == len(self.messages) - 1
        whole = self.text if is_last else self.template.try_write(self.messages[: index + 1])
        if (
            self.template.has_prompt
            and prompt_end is not None
            and whole is not None
            and self.text.startswith(whole)
            and not ends_open(whole, message)
        ):
            return prompt_end, len(whole.rstrip())
        if "tool_calls" in message:
            return self._by_names(index, prompt_end=prompt_end)
        return self._by_content(index, prompt_end=prompt_end)

    def _end_of(self, write: Write, index: int) -> int | None:
        """Where the messages before `index` end in the text, as `write` ends them, or None."""
        if index == 0:
            return None
        written = write(self.messages[:index])
        if written is not None and self.text.startswith(written):
            return len(written)
        # Their beginning is written anew when the dialog goes on (tools stand before the last
        # question): only what follows the words of the last of them is the same.
        mark = unused_character(self.text)
        previous = {**self.messages[index - 1], "content": mark}
        whole = self.template.try_write(self._exchanged(index - 1, previous)) or ""
        ending_here = write([*self.messages[: index - 1], previous]) or ""
        behind, ending = whole.partition(mark)[2], ending_here.partition(mark)[2]
        is_single = whole.count(mark) == ending_here.count(mark) == 1
        if is_single and self.text.endswith(behind) and behind.startswith(ending):
            return len(self.text) - len(behind) + len(ending)
        return None

    def _words(self, index: int) -> Span:
        mark = unused_character(self.text)
        exchanged = self.template.write(
            self._exchanged(index, {**self.messages[index], "content": mark})
        )
        before, found, behind = exchanged.partition(mark)
        if not found or mark in behind or not self.text.startswith(before):
            raise RowFault(f"the chat template does not write messages[{index}].content once")
        return len(before), self._end_before(behind, index)

    def _by_content(self, index: int, *, prompt_end: int | None) -> Span:
        mark = unused_character(self.text)
        marked = self._exchanged(index, {**self.messages[index], "content": mark})
        exchanged = self.template.write(marked)
        ending_here = self.template.write(marked[: index + 1])
        if exchanged.count(mark) != 1 or ending_here.count(mark) != 1:
            raise RowFault(f"the chat template does not write messages[{index}].content once")
        before, _, behind = exchanged.partition(mark)
        end = self._end_before(behind, index)
        # Not all of `before`, where the template writes more round an answer that holds thoughts.
        start = min(end, len(common_prefix(self.text, before)))
        if prompt_end is not None:
            # What a template writes between prompt and answer is the model's (opened thoughts, the
            # space of the first word), but a header is not when there is no generation prompt.
            if self.template.has_prompt:
                start = min(prompt_end, end)
            elif not self.text[prompt_end:start].strip():
                start = min(start, prompt_end)
        ending = ending_here.partition(mark)[2]
        common = common_prefix(behind, ending)
        # Short of all of the ending, only whole special tokens count.
        if common != ending:
            common = common[: last_special(common, self.special)]
        return start, end + len(common.rstrip())

    def _by_names(self, index: int, *, prompt_end: int | None) -> Span:
        """Of a message that calls tools: the name of the last function is exchanged."""
        message, mark = self.messages[index], unused_character(self.text)
        marked = self._exchanged(index, with_last_name(message, mark))
        *until, ending = self.template.write(marked[: index + 1]).split(mark)
        # Behind the calls the name may come again, with the result.
        *parts, behind = self.template.write(marked).split(mark, len(until))
        name = message["tool_calls"][-1]["function"]["name"]
        calls = "".join(part + name for part in parts)
        if not until or parts[1:] != until[1:] or not self.text.startswith(calls):
            raise RowFault(f"the chat template does not write messages[{index}].tool_calls as one")
        start = self._start_of_calls(index, prompt_end=prompt_end)
        end = len(calls) + len(common_prefix(behind, ending).rstrip())
        at = self._start_of_words(index)
        if at is not None and not start <= at < end:
            raise RowFault(
                f"the chat template writes messages[{index}].content apart from its tool_calls"
            )
        return start, end

    def _start_of_words(self, index: int) -> int | None:
        """Where the words of a message that calls tools begin, if it has some."""
        if not self.messages[index].get("content"):
            return None
        mark = unused_character(self.text)
        marked = self._exchanged(index, {**self.messages[index], "content": mark})
        written, found, _ = self.template.write(marked).partition(mark)
        return len(common_prefix(self.text, written)) if found else None

    def _start_of_calls(self, index: int, *, prompt_end: int | None) -> int:
        if self.template.has_prompt and prompt_end is not None:
            return prompt_end
        mark, before = unused_character(self.text), self.messages[:index]
        words = self._start_of_words(index)
        if words is not None:
            return words
        # What stands before the words of an answer in the same place is its header.
        start = self._end_of(self.template.try_write, index) if before else 0
        earlier = self.template.try_write(before) if before else ""
        spoken = self.template.try_write([*before, {"role": "assistant", "content": mark}])
        if None in (start, earlier, spoken) or not spoken.startswith(earlier):
            raise RowFault(
                f"the chat template does not show where messages[{index}].tool_calls begin"
            )
        header = spoken[len(earlier) :].partition(mark)[0]
        return start + len(common_prefix(self.text[start:], header))

    def _exchanged(self, index: int, message: Mapping) -> list[Mapping]:
        return [*self.messages[:index], message, *self.messages[index + 1 :]]

    def _end_before(self, behind: str, index: int) -> int:
        """Where `behind`, which must end the text, begins."""
        if not self.text.endswith(behind):
            raise RowFault(f"the chat template changes what follows messages[{index}]")
        return len(self.text) - len(behind)


def ends_open(text: str, message: Mapping) -> bool:
    """Whether nothing but white space stands behind the words of the answer that ends `text`."""
    if "tool_calls" in message:
        return False
    return text.rstrip().endswith(message["content"].rstrip())


def last_special(text: str, special: Sequence[str]) -> int:
    """Where the last special token of `text` ends; 0 where there is none."""
    return max((text.rfind(token) + len(token) for token in special if token in text), default=0)


def common_prefix(text: str, other: str) -> str:
    """What both begin with."""
    same, different = 0, min(len(text), len(other)) + 1
    while different - same > 1:
        middle = (same + different) // 2
        if text[:middle] == other[:middle]:
            same = middle
        else:
            different = middle
    return text[:same]
