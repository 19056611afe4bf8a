"""Answers of a model with a learned prompt or prefix, one forward of PEFT's a token.

transformers' generate and PEFT's cache do not go together there: with transformers 5.24 and PEFT
0.21 the cache of generate hides a prefix without a word (Llama, Mistral, Gemma 2, GPT-2), and a
sliding window forgets the virtual tokens. The forward without a cache is the one that was trained.
It costs as much again for each token, which short answers can bear.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn


def prompted_ids(
    model: nn.Module,
    ids: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float | None,
    ends: Collection[int],
) -> Tensor:
    """int64 ids [T] of the prompt and the answer; `temperature` None takes the likeliest token.

    It ends after a token of `ends`.
    """
    answer = torch.tensor([list(ids)], device=model.device)
    for _ in range(max_new_tokens):
        output = model(input_ids=answer, attention_mask=torch.ones_like(answer), use_cache=False)
        token = _choose(output.logits[:, -1].float(), temperature)
        answer = torch.cat([answer, token], dim=1)
        if token.item() in ends:
            break
    return answer[0]


def _choose(logits: Tensor, temperature: float | None) -> Tensor:
    """One id [1, 1] by logits [1, V]."""
    if temperature is None:
        return logits.argmax(-1, keepdim=True)
    return torch.multinomial((logits / temperature).softmax(-1), 1)
