"""Rows that are no dialogs: instructions, prompts with completions, plain text, finished tokens."""

from collections.abc import Mapping

import numpy as np

from ftrecipes.data.facts import IGNORED
from ftrecipes.data.fields import integers, item_list, kind_of, optional_words, required, words
from ftrecipes.data.kinds import ChatRow, TextRow, TokenRow
from ftrecipes.data.messages import read_messages, require_words
from ftrecipes.data.rows import RowFault
from ftrecipes.data.tools import read_tools


def read_instruction_chat(row: Mapping, *, only_output: bool = False) -> ChatRow:
    """Instruction (and input, an empty line below it) as the user's turn, output as the answer.

    `system` and `history`, a list of pairs of question and answer, come before it; with
    `only_output` the answers of `history` may not be trained.
    """
    instruction, context, output = _instruction(row)
    messages = _turns(f"{instruction}\n\n{context}" if context else instruction, output)
    for index, pair in reversed(list(enumerate(_history(row)))):
        messages = [*_past_turns(pair, f"history[{index}]"), *messages]
    system = optional_words(row, "system")
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return ChatRow(messages, first_trained=len(messages) - 1 if only_output else 0)


def read_instruction(row: Mapping) -> TextRow:
    """Instruction in the Alpaca prompt, for base models."""
    instruction, context, output = _instruction(row)
    for key, value in {"system": optional_words(row, "system"), "history": _history(row)}.items():
        if value:
            raise RowFault(f"key '{key}' has no place in a prompt without a chat template")
    return TextRow(alpaca_prompt(instruction, context=context), output)


def alpaca_prompt(instruction: str, *, context: str = "") -> str:
    """The prompt of the Alpaca data set, word for word: base models and tools know this form.

    Source: https://github.com/tatsu-lab/stanford_alpaca#data-release (Apache-2.0).
    """
    task = "Below is an instruction that describes a task"
    ask = "Write a response that appropriately completes the request."
    if context:
        return (
            f"{task}, paired with an input that provides further context. {ask}\n\n"
            f"### Instruction:\n{instruction}\n\n### Input:\n{context}\n\n### Response:"
        )
    return f"{task}. {ask}\n\n### Instruction:\n{instruction}\n\n### Response:"


def read_prompt_completion(row: Mapping, *, needs_answer: bool = True) -> TextRow | ChatRow:
    """Two texts, or two lists of messages; of the latter the completion's answers are trained."""
    prompt, completion = required(row, "prompt"), required(row, "completion")
    if isinstance(prompt, str) or isinstance(completion, str):
        return TextRow(words(row, "prompt", may_be_empty=True), words(row, "completion"))
    before, after = read_messages(prompt, "prompt"), read_messages(completion, "completion")
    require_words(after, "completion", of_assistant=needs_answer)
    return ChatRow([*before, *after], read_tools(row), first_trained=len(before))


def read_text(row: Mapping) -> TextRow:
    """`text`, all of which is trained."""
    return TextRow("", words(row, "text"))


def read_tokens(row: Mapping, *, vocabulary: int) -> TokenRow:
    """`input_ids` and `labels` of one length, without the padding that `attention_mask` marks."""
    input_ids, labels = integers(row, "input_ids"), integers(row, "labels")
    if len(input_ids) == 0:
        raise RowFault("key 'input_ids' is empty; no tokens")
    if len(labels) != len(input_ids):
        raise RowFault(f"key 'labels' has {len(labels)} entries; input_ids has {len(input_ids)}")
    if row.get("attention_mask") is not None:
        content = _unpadded(integers(row, "attention_mask"), length=len(input_ids))
        input_ids, labels = input_ids[content], labels[content]
    if input_ids.min() < 0 or input_ids.max() >= vocabulary:
        raise RowFault(f"key 'input_ids' has ids outside the vocabulary of {vocabulary} tokens")
    trained = labels != IGNORED
    if (labels[trained] < 0).any() or (labels[trained] >= vocabulary).any():
        raise RowFault(f"key 'labels' must hold {IGNORED} or ids below {vocabulary}")
    # Labels that already name the NEXT token would train the model to skip one.
    here, following = labels == input_ids, labels[:-1] == input_ids[1:]
    if following[trained[:-1]].all() and not here[trained].all() and trained[:-1].any():
        raise RowFault("key 'labels' is shifted: label i must be the token AT position i")
    return TokenRow(input_ids.astype(np.int32), labels.astype(np.int32))


def _unpadded(mask: np.ndarray, *, length: int) -> slice:
    """Where the row stands between its pads."""
    if len(mask) != length:
        raise RowFault(f"key 'attention_mask' has {len(mask)} entries; input_ids has {length}")
    kept = np.flatnonzero(mask)
    if len(kept) == 0 or kept[-1] - kept[0] + 1 != len(kept):
        raise RowFault("key 'attention_mask' must mark one run of positions")
    return slice(kept[0], kept[-1] + 1)


def _instruction(row: Mapping) -> tuple[str, str, str]:
    return words(row, "instruction"), optional_words(row, "input"), words(row, "output")


def _history(row: Mapping) -> list:
    value = row.get("history")
    return [] if value is None or value == "" else item_list(value, "history", of="pairs")


def _past_turns(pair: object, where: str) -> list[dict]:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise RowFault(f"key '{where}' is {kind_of(pair)}; expected a pair of question and answer")
    named = {f"{where}[{index}]": text for index, text in enumerate(pair)}
    return _turns(*(words(named, key) for key in named))


def _turns(question: str, answer: str) -> list[dict]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
