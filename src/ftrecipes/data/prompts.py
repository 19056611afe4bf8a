"""Prompts to answer: the text of a dialog up to the answer, as ids, exactly as in training."""

from collections.abc import Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from ftrecipes.data.chat import REFUSALS
from ftrecipes.data.encode import opening_ids
from ftrecipes.data.formats import alpaca_prompt


class PromptRefused(Exception):
    """A dialog has no prompt with this tokenizer; the message says why."""


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, object]]
) -> list[int]:
    """Ids of `messages` and of what opens the answer: the chat template's, else the Alpaca prompt.

    Raises PromptRefused when the template can not render the dialog, or when there is no template
    and the dialog is more than one user message.
    """
    if tokenizer.chat_template is not None:
        try:
            text = tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, tokenize=False
            )
        except REFUSALS as error:
            raise PromptRefused(str(error) or type(error).__name__) from error
        return tokenizer(text, add_special_tokens=False)["input_ids"]
    if [message["role"] for message in messages] != ["user"]:
        raise PromptRefused("this tokenizer has no chat template, and so no place for other roles")
    prompt = alpaca_prompt(messages[0]["content"])
    text_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    return [*opening_ids(tokenizer).tolist(), *text_ids]
