"""Prompts to answer: the text of a dialog up to the answer, as ids, exactly as in training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from ftrecipes.config.errors import DataError
from ftrecipes.config.sections import SamplesConfig
from ftrecipes.data.encode import opening_ids
from ftrecipes.data.fields import not_a_row, words
from ftrecipes.data.files import read_file
from ftrecipes.data.messages import read_messages
from ftrecipes.data.readers import alpaca_prompt
from ftrecipes.data.rows import RowFault, refuse_rows
from ftrecipes.data.template import REFUSALS


@dataclass(frozen=True)
class Prompt:
    """One of the fixed prompts: what is shown of it, its ids, and the room for its answer."""

    text: str
    ids: tuple[int, ...]
    max_new_tokens: int


class PromptRefused(Exception):
    """A dialog has no prompt with this tokenizer; the message says why."""


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, object]],
    *,
    plain: bool = False,
) -> list[int]:
    """Ids of `messages` and of what opens the answer: the chat template's, else the Alpaca prompt.

    With `plain` the user's message alone, as rows of plain text are read. Raises PromptRefused when
    the template can not render the dialog, or when there is no template, or it is not to be used,
    and the dialog is more than one user message.
    """
    if tokenizer.chat_template is not None and not plain:
        try:
            text = tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, tokenize=False
            )
        except REFUSALS as error:
            raise PromptRefused(str(error) or type(error).__name__) from error
        return tokenizer(text, add_special_tokens=False)["input_ids"]
    if [message["role"] for message in messages] != ["user"]:
        why = "a plain prompt has" if plain else "this tokenizer has no chat template, and so"
        raise PromptRefused(f"{why} no place for other roles")
    prompt = messages[0]["content"]
    prompt = prompt if plain else alpaca_prompt(prompt)
    text_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    return [*opening_ids(tokenizer).tolist(), *text_ids]


def read_prompts(
    samples: SamplesConfig, tokenizer: PreTrainedTokenizerBase, *, limit: int | None
) -> list[Prompt]:
    """The prompts of a file: the lines of a .txt, or rows with `prompt` or `messages` of a .jsonl.

    `limit` is the positions of the model; an answer ends there at the latest. None without a file.
    Raises DataError that names the lines that can not be used.
    """
    path = samples.prompts
    if path is None:
        return []
    raw = read_file(path)
    if len(raw) == 0:
        raise DataError(f"--samples.prompts {path}: the file holds no prompt.\n  do: add one")
    longest = samples.max_new_tokens
    prompts, faults = [], []
    for source, row in zip(raw.sources, raw.rows, strict=True):
        try:
            messages = _dialog(row)
            ids = encode_prompt(tokenizer, messages, plain=samples.plain)
            room = longest if limit is None else min(longest, limit - len(ids))
            if room <= 0:
                raise RowFault(f"{len(ids)} positions; this model takes fewer than {limit}")
        except (RowFault, PromptRefused) as fault:
            faults.append(f"{source}: {fault}")
            continue
        prompts.append(Prompt(str(messages[-1]["content"]), tuple(ids), room))
    refuse_rows(faults, total=len(raw), do=f"mend these prompts in --samples.prompts {path}")
    return prompts


def _dialog(row: object) -> list[dict]:
    """The messages of a row, the last of them not the assistant's."""
    if not isinstance(row, Mapping):
        raise RowFault(not_a_row(row))
    keys = [key for key in ("text", "prompt", "messages") if key in row]
    if len(keys) != 1:
        raise RowFault(f"needs prompt or messages; has {', '.join(map(str, row)) or 'nothing'}")
    if keys != ["messages"]:
        return [{"role": "user", "content": words(row, keys[0])}]
    messages = read_messages(row["messages"], "messages")
    if not messages:
        raise RowFault("its messages are an empty list")
    if messages[-1]["role"] == "assistant":
        raise RowFault("the last of its messages is the assistant's; leave out the answer")
    return messages
