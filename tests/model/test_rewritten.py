"""PiSSA and OLoRA: the start is the base model, and the saved adapter gives the live logits."""

import json
from dataclasses import replace

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from ftrecipes.checkpoint.adapter import WEIGHTS, save_adapter, verify_adapter
from ftrecipes.config.errors import CheckpointError, ModelError
from ftrecipes.config.schema import QuantizationConfig
from ftrecipes.model.adapters import add_adapters, rehearse_adapters, trainable_parameters
from tests import reference, tiny_models
from tests.checkpoint.alone import ALONE
from tests.model.adapting import FLOAT32, adapt, method_config, moved
from tests.model.routes import backward_step, route_of

IDS = [5, 9, 3, 17, 40, 8]
ROWS = tiny_models.random_rows([17, 9, 9])
PATTERNS = {
    "rank_pattern": {"q_proj": 2, "layers.1.mlp.up_proj": 8},
    "alpha_pattern": {"v_proj": 5.0},
}
# name -> (family, initialisation, settings)
VARIANTS = {
    "pissa": ("llama", "pissa", {}),
    "olora": ("llama", "olora", {}),
    "patterns": ("llama", "pissa", PATTERNS),
    "rsLoRA": ("llama", "olora", PATTERNS | {"use_rslora": True}),
    "odd alpha": ("llama", "pissa", {"lora_alpha": 7.5, "r": 3}),
    "DoRA": ("llama", "pissa", {"use_dora": True}),
    "head and its whole": ("llama", "pissa", {"modules_to_save": ["embed_tokens"]}),
    "tied head": ("llama_tied", "pissa", {"target_modules": ["q_proj", "lm_head"]}),
    "tied head, OLoRA": ("llama_tied", "olora", {"target_modules": ["q_proj", "lm_head"]}),
    "biases": ("qwen2", "olora", {"bias": "all"}),
    "transposed": ("gpt2", "pissa", {"bias": "lora_only"}),
    "transposed OLoRA": ("gpt2", "olora", {}),
}


def variant(name: str, **more) -> tuple[str, PeftModel]:
    family, init, settings = VARIANTS[name]
    return family, adapt("lora", family, init_lora_weights=init, **settings, **more)


@pytest.mark.parametrize("name", VARIANTS)
def test_saved_it_is_plain_lora_on_the_unchanged_base(name, tmp_path):
    family, model = variant(name)
    plain = tiny_models.build(family)
    with torch.no_grad():
        start = reference.row_logits(plain, IDS)
        # float32 decompositions of small matrices: a few of the 24 bits
        torch.testing.assert_close(reference.row_logits(model, IDS), start, rtol=1e-4, atol=1e-5)
        live = reference.row_logits(moved(model), IDS)
    assert (live - start).abs().max() > 0.1
    save_adapter(model, tmp_path, base_name="base", **ALONE)
    verify_adapter(model, tmp_path, **ALONE)
    with torch.no_grad():
        loaded = PeftModel.from_pretrained(tiny_models.build(family), tmp_path).eval()
        torch.testing.assert_close(reference.row_logits(loaded, IDS), live, rtol=1e-4, atol=1e-5)
    assert model.peft_config["default"].init_lora_weights == VARIANTS[name][1]  # still, for more


def test_the_file_says_twice_the_rank_and_the_same_scale(tmp_path):
    _, model = variant("patterns")
    save_adapter(model, tmp_path, base_name="base", **ALONE)
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"], settings["init_lora_weights"]) == (8, 64, True)
    assert settings["rank_pattern"] == {"q_proj": 4, "layers.1.mlp.up_proj": 16}
    assert settings["alpha_pattern"] == {"v_proj": 10.0}
    assert len(load_file(tmp_path / WEIGHTS)) == len(list(trainable_parameters(model)))


def test_training_is_that_of_the_reference():
    _, model = variant("pissa")
    loss = reference.backward_step(model, ROWS)
    expected = reference.gradients(model)
    assert backward_step(model, route_of(model, ROWS), [ROWS]) == pytest.approx(loss, rel=1e-5)
    for name, gradient in reference.gradients(model).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=1e-6, msg=name)


@pytest.mark.parametrize("column", [0, -1])
def test_a_lie_in_either_half_is_found(column, tmp_path):
    _, model = variant("pissa")
    save_adapter(moved(model), tmp_path, base_name="base", **ALONE)
    tensors = load_file(tmp_path / WEIGHTS)
    tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"][0, column] += 1
    save_file(tensors, tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"q_proj\.lora_B\.weight: other values"):
        verify_adapter(model, tmp_path, **ALONE)


def test_half_of_the_rank_is_found(tmp_path):
    """As if it had been saved without what the base lost."""
    _, model = variant("pissa")
    save_adapter(model, tmp_path, base_name="base", **ALONE)
    tensors = load_file(tmp_path / WEIGHTS)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    tensors[name] = tensors[name][:4].contiguous()
    save_file(tensors, tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"q_proj.lora_A.weight: \(2, 32\)"):
        verify_adapter(model, tmp_path, **ALONE)


@pytest.mark.parametrize("trainable", ["float32", "bfloat16"])
@pytest.mark.parametrize("init", ["pissa", "olora"])
def test_only_the_base_is_rounded(init, trainable, tmp_path):
    """In bfloat16 a rewritten weight is off by at most half a unit in the last of its 8 bits."""
    precision = replace(FLOAT32, base="bfloat16", trainable=trainable)
    plain = tiny_models.build("llama").to(torch.bfloat16)
    weight = plain.model.layers[0].self_attn.q_proj.weight.detach().float()
    model = add_adapters(plain, method_config("lora", init_lora_weights=init), precision)
    save_adapter(moved(model), tmp_path, base_name="base", **ALONE)
    verify_adapter(model, tmp_path, **ALONE)
    layer = model.get_base_model().model.layers[0].self_attn.q_proj
    loaded = PeftModel.from_pretrained(tiny_models.build("llama"), tmp_path)
    change = loaded.get_base_model().model.layers[0].self_attn.q_proj.get_delta_weight("default")
    live = layer.scaling["default"] * (
        layer.lora_B["default"].weight.float() @ layer.lora_A["default"].weight.float()
    )
    rewritten = layer.get_base_layer().weight.float()
    error = (weight + change - rewritten - live).abs()
    assert (error <= 2**-8 * rewritten.abs() + 1e-5).all()


def test_a_rounded_base_is_a_warning(caplog):
    config = method_config("lora", init_lora_weights="pissa")
    add_adapters(tiny_models.build("llama").to(torch.bfloat16), config, FLOAT32)
    assert "pissa rewrites base weights in bfloat16" in caplog.text
    caplog.clear()
    variant("pissa")
    assert not caplog.text


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        ("llama", {"target_modules": ["embed_tokens", "q_proj"]}, "embed_tokens, of Embedding"),
        ("llama", {"r": 20}, r"r = 20, and (.|\n)*expected: at most 16"),
        ("mixtral", {}, "only linear layers can start so.\n  got: (.*), of Mixtral"),
    ],
)
def test_what_can_not_be_initialised_so_is_found_on_a_sketch(family, settings, message):
    with torch.device("meta"):
        sketch = type(tiny_models.build(family))(tiny_models.build(family).config)
    config = method_config("lora", **{"init_lora_weights": "pissa"} | settings)
    with pytest.raises(ModelError, match=message):
        rehearse_adapters(sketch, config, FLOAT32)


def test_a_quantized_base_is_an_error():
    config = method_config("lora", init_lora_weights="olora")
    config = replace(config, quantization=QuantizationConfig(method="4bit"))
    with pytest.raises(ModelError, match=r"olora(.|\n)*4bit"):
        add_adapters(tiny_models.build("llama"), config, FLOAT32)
