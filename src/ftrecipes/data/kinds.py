"""What a row says, once it is read: a dialog, a prompt with its answer, or finished tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ftrecipes.data.facts import IGNORED


@dataclass(frozen=True)
class ChatRow:
    """A dialog for the tokenizer's chat template, in OpenAI's shape.

    A message may say with `train`, true or false, whether it is trained; no template sees that key.
    """

    messages: Sequence[Mapping]
    tools: Sequence[Mapping] | None = None
    """Functions that the assistant may call, each {"type": "function", "function": ...}."""
    first_trained: int = 0
    """Index of the first message whose answer may be trained."""


@dataclass(frozen=True)
class TextRow:
    """A prompt and its answer as plain text: they get BOS as the tokenizer does, and one EOS."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class TokenRow:
    """Ids and labels, int32 [T] both: what every row becomes, or what a custom data set gave."""

    input_ids: np.ndarray
    labels: np.ndarray

    @property
    def num_tokens(self) -> int:
        """Labels that count; the first position has no predecessor."""
        return int(np.count_nonzero(self.labels[1:] != IGNORED))


Row = ChatRow | TextRow | TokenRow
