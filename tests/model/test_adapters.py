"""Adapters: where they are put, what is trained, in which dtype, and which mistakes are named."""

import re

import pytest
import torch
from peft import PeftModel

from ftrecipes.config.errors import ModelError
from ftrecipes.config.schema import LoraConfig, RunConfig
from ftrecipes.model.adapters import add_adapters, trainable_parameters
from tests import reference, tiny_models
from tests.model.loading import FLOAT32
from tests.model.routes import backward_step, route_of

ROWS = tiny_models.random_rows([17, 9, 9])
PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def adapt(family="llama", **settings) -> PeftModel:
    config = RunConfig(lora=LoraConfig(r=4, **settings))
    return add_adapters(tiny_models.build(family), config, FLOAT32)


def adapted_modules(model) -> list[str]:
    names = (re.match(r"base_model\.model\.(.*)\.lora_A\.", n) for n, _ in model.named_parameters())
    return sorted({match.group(1) for match in names if match})


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("llama", PROJECTIONS),
        ("gpt2", {"c_attn", "c_proj", "c_fc"}),
        ("bloom", {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}),
    ],
)
def test_all_linear_is_all_but_the_head(family, names):
    modules = adapted_modules(adapt(family))
    assert {m.rsplit(".", 1)[-1] for m in modules} == names
    assert not any("lm_head" in m for m in modules)


def test_base_is_frozen_and_b_starts_at_zero():
    plain = tiny_models.build("llama")
    model = adapt()
    trained = dict(trainable_parameters(model))
    assert len(trained) == 2 * len(PROJECTIONS) * 2
    assert all("lora_" in name for name in trained)
    assert all((p == 0).all() == ("lora_B" in name) for name, p in trained.items())
    assert reference.evaluate(model, ROWS) == reference.evaluate(plain, ROWS)


@pytest.mark.parametrize("targets", [["c_attn"], ["attn.c_attn"]])
def test_names_of_gpt2(targets):
    """Its linear layers keep their weights transposed."""
    model = adapt("gpt2", target_modules=targets)
    assert adapted_modules(model) == ["transformer.h.0.attn.c_attn", "transformer.h.1.attn.c_attn"]
    assert model.peft_config["default"].fan_in_fan_out


@pytest.mark.parametrize(
    ("targets", "modules"),
    [
        (["q_proj"], ["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"]),
        (["self_attn.q_proj", "lm_head"],
         ["lm_head", "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"]),
        ([r".*layers\.1.*\.(k|v)_proj"],
         ["model.layers.1.self_attn.k_proj", "model.layers.1.self_attn.v_proj"]),
    ],
)  # fmt: skip
def test_names_and_patterns(targets, modules):
    assert adapted_modules(adapt(target_modules=targets)) == modules


def test_head_adapter_trains_like_the_reference():
    model = adapt(target_modules=["q_proj", "lm_head"])
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    loss = reference.backward_step(model, ROWS)
    expected = reference.gradients(model)
    route = route_of(model, ROWS)
    assert route.head == "chunked"
    assert backward_step(model, route, [ROWS]) == pytest.approx(loss, rel=1e-5)
    for name, gradient in reference.gradients(model).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6, msg=name)


def test_modules_to_save_are_trained_whole():
    model = adapt(target_modules=["q_proj"], modules_to_save=["lm_head"])
    names = {name for name, _ in trainable_parameters(model)}
    assert "base_model.model.lm_head.modules_to_save.default.weight" in names
    loss = reference.backward_step(model, ROWS)
    expected = reference.gradients(model)
    assert backward_step(model, route_of(model, ROWS), [ROWS]) == pytest.approx(loss, rel=1e-5)
    head = "base_model.model.lm_head.modules_to_save.default.weight"
    torch.testing.assert_close(
        reference.gradients(model)[head], expected[head], rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize(
    ("settings", "unmatched"),
    [
        ({"target_modules": ["q_proj", "typo_proj", "other"]}, ["typo_proj", "other"]),
        ({"target_modules": [".*typo.*"]}, [".*typo.*"]),
        # in PEFT's lists these are names, and its pattern is for the whole name: silently nothing
        ({"target_modules": ["q_proj", ".*k_proj"]}, [".*k_proj"]),
        ({"exclude_modules": ["(q|k)_proj"]}, ["exclude_modules (q|k)_proj"]),
        ({"modules_to_save": [".*lm_head"]}, ["modules_to_save .*lm_head"]),
        ({"target_modules": ["proj"]}, ["proj"]),  # the end of a name, but not after a dot
        ({"exclude_modules": ["typo"]}, ["exclude_modules typo"]),
        ({"modules_to_save": ["typo"]}, ["modules_to_save typo"]),
        ({"target_parameters": ["mlp.typo"]}, ["target_parameters mlp.typo"]),
        ({"rank_pattern": {"typo": 2}}, ["rank_pattern typo"]),
        ({"alpha_pattern": {"typo": 2.0}}, ["alpha_pattern typo"]),
        ({"layers_to_transform": [0, 2]}, ["layers_to_transform 2"]),
    ],
)
def test_names_that_match_nothing_are_all_named(settings, unmatched):
    with pytest.raises(ModelError, match="match nothing") as caught:
        adapt(**settings)
    message = str(caught.value)
    got = message.split("got: ")[1].split("\n")[0]
    assert len(got.split(", ")) == len(unmatched)
    assert all(name in got for name in unmatched)
    assert "down_proj, gate_proj, k_proj" in message


def test_what_peft_refuses_is_an_error():
    with pytest.raises(ModelError, match="can not be added"):
        adapt(target_modules=["mlp"])
    with pytest.raises(ModelError, match="not a regular expression"):
        adapt(target_modules=["(q_proj"])
    with pytest.raises(ModelError, match=r"linear layers here: k_proj, o_proj, q_proj, v_proj\Z"):
        adapt("mixtral", use_dora=True)  # it fails at the experts, behind the attention


def test_settings_that_peft_refuses_are_an_error():
    with pytest.raises(ModelError, match=r"`layers_to_transform` cannot(.|\n)*linear layers here"):
        adapt(target_modules=[".*q_proj"], layers_to_transform=[0])


@pytest.mark.parametrize(
    ("settings", "left_out"),
    [
        ({}, ""),
        ({"exclude_modules": ["q_proj"]}, "q_proj"),
        ({"exclude_modules": [".*(k_proj|nothing)"]}, "k_proj"),
        ({"layers_to_transform": [1]}, "layers.0"),
    ],
)
def test_routers_of_experts_are_no_linear_layers(settings, left_out):
    """That of Llama 4 derives from nn.Linear and returns a tuple."""
    model = adapt("llama4", **settings)
    modules = adapted_modules(model)
    assert "model.layers.1.feed_forward.shared_expert.up_proj" in modules
    assert not any("router" in m or (left_out and left_out in m) for m in modules)
    loss = reference.backward_step(model, ROWS)
    assert backward_step(model, route_of(model, ROWS), [ROWS]) == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("settings", [{}, {"exclude_modules": [".*in_proj"]}])
def test_layers_that_mamba_reads_past_its_adapters_get_none(settings):
    """PEFT refuses out_proj there: the fast kernels take its weight and not its forward.

    Of dt_proj every forward takes the weight: an adapter would get no gradient.
    """
    model = adapt("mamba", **settings)
    names = {module.rsplit(".", 1)[-1] for module in adapted_modules(model)}
    assert names == {"in_proj", "x_proj"} - ({"in_proj"} if settings else set())
    loss = reference.backward_step(model, ROWS)
    assert backward_step(model, route_of(model, ROWS), [ROWS]) == pytest.approx(loss, rel=1e-5)
    with pytest.raises(ModelError, match=r"out_proj(.|\n)*linear layers here"):
        adapt("mamba", target_modules=["out_proj"])


def test_layers_to_transform_works_with_all_linear():
    modules = adapted_modules(adapt(layers_to_transform=[1]))
    assert len(modules) == len(PROJECTIONS)
    assert all(".1." in m for m in modules)


def test_every_option_reaches_peft():
    settings = LoraConfig(
        r=4,
        lora_alpha=6.0,
        lora_dropout=0.25,
        target_modules=["q_proj", "up_proj"],
        exclude_modules=["layers.0.mlp.up_proj"],
        bias="lora_only",
        use_rslora=True,
        use_dora=True,
        init_lora_weights="gaussian",
        layers_to_transform=[0, 1],
        layers_pattern=["layers"],
        rank_pattern={"up_proj": 2},
        alpha_pattern={"up_proj": 3.0},
    )
    model = add_adapters(tiny_models.build("llama"), RunConfig(lora=settings), FLOAT32)
    got = model.peft_config["default"].to_dict()
    assert got["lora_alpha"] == 6
    assert isinstance(got["lora_alpha"], int)
    for name in ("r", "lora_dropout", "bias", "use_rslora", "use_dora", "init_lora_weights"):
        assert got[name] == getattr(settings, name), name
    for name in ("layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern"):
        assert got[name] == getattr(settings, name), name
    assert set(got["exclude_modules"]) == {"layers.0.mlp.up_proj"}
    assert len(adapted_modules(model)) == 3
    layer = model.get_base_model().model.layers[1].mlp.up_proj
    assert layer.r["default"] == 2
    assert layer.scaling["default"] == pytest.approx(3 / 2**0.5)


def test_the_settings_stay_as_they_are():
    """PEFT adds patterns of its own for Mixtral; a second model must not get them as the user's."""
    lora = LoraConfig()
    for _ in range(2):
        add_adapters(tiny_models.build("mixtral"), RunConfig(lora=lora), FLOAT32)
        assert lora == LoraConfig()


def test_parameters_of_experts_can_be_targets():
    model = adapt("mixtral", target_modules=["q_proj"], target_parameters=["mlp.experts.down_proj"])
    trained = [name for name, _ in trainable_parameters(model)]
    assert any("mlp.experts" in name for name in trained)
    loss = reference.backward_step(model, ROWS)
    route = route_of(model, ROWS)
    assert backward_step(model, route, [ROWS]) == pytest.approx(loss, rel=1e-5)


def test_two_steps_train_every_b():
    model = adapt()
    losses = reference.train(model, [ROWS, ROWS], lr=0.01)
    assert losses[1] < losses[0]
    assert all((p != 0).any() for n, p in trainable_parameters(model) if "lora_B" in n)
