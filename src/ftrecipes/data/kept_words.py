"""Whether a template keeps what is said: words, thoughts, calls, and that there is nothing."""

import json
import re
from collections.abc import Callable, Iterator, Mapping

from ftrecipes.data.findings import Finding
from ftrecipes.data.sampled import Dialog

Show = Callable[..., Finding]
"""Makes a finding of its code, its text and the position that it is about."""
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Keys of messages that hold what an answer thinks."""
CLOSED = "</think>"
SHOWN = 40  # characters of a text


def check_words(dialog: Dialog, show: Show) -> Iterator[Finding]:
    """Whatever the template does not keep."""
    yield from _contents(dialog, show)
    yield from _thoughts(dialog, show)
    yield from _calls(dialog, show)
    yield from _nulls(dialog, show)


def short(text: str) -> str:
    """The beginning of a text."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _contents(dialog: Dialog, show: Show) -> Iterator[Finding]:
    """Words of messages; of answers those of the last one, without what it thinks."""
    last = dialog.answers[-1] if dialog.answers else None
    for index, message in enumerate(dialog.messages):
        words = message.get("content") or ""
        if message["role"] == "assistant":
            words = words.rpartition(CLOSED)[2] if index == last else ""
        if not _is_written(words, dialog.text):
            role = message["role"]
            yield show(
                "words-changed", f"messages[{index}].content (role {role}) is not in the text"
            )
            return


def _thoughts(dialog: Dialog, show: Show) -> Iterator[Finding]:
    if not dialog.answers:
        return
    message = dialog.messages[dialog.answers[-1]]
    content = message.get("content") or ""
    thoughts = {key: str(message[key]) for key in THOUGHTS if message.get(key)}
    if CLOSED in content:
        thoughts["content"] = content.partition(CLOSED)[0].rpartition("<think>")[2]
    for key, words in thoughts.items():
        if not _is_written(words, dialog.text):
            what = f"{short(words.strip())!r} (messages[{dialog.answers[-1]}].{key}) is left out"
            yield show("thoughts-dropped", what)
            return


def _calls(dialog: Dialog, show: Show) -> Iterator[Finding]:
    for index in dialog.answers:
        # Names of arguments stand among the tools too.
        before = dialog.template.try_prompt(dialog.messages[:index]) if index else None
        text = dialog.text.removeprefix(before or "")
        for words in _called(dialog.messages[index]):
            if not _is_written(words, text):
                what = f"{short(str(words))!r} of messages[{index}].tool_calls is left out"
                yield show("calls-changed", what)
                return


def _called(message: Mapping) -> Iterator[object]:
    """Names of functions, and of their arguments, and values of these."""
    for call in message.get("tool_calls", ()):
        arguments = call["function"]["arguments"]
        given = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
        yield from (call["function"]["name"], *given, *given.values())


def _nulls(dialog: Dialog, show: Show) -> Iterator[Finding]:
    said = json.dumps([list(dialog.messages), dialog.tools], ensure_ascii=False, default=str)
    lacking = [i for i in dialog.answers if not dialog.messages[i].get("content")]
    found = re.search(r"\bNone\b", dialog.text)
    if found and lacking and "None" not in said:
        at = next(i for i, (_, end) in enumerate(dialog.offsets) if end > found.start())
        yield show("null-written", f"messages[{lacking[0]}] has no content", at)


def _is_written(words: object, text: str) -> bool:
    """Whether `words` are in the text, as they are or as JSON writes them."""
    if not isinstance(words, str):
        return json.dumps(words, ensure_ascii=False) in text or json.dumps(words) in text
    inner = words.strip()
    forms = (inner, json.dumps(inner, ensure_ascii=False)[1:-1], json.dumps(inner)[1:-1])
    return any(form in text for form in forms)
