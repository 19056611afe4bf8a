"""Checks of dialogs as their template writes them: what is said, kept, trained, and generated from.

Each takes a rendered dialog and yields what is to be said of it, at most once a kind.
"""

import re
from collections.abc import Iterator

import numpy as np
from transformers import PreTrainedTokenizerBase

from ftrecipes.config.sections import DataConfig
from ftrecipes.data.findings import GOES_ON, Finding, ShownToken, finding
from ftrecipes.data.kept_words import Show, check_words, short
from ftrecipes.data.sampled import Dialog
from ftrecipes.data.spans import common_prefix
from ftrecipes.data.split_ids import AROUND, marks_of
from ftrecipes.data.template import QUESTION, unused_character

LOOKED_AT = 4
"""Answers of a dialog, the last ones: each costs a rendering of all before it."""
# Words that look like the marks of a template.
MARK = re.compile(r"<\|[^|<>\s]+\|>|<\w+>|\[/?[A-Z_]+\]")


def check_dialog(
    dialog: Dialog, tokenizer: PreTrainedTokenizerBase, data: DataConfig
) -> Iterator[Finding]:
    """Whatever there is to say of one dialog."""

    def show(code: str, text: str, at: int | None = None) -> Finding:
        shown = () if at is None else tokens_around(dialog, at)
        return finding(code, text, source=dialog.source, tokens=shown)

    if dialog.first is None:
        yield show("not-repeatable", "the template does not write the same text again")
        return
    if data.train_on != "all":
        yield from _user_words(dialog, show)
        yield from _end_in_pieces(dialog, tokenizer, show)
    yield from _prompts(dialog, tokenizer, data, show)
    yield from check_words(dialog, show)
    yield from _control_words(dialog, tokenizer, show)
    yield from _added_system(dialog, show)
    if data.chat_template is not None:
        yield from _pieces(dialog, tokenizer, show)


def tokens_around(dialog: Dialog, at: int) -> tuple[ShownToken, ...]:
    """The tokens about position `at`."""
    start, end = max(at - AROUND, 0), min(at + AROUND + 1, len(dialog.ids))
    trained = dialog.is_trained[start:end].tolist()
    if dialog.first in range(start, end):
        trained[dialog.first - start] = False  # nothing comes before it that could foretell it
    texts = (dialog.between(token, token + 1) for token in range(start, end))
    shown = map(ShownToken, texts, trained)
    return (*[GOES_ON] * (start > 0), *shown, *[GOES_ON] * (end < len(dialog.ids)))


def _user_words(dialog: Dialog, show: Show) -> Iterator[Finding]:
    # All at once: a dialog may have hundreds of messages, and so many tokens for each.
    first, last = np.array(dialog.offsets, dtype=np.int64).reshape(-1, 2).T
    is_trained = dialog.is_trained & (first < last)
    for index, message in enumerate(dialog.messages):
        spans = [] if message["role"] == "assistant" else dialog.spans_of(index)
        for start, end in spans:
            # A token that begins or ends elsewhere may be trained for what else it holds.
            trained = np.flatnonzero(is_trained & (start <= first) & (last <= end))
            if len(trained):
                what = f"words of messages[{index}] (role {message['role']}) are trained"
                yield show("user-words-trained", what, int(trained[0]))
                return


def _end_in_pieces(
    dialog: Dialog, tokenizer: PreTrainedTokenizerBase, show: Show
) -> Iterator[Finding]:
    """The last answer, if all of it is trained and what ends it is no token."""
    index = dialog.answers[-1] if dialog.answers else None
    trained = dialog.is_trained.nonzero()[0]
    spans = [] if index is None or not len(trained) else dialog.spans_of(index)
    if not spans:
        return
    last, marks = int(trained[-1]), set(marks_of(tokenizer).values())
    ending = dialog.text[spans[-1][1] : dialog.offsets[last][1]].strip()
    behind = [at for at in trained if dialog.offsets[at][0] >= spans[-1][1]]
    if ending and not any(dialog.ids[at] in marks for at in behind):
        what = f"{short(ending)} ends the answer and is {len(behind)} tokens, not one"
        yield show("end-in-pieces", what, last)


def _prompts(
    dialog: Dialog, tokenizer: PreTrainedTokenizerBase, data: DataConfig, show: Show
) -> Iterator[Finding]:
    """What generation is given for the messages before each answer begins the training text."""
    is_rewritten = False
    for index in reversed(dialog.answers[-LOOKED_AT:]):
        messages, is_last = dialog.messages[:index], index == dialog.answers[-1]
        prompt = dialog.template.try_prompt(messages) if messages else None
        whole = dialog.template.try_write(dialog.messages[: index + 1])
        if not is_last and (whole is None or not dialog.text.startswith(whole)):
            is_rewritten = True
        if prompt is None:
            continue
        if dialog.text.startswith(prompt):
            ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
            yield from _border(dialog, ids, index, data, show)
        elif is_last:
            same = len(common_prefix(dialog.text, prompt))
            what = (
                f"generation goes on from {short(prompt[same:])!r}, and the text of the row from "
                f"{short(dialog.text[same:])!r}"
            )
            at = next((i for i, (_, end) in enumerate(dialog.offsets) if end > same), None)
            yield show("prompt-differs", what, at)
        else:
            is_rewritten = True
    if is_rewritten:
        yield show(
            "history-rewritten", "the template writes earlier turns anew as a dialog goes on"
        )


def _border(
    dialog: Dialog, prompt: list[int], index: int, data: DataConfig, show: Show
) -> Iterator[Finding]:
    """Where the tokens of a prompt end, those of an answer begin."""
    length = len(prompt)
    if dialog.ids[:length] != prompt:
        at = next(i for i in range(length) if dialog.ids[i : i + 1] != prompt[i : i + 1])
        what = f"the prompt of messages[{index}] ends in other tokens than in the row"
        yield show("prompt-tokens-differ", what, at)
        return
    trained = dialog.is_trained[length:].nonzero()[0]
    words = dialog.messages[index].get("content") or ""
    is_cut = dialog.first > 0 and length <= dialog.first
    if data.train_on == "all" or is_cut or not len(trained):
        return
    gap = dialog.between(length, length + int(trained[0]))
    if gap.strip() and (not words.strip() or words.strip() not in gap):
        what = f"{short(gap)!r} stands between the prompt and what is trained"
        yield show("no-generation-prompt", what, length)


def _control_words(
    dialog: Dialog, tokenizer: PreTrainedTokenizerBase, show: Show
) -> Iterator[Finding]:
    """Marks that the template writes round a question, and its end tokens, in somebody's words."""
    asked = dialog.template.try_write(QUESTION) or ""
    marks = {token for token in marks_of(tokenizer) if token in asked}
    marks |= {token for token in (tokenizer.bos_token, tokenizer.eos_token) if token}
    for index, message in enumerate(dialog.messages):
        words = message.get("content") or ""
        mark = next((mark for mark in sorted(marks) if mark in words), None)
        if mark is not None:
            role = message["role"]
            start = next((start for start, _ in dialog.spans_of(index)), 0) + words.index(mark)
            at = next((i for i, (_, end) in enumerate(dialog.offsets) if end > start), None)
            yield show("control-words", f"messages[{index}] (role {role}) holds {mark}", at)
            return


def _added_system(dialog: Dialog, show: Show) -> Iterator[Finding]:
    messages, mark = dialog.messages, unused_character(dialog.text)
    if messages[0]["role"] in ("system", "developer"):
        return
    with_system = dialog.template.try_write([{"role": "system", "content": mark}, *messages])
    before, found, behind = (with_system or "").partition(mark)
    is_like = dialog.text.startswith(before) and dialog.text.endswith(behind)
    added = dialog.text[len(before) : len(dialog.text) - len(behind)] if found and is_like else ""
    if added.strip() and mark not in behind:
        yield show("system-added", f"the template adds {short(added)!r}")


def _pieces(dialog: Dialog, tokenizer: PreTrainedTokenizerBase, show: Show) -> Iterator[Finding]:
    known = tokenizer.get_vocab()
    asked = dialog.template.try_prompt(QUESTION) or ""
    pieces = [mark for mark in dict.fromkeys(MARK.findall(asked)) if mark not in known]
    if pieces:
        words = ",".join(pieces)
        yield show("marks-in-pieces", f"not in the vocabulary: {words} (--new_tokens '{words}')")
