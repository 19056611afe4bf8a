"""IA3: PEFT's places for each type, and its gradients on the route of every other adapter."""

import pytest
import torch

from ftrecipes.config.errors import ModelError
from ftrecipes.model.adapters import trainable_parameters
from tests import reference, tiny_models
from tests.model.adapting import adapt, moved
from tests.model.routes import backward_step, route_of

ROWS = tiny_models.random_rows([17, 9, 9])


def places(model) -> set[str]:
    return {name.split(".")[-3] for name, _ in trainable_parameters(model)}


@pytest.mark.parametrize(
    ("family", "settings", "names"),
    [
        ("llama", {}, {"k_proj", "v_proj", "down_proj"}),
        ("gpt2", {}, {"c_attn", "c_proj"}),
        ("bloom", {}, {"query_key_value", "dense_4h_to_h"}),
        ("llama", {"target_modules": ["q_proj", "up_proj"]}, {"q_proj", "up_proj"}),
        ("olmo2", {"target_modules": [".*(k_proj|v_proj)"]}, {"k_proj", "v_proj"}),
    ],
)
def test_loss_and_gradients(family, settings, names):
    model = adapt("ia3", family, **settings)
    assert places(model) == names
    plain = reference.evaluate(tiny_models.build(family), ROWS)
    assert reference.evaluate(model, ROWS) == pytest.approx(plain, rel=1e-6)  # factors start at 1
    model = moved(model)
    loss = reference.backward_step(model, ROWS)
    assert abs(loss - plain) > 1e-4
    expected = reference.gradients(model)
    route = route_of(model, ROWS)
    assert not route.prompted
    assert backward_step(model, route, [ROWS]) == pytest.approx(loss, rel=1e-5)
    for name, gradient in reference.gradients(model).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=1e-6, msg=name)


def test_the_input_of_the_feedforward_is_scaled():
    """down_proj: 48 factors, one an input; k_proj: 16, one an output."""
    shapes = {n.split(".")[-3]: p.numel() for n, p in trainable_parameters(adapt("ia3"))}
    assert shapes == {"k_proj": 16, "v_proj": 16, "down_proj": 48}
    settings = {"target_modules": ["up_proj"], "feedforward_modules": ["up_proj"]}
    assert [p.numel() for _, p in trainable_parameters(adapt("ia3", **settings))] == [32, 32]


def test_a_type_that_peft_does_not_know_lists_the_layers():
    with pytest.raises(ModelError, match=r"type olmo2(.|\n)*down_proj, gate_proj(.|\n)*--ia3.feed"):
        adapt("ia3", "olmo2")


def test_what_peft_s_list_names_but_the_model_lacks_is_told(caplog):
    """The experts of Mixtral are no linear layers any more."""
    with caplog.at_level("INFO"):
        assert places(adapt("ia3", "mixtral")) == {"k_proj", "v_proj"}
    assert "this model has no w2" in caplog.text


def test_names_that_match_nothing():
    with pytest.raises(ModelError, match=r"--ia3.target_modules typo(.|\n)*linear layers are"):
        adapt("ia3", target_modules=["k_proj", "typo"])
