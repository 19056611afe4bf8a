"""The answer of a model to the ids of a prompt."""

from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

# Below, dividing by it may overflow, and the likeliest token is as good as certain.
COLDEST = 1e-6


@torch.no_grad()  # inference_mode would leave buffers that no later training step could use
def generate(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    ids: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
) -> str:
    """The answer to `ids`, special tokens left out; `model` may be a PeftModel of any method.

    A temperature below `COLDEST` takes the likeliest token at each position, and draws nothing.
    The model answers in the mode (dropout) that it is in.
    """
    inputs = torch.tensor([list(ids)], device=model.device)
    samples = temperature >= COLDEST
    sampling = {"temperature": temperature} if samples else {}
    output = model.generate(
        input_ids=inputs,
        attention_mask=torch.ones_like(inputs),
        max_new_tokens=max_new_tokens,
        do_sample=samples,
        use_cache=True,
        pad_token_id=tokenizer.eos_token_id,
        **sampling,
    )
    return tokenizer.decode(output[0, len(ids) :], skip_special_tokens=True)
