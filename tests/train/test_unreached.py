"""Parameters that no row reaches are told before the first step; those that are reached never."""

import pytest
import torch

from ftrecipes.model.adapters import add_adapters, train_everything
from tests import reference, tiny_families, tiny_models
from tests.model.adapting import FLOAT32, SECTIONS, adapt, method_config
from tests.model.routes import route_of

ROWS = tiny_models.random_rows([13, 30, 7])


def told(model, caplog) -> str:
    with caplog.at_level("WARNING"):
        caplog.clear()
        route_of(model, ROWS)
    return "".join(line for line in caplog.messages if "have no part in the loss" in line)


@pytest.mark.parametrize("model_type", ["gemma3", "bart", "deepseek_v32"])
def test_those_that_are_told_are_those_without_a_gradient(model_type, caplog):
    model = train_everything(tiny_families.build(model_type), FLOAT32)
    reference.backward_step(model, ROWS)
    without = [n for n, p in model.named_parameters() if p.grad is None]
    text = told(model, caplog)
    assert 0 < len(without) < len(list(model.parameters()))
    assert f"{len(without)} of {len(list(model.parameters()))} trained parameters" in text


def test_adapters_where_no_text_comes_by_are_named(caplog):
    config = method_config("lora", target_modules=["q_proj"])
    text = told(add_adapters(tiny_families.build("gemma3"), config, FLOAT32), caplog)
    assert "model.vision_tower.encoder.layers.*.self_attn.q_proj.lora_A.weight" in text
    assert "language_model" not in text


@pytest.mark.parametrize("method", SECTIONS)
def test_nothing_is_told_of_an_adapter_that_is_reached(method, caplog):
    assert not told(adapt(method), caplog)


@pytest.mark.parametrize("family", ["llama_tied", "gpt2", "mixtral", "mamba"])
@pytest.mark.parametrize("autocast", [False, True])
def test_nothing_is_told_of_a_model_that_is_reached(family, autocast, caplog):
    """Autocast keeps casts of weights, also those that were made without a graph."""
    model = train_everything(tiny_models.build(family), FLOAT32)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        assert not told(model, caplog)
    assert all(parameter.grad is None for parameter in model.parameters())
