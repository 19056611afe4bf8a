"""Answers of every adapter method: token by token what plain forwards of the model give."""

import copy

import pytest
import torch
from transformers import GenerationConfig

from ftrecipes.model.adapters import add_adapters
from ftrecipes.model.generation import generate
from tests import tiny_models
from tests.model.adapting import FLOAT32, method_config, moved
from tests.tiny_tokenizers import build_tokenizer

PROMPT = [70, 101, 33, 84]
TOKENS = 6


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer("chatml")


def adapted(family, method, tokenizer):
    window = {"sliding_window": 9} if family == "mistral" else {}  # it still sees virtual tokens
    base = tiny_models.build(family, vocab_size=len(tokenizer), **window)
    base.generation_config.eos_token_id = None
    # moved far: an adapter that generating leaves out gives another answer
    return moved(add_adapters(base, method_config(method), FLOAT32), by=1.0)


def greedy(model, ids) -> list[int]:
    ids = list(ids)
    for _ in range(TOKENS):
        inputs = torch.tensor([ids])
        with torch.no_grad():
            logits = model(
                input_ids=inputs, attention_mask=torch.ones_like(inputs), use_cache=False
            ).logits
        ids.append(logits[0, -1].argmax().item())
    return ids


@pytest.mark.parametrize("method", ["lora", "ia3", "prefix", "prompt", "llama_adapter"])
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_the_adapter_takes_part_in_the_answer(family, method, tokenizer):
    model = adapted(family, method, tokenizer)
    answer = generate(model, tokenizer, PROMPT, max_new_tokens=TOKENS)
    expected = greedy(model, PROMPT)[len(PROMPT) :]
    assert answer == tokenizer.decode(expected, skip_special_tokens=True)
    with model.disable_adapter():
        base = greedy(model, PROMPT)[len(PROMPT) :]
    assert expected != base


@pytest.mark.parametrize("ends", ["one", "several"])
def test_a_prefix_s_answer_ends_where_the_model_says(ends, tokenizer):
    model = adapted("llama", "prefix", tokenizer)
    ids = greedy(model, PROMPT)
    end = ids[len(PROMPT) + 1]
    config = model.get_base_model().generation_config
    config.eos_token_id = end if ends == "one" else [end, 5]
    answer = generate(model, tokenizer, PROMPT, max_new_tokens=TOKENS)
    first = ids[len(PROMPT) : ids.index(end, len(PROMPT)) + 1]
    assert answer == tokenizer.decode(first, skip_special_tokens=True)


@pytest.mark.parametrize("method", ["lora", "prompt"])
def test_penalties_beams_and_limits_of_the_model_s_own_do_not_matter(method, tokenizer):
    model = adapted("llama", method, tokenizer)
    expected = greedy(model, PROMPT)[len(PROMPT) :]
    own = GenerationConfig(
        repetition_penalty=9.0, num_beams=3, max_length=5, max_time=1e-9, do_sample=True, top_k=3
    )
    model.get_base_model().generation_config = own
    answer = generate(model, tokenizer, PROMPT, max_new_tokens=TOKENS)
    assert answer == tokenizer.decode(expected, skip_special_tokens=True)
    assert model.get_base_model().generation_config is own


@pytest.mark.parametrize("method", ["lora", "prompt"])
def test_the_tokenizer_s_end_is_one_where_the_model_names_none(method, tokenizer):
    """As in the rows it was trained on."""
    model = adapted("llama", method, tokenizer)
    ids = greedy(model, PROMPT)
    ends = copy.deepcopy(tokenizer)
    ends.eos_token = tokenizer.convert_ids_to_tokens(ids[len(PROMPT) + 1])
    first = ids[len(PROMPT) : ids.index(ends.eos_token_id, len(PROMPT)) + 1]
    assert len(first) < TOKENS
    answer = generate(model, ends, PROMPT, max_new_tokens=TOKENS)
    assert answer == ends.decode(first, skip_special_tokens=True)


def test_a_warm_prompt_draws_the_same_with_the_same_seed(tokenizer):
    model = adapted("llama", "prompt", tokenizer)
    answers = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        answers.append(generate(model, tokenizer, PROMPT, max_new_tokens=TOKENS, temperature=5.0))
    assert answers[0] == answers[1] != answers[2]
