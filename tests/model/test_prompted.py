"""Prefix and prompt tuning: padded rows through PEFT's own forward, against PEFT row by row."""

from dataclasses import replace

import pytest
import torch
from peft import PeftModel

from ftrecipes.config.errors import ConfigError, ModelError
from ftrecipes.model.adapters import add_adapters
from tests import reference, tiny_models
from tests.model.adapting import FLOAT32, VIRTUAL, adapt, method_config, moved
from tests.model.routes import backward_step, flatten, route_of
from tests.tiny_tokenizers import build_tokenizer

ROWS = tiny_models.random_rows([17, 9, 9, 5])
FAMILIES = ("llama", "mistral", "gpt2", "gemma2", "bloom", "qwen3")


def peft_step(model: PeftModel, rows: list[reference.Row]) -> float:
    """Loss and gradients by PEFT's and transformers' own loss, one row at a time."""
    model.zero_grad(set_to_none=True)
    num_tokens, total = reference.count_tokens(rows), 0.0
    for ids, labels in rows:
        inputs = torch.tensor([ids])
        output = model(
            input_ids=inputs,
            attention_mask=torch.ones_like(inputs),
            labels=torch.tensor([[-100, *labels[1:]]]),
            use_cache=False,
        )
        loss = output.loss * reference.count_tokens([(ids, labels)]) / num_tokens  # theirs: a mean
        loss.backward()
        total += loss.item()
    return total


def compare(model: PeftModel, *, route=None) -> None:
    route = route or route_of(model, ROWS)
    assert route.prompted
    assert not route.flat
    expected = peft_step(model, ROWS)
    gradients = reference.gradients(model)
    # ROWS in one padded batch, and in two: another length, another padding
    for batches in ([ROWS], [ROWS[:1], ROWS[1:]]):
        assert backward_step(model, route, batches) == pytest.approx(expected, rel=1e-5)
        for name, gradient in reference.gradients(model).items():
            assert gradients[name].abs().max() > 0, name
            torch.testing.assert_close(gradient, gradients[name], rtol=1e-3, atol=1e-6, msg=name)


@pytest.mark.parametrize("method", ["prefix", "prompt"])
@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradients_are_those_of_peft(method, family):
    model = moved(adapt(method, family))
    route = route_of(model, ROWS)
    assert route.head == "own"
    compare(model, route=route)


def test_a_prefix_through_a_network():
    model = moved(adapt("prefix", prefix_projection=True))
    assert len(list(model.prompt_encoder.parameters())) == 5
    compare(model)


@pytest.mark.parametrize("method", ["prefix", "prompt"])
def test_all_logits_give_the_same(method):
    """The route of a model that can not be told where logits are needed."""
    model = moved(adapt(method))
    compare(model, route=replace(route_of(model, ROWS), head="full"))


@pytest.mark.parametrize("method", ["prefix", "prompt"])
def test_rows_without_labels_count_nothing(method):
    model = moved(adapt(method))
    route = route_of(model, ROWS)
    loss = route.loss_sum(model, *flatten([(ids, [-100] * len(ids)) for ids, _ in ROWS]))
    assert loss.item() == 0
    loss.backward()
    assert all(not g.any() for g in reference.gradients(model).values())


@pytest.mark.parametrize("family", ["falcon", "gpt_neox"])
def test_a_model_that_takes_no_prefix_is_an_error(family):
    with pytest.raises(ModelError, match=r"PREFIX_TUNING does not work with(.|\n)*use another"):
        route_of(adapt("prefix", family), ROWS)


@pytest.mark.parametrize("method", ["prefix", "prompt"])
def test_a_model_without_attention_is_an_error(method):
    with pytest.raises(ModelError, match="num_attention_heads"):
        adapt(method, "mamba")


@pytest.mark.parametrize("text", ["rain", "Describe the rain in one short sentence please."])
def test_a_prompt_starts_from_the_embeddings_of_a_text(text):
    tokenizer = build_tokenizer("chatml")
    base = tiny_models.build("llama", vocab_size=len(tokenizer))
    embeddings = base.get_input_embeddings().weight
    config = method_config("prompt", init_text=text)
    model = add_adapters(base, config, FLOAT32, tokenizer=tokenizer)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    expected = embeddings[torch.tensor((ids * VIRTUAL)[:VIRTUAL])]
    assert torch.equal(model.prompt_encoder["default"].embedding.weight, expected)


def test_a_text_without_tokens_is_an_error():
    with pytest.raises(ConfigError, match="init_text: this tokenizer makes no tokens"):
        adapt("prompt", init_text="", tokenizer=build_tokenizer("chatml"))
