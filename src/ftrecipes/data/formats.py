"""What a row says: a dialog, an instruction with its answer, or finished tokens and labels.

The format of a split is known by its columns; each row is then checked key by key.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from transformers import PreTrainedTokenizerBase

from ftrecipes.config.errors import DataError
from ftrecipes.data.rows import IGNORED, RawRows, RowFault

ROLES = ("system", "user", "assistant")

EXPECTED = (
    "`messages` (a list of {role, content}), or `instruction`, `output` and optionally `input`; "
    "a custom data set may return `input_ids` and `labels`"
)


@dataclass(frozen=True)
class ChatRow:
    """A dialog for the tokenizer's chat template."""

    messages: list[Mapping]


@dataclass(frozen=True)
class TextRow:
    """A prompt and its answer, for a tokenizer without a chat template."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class TokenRow:
    """Ids and labels, int32 [T] both: what every row becomes, or what a custom data set gave."""

    input_ids: np.ndarray
    labels: np.ndarray

    def cut(self, length: int) -> "TokenRow":
        """Its first `length` positions."""
        return TokenRow(self.input_ids[:length], self.labels[:length])

    @property
    def num_tokens(self) -> int:
        """Labels that count; the first position has no predecessor."""
        return int(np.count_nonzero(self.labels[1:] != IGNORED))


Row = ChatRow | TextRow | TokenRow


def choose_reader(raw: RawRows, tokenizer: PreTrainedTokenizerBase) -> Callable[[Mapping], Row]:
    """The function that reads each row of `raw`; it raises RowFault naming the key at fault.

    Raises DataError listing the columns when they are of no known format, and when dialogs meet a
    tokenizer that has no chat template.
    """
    columns = set(raw.columns)
    if {"input_ids", "labels"} <= columns:
        return partial(read_tokens, vocabulary=len(tokenizer))
    if "messages" in columns:
        if tokenizer.chat_template is None:
            raise DataError(
                "The rows are dialogs, and the tokenizer has no chat template to write them with.\n"
                "  do: take an instruct model, name one with --tokenizer_name, or use rows with "
                "`instruction` and `output`"
            )
        return read_chat
    if {"instruction", "output"} <= columns:
        if tokenizer.chat_template is not None:
            return read_instruction_chat
        if tokenizer.eos_token_id is None:
            raise DataError(
                "The tokenizer has neither a chat template nor an end token, so the model could "
                "not learn where an answer ends.\n  do: name another with --tokenizer_name"
            )
        return read_instruction
    raise DataError(
        f"The rows are of no known format ({raw.source(0)}).\n"
        f"  got: columns {', '.join(map(str, raw.columns)) or '(none)'}\n"
        f"  expected: {EXPECTED}\n"
        "  do: rename the columns, or shape the rows in a function (--dataset custom_dataset)"
    )


def read_chat(row: Mapping) -> ChatRow:
    """A `messages` row: system first if at all, words in every turn, at least one answer."""
    messages = _key(row, "messages")
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise RowFault(f"key 'messages' is {kind_of(messages)}; expected a list of messages")
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise RowFault(f"key '{where}' is {kind_of(message)}; expected role and content")
        role = _key(message, "role", where=f"{where}.")
        if role not in ROLES:
            raise RowFault(f"key '{where}.role' is {role!r}; expected {', '.join(ROLES)}")
        if role == "system" and index > 0:
            raise RowFault(f"key '{where}.role' is 'system'; the system message comes first")
        _words(message, "content", where=f"{where}.", may_be_empty=role == "system")
    if not any(message["role"] == "assistant" for message in messages):
        raise RowFault("key 'messages' has no message of the assistant; nothing to learn")
    return ChatRow(list(messages))


def read_instruction_chat(row: Mapping) -> ChatRow:
    """Instruction (and input, an empty line below it) as the user's turn, output as the answer."""
    instruction, context, output = _instruction(row)
    question = f"{instruction}\n\n{context}" if context else instruction
    return ChatRow(
        [{"role": "user", "content": question}, {"role": "assistant", "content": output}]
    )


def read_instruction(row: Mapping) -> TextRow:
    """Instruction in the Alpaca prompt, for base models."""
    instruction, context, output = _instruction(row)
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


def read_tokens(row: Mapping, *, vocabulary: int) -> TokenRow:
    """`input_ids` and `labels` of one length, without the padding that `attention_mask` marks."""
    input_ids, labels = _integers(row, "input_ids"), _integers(row, "labels")
    if len(input_ids) == 0:
        raise RowFault("key 'input_ids' is empty; no tokens")
    if len(labels) != len(input_ids):
        raise RowFault(f"key 'labels' has {len(labels)} entries; input_ids has {len(input_ids)}")
    if row.get("attention_mask") is not None:
        content = _content(_integers(row, "attention_mask"), length=len(input_ids))
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


def _content(mask: np.ndarray, *, length: int) -> slice:
    """Where the row stands between its pads."""
    if len(mask) != length:
        raise RowFault(f"key 'attention_mask' has {len(mask)} entries; input_ids has {length}")
    kept = np.flatnonzero(mask)
    if len(kept) == 0 or kept[-1] - kept[0] + 1 != len(kept):
        raise RowFault("key 'attention_mask' must mark one run of positions")
    return slice(kept[0], kept[-1] + 1)


def _instruction(row: Mapping) -> tuple[str, str, str]:
    instruction, output = _words(row, "instruction"), _words(row, "output")
    if row.get("input") is None:
        return instruction, "", output
    return instruction, _words(row, "input", may_be_empty=True), output


def _words(row: Mapping, key: str, *, where: str = "", may_be_empty: bool = False) -> str:
    value = _key(row, key, where=where)
    name = f"'{where}{key}'"
    if not isinstance(value, str):
        raise RowFault(f"key {name} is {kind_of(value)}; expected text")
    if not may_be_empty and not value.strip():
        raise RowFault(f"key {name} is empty; expected text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RowFault(f"key {name} holds half a character (a lone surrogate)") from error
    return value


def _key(row: Mapping, key: str, *, where: str = "") -> object:
    if key not in row:
        raise RowFault(f"key '{where}{key}' is missing")
    return row[key]


def _integers(row: Mapping, key: str) -> np.ndarray:
    """int64 [T] of a list, array or tensor of whole numbers."""
    value = _key(row, key)
    try:
        numbers = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise RowFault(f"key '{key}' is not one flat list of whole numbers") from error
    if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
        raise RowFault(f"key '{key}' is {kind_of(value)}; expected a list of whole numbers")
    return numbers.astype(np.int64)


def kind_of(value: object) -> str:
    """What a wrong value is, in a few words."""
    if value is None:
        return "null"
    names = {bool: "true or false", int: "a number", float: "a number", str: "text"}
    names |= {list: "a list", dict: "an object"}
    return names.get(type(value), f"of type {type(value).__name__}")
