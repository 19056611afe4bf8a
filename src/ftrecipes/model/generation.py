"""The answer of a model to the ids of a prompt."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)

from ftrecipes.model.forward import call, causal_lm, decoder_of, is_prompted
from ftrecipes.model.prompted_generation import prompted_ids

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
    device: torch.device | None = None,
    run: Callable[..., Any] = call,
    beat: Callable[[], None] | None = None,
    together: bool = False,
) -> str:
    """The answer to `ids`, special tokens left out; `model` may be a PeftModel of any method.

    A temperature below `COLDEST` takes the likeliest token at each position, and draws nothing.
    It ends after a token that the model's generation settings or the tokenizer name as an end; of
    those settings nothing else counts (penalties, beams, limits). The model answers in the mode
    (dropout) that it is in.

    A sharded model (never one with a learned prompt) answers with all ranks calling this for the
    same ids: `device` is where it computes (None = where its parameters are), `run` gathers what
    it needs, and with `together` no rank stops before all have their answer. `beat` is called for
    each token.
    """
    samples = temperature >= COLDEST
    ends = _ends(model, tokenizer)
    if is_prompted(model):
        chosen = {"temperature": temperature if samples else None, "max_new_tokens": max_new_tokens}
        output = prompted_ids(model, ids, ends=ends, **chosen)
        return tokenizer.decode(output[len(ids) :], skip_special_tokens=True)
    inputs = torch.tensor([list(ids)], device=device or model.device)
    settings = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=samples,
        temperature=temperature if samples else None,
        top_k=0 if samples else None,
        use_cache=True,
        eos_token_id=ends or None,
        pad_token_id=ends[0] if ends else 0,  # one row has no padding
    )
    criteria = StoppingCriteriaList([] if beat is None else [_Beat(beat)])

    def answer() -> Tensor:
        return model.generate(
            input_ids=inputs,
            attention_mask=torch.ones_like(inputs),
            stopping_criteria=criteria,
            synced_gpus=together,
        )

    with _generating_by(causal_lm(model), settings):
        output = run(answer)
    return tokenizer.decode(output[0, len(ids) :], skip_special_tokens=True)


class _Beat(StoppingCriteria):
    """Never stops; transformers asks it after every token."""

    def __init__(self, beat: Callable[[], None]):
        self._beat = beat

    def __call__(self, input_ids: Tensor, scores: Tensor, **others: object) -> Tensor:
        self._beat()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def _ends(model: nn.Module, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Rows of training end with the tokenizer's, which a base model may not name itself."""
    named = causal_lm(model).generation_config.eos_token_id
    ends = [*(named if isinstance(named, list) else [named]), tokenizer.eos_token_id]
    return sorted({end for end in ends if end is not None})


@contextmanager
def _generating_by(lm: PreTrainedModel, settings: GenerationConfig) -> Iterator[None]:
    """Inside, the model's generation settings are these: generate fills others in from its own."""
    before, lm.generation_config = lm.generation_config, settings
    try:
        yield
    finally:
        lm.generation_config = before


def attention_of(model: nn.Module) -> str:
    """Name of the attention that the model's decoder computes now."""
    return decoder_of(causal_lm(model)).config._attn_implementation


@contextmanager
def attention_set(model: nn.Module, name: str) -> Iterator[None]:
    """Inside, the decoder computes attention `name`; after it, the one before.

    Row attention has no cache, and wants to know where rows lie.
    """
    decoder, before = decoder_of(causal_lm(model)), attention_of(model)
    decoder.set_attn_implementation(name)
    try:
        yield
    finally:
        decoder.set_attn_implementation(before)
