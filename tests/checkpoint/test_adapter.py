"""An adapter on disk: everything trained is in the file, PEFT loads it, and a lie is found."""

import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from ftrecipes.checkpoint.adapter import WEIGHTS, save_adapter, verify_adapter
from ftrecipes.config.errors import CheckpointError
from ftrecipes.config.schema import LoraConfig, RunConfig
from ftrecipes.model.adapters import add_adapters, trainable_parameters
from ftrecipes.parallel.recompute import recompute
from tests import tiny_models
from tests.checkpoint.alone import ALONE
from tests.model.adapting import FLOAT32, adapt, moved
from tests.reference import row_logits

IDS = [5, 9, 3, 17, 40, 8]
# name -> family, settings of its config, settings of the adapter
VARIANTS = {
    "all linear layers": ("llama", {}, {}),
    "DoRA": ("llama", {}, {"use_dora": True}),
    "all biases": ("llama", {"attention_bias": True}, {"bias": "all"}),
    "biases of adapted layers": (
        "llama",
        {"attention_bias": True},
        {"bias": "lora_only", "target_modules": ["q_proj", "up_proj"]},
    ),
    "GPT-2 with biases": ("gpt2", {}, {"bias": "all", "target_modules": ["c_attn"]}),
    "head trained whole": (
        "llama",
        {},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    ),
    "norms trained whole": (
        "llama",
        {},
        {"target_modules": ["q_proj"], "modules_to_save": ["input_layernorm"]},
    ),
    "mlp trained whole": (
        "llama",
        {},
        {"target_modules": ["q_proj"], "modules_to_save": ["mlp"]},
    ),
    "head and embedding": ("llama", {}, {"target_modules": ["embed_tokens", "lm_head"]}),
    "experts": (
        "mixtral",
        {},
        {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.down_proj"]},
    ),
}


def trained_model(name="all linear layers", *, seed=1) -> PeftModel:
    """An adapted model whose every trainable number has moved."""
    family, settings, lora = VARIANTS[name]
    config = RunConfig(lora=LoraConfig(r=4, **lora))
    model = add_adapters(tiny_models.build(family, **settings), config, FLOAT32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in trainable_parameters(model):
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


@pytest.mark.parametrize("name", VARIANTS)
def test_what_was_trained_is_in_the_file_and_peft_gives_the_same_logits(name, tmp_path):
    model = trained_model(name)
    save_adapter(model, tmp_path, base_name="somewhere/base", **ALONE)
    verify_adapter(model, tmp_path, **ALONE)
    assert len(load_file(tmp_path / WEIGHTS)) == len(list(trainable_parameters(model)))
    family, settings, _ = VARIANTS[name]
    base = tiny_models.build(family, **settings)
    with torch.no_grad():
        before = row_logits(base, IDS)
        loaded = PeftModel.from_pretrained(base, tmp_path).eval()
        # The same operators on the same numbers: not a bit differs.
        assert torch.equal(row_logits(loaded, IDS), row_logits(model, IDS))
    assert (row_logits(model, IDS) - before).abs().max() > 0.1


def test_the_settings_in_the_file_are_those_of_a_finished_adapter(tmp_path):
    model = trained_model("all biases")
    save_adapter(model, tmp_path, base_name="somewhere/base", **ALONE)
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (settings["bias"], settings["r"], settings["inference_mode"]) == ("all", 4, True)
    assert settings["base_model_name_or_path"] == "somewhere/base"
    assert model.peft_config["default"].inference_mode is False


@pytest.mark.parametrize(
    ("method", "settings", "tensors"),
    [
        ("ia3", {}, 6),
        ("prefix", {}, 1),
        ("prefix", {"prefix_projection": True}, 1),
        ("prompt", {}, 1),
        ("llama_adapter", {}, 4),
        ("lora", {"use_rslora": True, "init_lora_weights": "gaussian"}, 28),
    ],
)
def test_every_method_comes_back_as_it_was(method, settings, tensors, tmp_path):
    model = moved(adapt(method, **settings))
    save_adapter(model, tmp_path, base_name="somewhere/base", **ALONE)
    verify_adapter(model, tmp_path, **ALONE)
    file = load_file(tmp_path / WEIGHTS)
    assert len(file) == tensors
    assert all(tensor.any() for tensor in file.values())
    base = tiny_models.build("llama")
    with torch.no_grad():
        before = row_logits(base, IDS)
        loaded = PeftModel.from_pretrained(base, tmp_path).eval()
        after, live = row_logits(loaded, IDS), row_logits(model, IDS)
        # a network has made the prefix once for the file and once for the live model
        torch.testing.assert_close(after, live, rtol=1e-5, atol=1e-5)
    assert (live[-len(before) :] - before).abs().max() > 0.01


@pytest.mark.parametrize("settings", [{}, {"prefix_projection": True}])
def test_another_prefix_in_the_file_is_found(settings, tmp_path):
    model = moved(adapt("prefix", **settings))
    save_adapter(model, tmp_path, base_name="base", **ALONE)
    tensors = load_file(tmp_path / WEIGHTS)
    tensors["prompt_embeddings"][0, 0] += 1
    save_file(tensors, tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError, match="prompt_embeddings: other values"):
        verify_adapter(model, tmp_path, **ALONE)


@pytest.mark.parametrize("name", ["all linear layers", "norms trained whole"])
def test_wrapped_blocks_leave_no_trace_in_the_names(name, tmp_path):
    """Case A03. PEFT by itself would leave out norms that are trained whole in a wrapped block."""
    model = trained_model(name)
    save_adapter(model, tmp_path, base_name="base", **ALONE)
    plain = load_file(tmp_path / WEIGHTS)
    blocks = model.get_base_model().model.layers
    recompute(model, [blocks[0]])
    blocks[1] = torch.compile(blocks[1])
    assert any("_orig_mod" in name for name in model.state_dict())
    for folder in (tmp_path / "best", tmp_path / "last"):
        folder.mkdir()
        save_adapter(model, folder, base_name="base", **ALONE)
        verify_adapter(model, folder, **ALONE)
        file = load_file(folder / WEIGHTS)
        assert file.keys() == plain.keys()
        assert all(torch.equal(file[name], plain[name]) and file[name].any() for name in file)


def test_wrapped_parts_of_what_is_trained_whole_leave_no_trace_either(tmp_path):
    """PEFT by itself looks for them where they would be without the wrapper."""
    model = trained_model("mlp trained whole")
    save_adapter(model, tmp_path, base_name="base", **ALONE)
    plain = (tmp_path / WEIGHTS).read_bytes()
    whole = [block.mlp.modules_to_save["default"] for block in model.get_base_model().model.layers]
    recompute(model, [whole[0].up_proj, whole[1].up_proj, model.get_base_model().model.layers[1]])
    save_adapter(model, tmp_path, base_name="base", **ALONE)
    verify_adapter(model, tmp_path, **ALONE)
    assert (tmp_path / WEIGHTS).read_bytes() == plain


def drop_tensor(tensors):
    del tensors["base_model.model.model.layers.1.mlp.up_proj.lora_B.weight"]
    return "layers.1.mlp.up_proj.lora_B.weight: trained, but not in the file"


def flip_bit(tensors):
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    tensors[name].view(torch.int32)[0, 0] ^= 1
    return "q_proj.lora_A.weight: other values in the file than in the model"


def halve(tensors):
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    tensors[name] = tensors[name].half()
    return "torch.float16 in the file"


def turn(tensors):
    name = "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"
    tensors[name] = tensors[name].T.contiguous()
    return "(32, 4) torch.float32 in the file, (4, 32) torch.float32 in the model"


def add_tensor(tensors):
    tensors["base_model.model.model.layers.9.mlp.up_proj.lora_A.weight"] = torch.ones(1)
    return "layers.9.mlp.up_proj.lora_A.weight: in the file, but not in the model"


def name_by_wrapper(tensors):
    for name in list(tensors):
        tensors[f"_orig_mod.{name}"] = tensors.pop(name)
    return "trained, but not in the file"


@pytest.mark.parametrize("spoil", [drop_tensor, flip_bit, halve, turn, add_tensor, name_by_wrapper])
def test_a_file_that_is_not_what_was_trained_is_refused(spoil, tmp_path):
    model = trained_model()
    save_adapter(model, tmp_path, base_name="base", **ALONE)
    tensors = load_file(tmp_path / WEIGHTS)
    message = spoil(tensors)
    save_file(tensors, tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError) as caught:
        verify_adapter(model, tmp_path, **ALONE)
    assert message in str(caught.value)


def test_what_peft_leaves_out_is_found(tmp_path):
    """A parameter outside the adapter that is trained all the same: PEFT would not save it."""
    model = trained_model()
    model.get_base_model().model.norm.weight.requires_grad_(True)
    save_adapter(model, tmp_path, base_name="base", **ALONE)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight: trained, but not in the file"):
        verify_adapter(model, tmp_path, **ALONE)
