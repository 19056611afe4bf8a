"""Answers of the model in training to fixed prompts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from ftrecipes.config.precision import Precision
from ftrecipes.data.prompts import Prompt
from ftrecipes.model.generation import attention_set, generate
from ftrecipes.train.evaluate import evaluation_mode
from ftrecipes.train.step import autocast


@dataclass(frozen=True)
class Sampler:
    """Asks the live model; nothing about it, nor about the random numbers, is different after."""

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    prompts: Sequence[Prompt]
    every_steps: int
    """Steps between samples; 0 = at the end of each epoch."""
    attention: str
    """The model's own attention, as it was before the probe: row attention has no cache."""
    precision: Precision
    device: torch.device

    def answers(self) -> Iterator[tuple[str, str]]:
        """(prompt, answer) of each prompt: the likeliest tokens, without dropout."""
        with (
            evaluation_mode(self.model),
            attention_set(self.model, self.attention),
            autocast(self.precision, self.device),
        ):
            for prompt in self.prompts:
                yield (
                    prompt.text,
                    generate(
                        *(self.model, self.tokenizer, prompt.ids),
                        max_new_tokens=prompt.max_new_tokens,
                    ),
                )
