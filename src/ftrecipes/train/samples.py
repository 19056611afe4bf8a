"""Answers of the model in training to fixed prompts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from ftrecipes.data.prompts import Prompt
from ftrecipes.model.generation import attention_set, generate
from ftrecipes.train.evaluate import evaluation_mode
from ftrecipes.train.step import BatchLoss, autocast
from ftrecipes.train.stop import NEVER, Stop, stop_together


@dataclass(frozen=True)
class Sampler:
    """Asks the live model; nothing about it, nor about the random numbers, is different after."""

    trained: BatchLoss
    """The model, and what it is run by."""
    tokenizer: PreTrainedTokenizerBase
    prompts: Sequence[Prompt]
    every_steps: int
    """Steps between samples; 0 = at the end of each epoch."""
    attention: str
    """The model's own attention, as it was before the probe: row attention has no cache."""
    stop: Stop = NEVER

    def answers(self) -> Iterator[tuple[str, str]]:
        """(prompt, answer) of each prompt: the likeliest tokens, without dropout.

        Every rank takes all of them. Raises Stopped when a rank was asked to stop.
        """
        model, world = self.trained.model, self.trained.world
        with (
            evaluation_mode(model),
            attention_set(model, self.attention),
            autocast(self.trained.precision, world.device),
        ):
            for prompt in self.prompts:
                stop_together(self.stop, world)
                answer = generate(
                    *(model, self.tokenizer, prompt.ids),
                    max_new_tokens=prompt.max_new_tokens,
                    device=world.device,
                    run=self.trained.engine.run,
                    beat=world.watch.beat,
                    together=world.size > 1,
                )
                yield prompt.text, answer
