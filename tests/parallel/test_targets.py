"""What a target selects, adapters or not, and what is said of one that can not be."""

import pytest
import torch
from peft import IA3Config, LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from transformers.integrations.bitsandbytes import replace_with_bnb_linear

from ftrecipes.config.errors import ConfigError
from ftrecipes.config.targets import read_target
from ftrecipes.model.module_names import canonical_name
from ftrecipes.parallel.recompute import Recomputed, recompute, without_wrapper
from ftrecipes.parallel.targets import Selected, in_words, select
from ftrecipes.parallel.wrap import blocks_of, lora_aware_wrap_policy
from tests import reference, tiny_families, tiny_models

ROWS = tiny_models.random_rows((7, 5))


def selected(model: nn.Module, target: object = None, **settings) -> tuple[Selected, ...]:
    target = None if target is None else read_target(target)
    return select(model, blocks_of(lora_aware_wrap_policy(model)), target, **settings)


def faults(model: nn.Module, target: object) -> list[str]:
    with pytest.raises(ConfigError) as error:
        selected(model, target)
    return error.value.faults


@pytest.fixture(scope="module")
def llama() -> nn.Module:
    return tiny_models.build("llama", num_hidden_layers=5)


MLPS = "model.layers.{0-4}.mlp (LlamaMLP)"
BLOCKS = "model.layers.{0-4} (LlamaDecoderLayer)"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (None, BLOCKS),
        ("[]", BLOCKS),
        ("block", BLOCKS),
        ("LlamaMLP", MLPS),
        ("transformers.models.llama.modeling_llama.LlamaMLP", MLPS),
        ("model.layers.*.mlp", MLPS),
        ("*.mlp", MLPS),
        ("mlp", MLPS),
        ("LLAMAmlp", MLPS),
        ("MLP", MLPS),  # the role but for its case
        ("GradientCheckpointingLayer", BLOCKS),  # a class that the blocks inherit from
        ("model.layers.*", BLOCKS),  # a star stands for dots too: the outermost that match
        ("model.layers.3", "model.layers.3 (LlamaDecoderLayer)"),
        ("model.layers.[13].mlp", "model.layers.{1,3}.mlp (LlamaMLP)"),
        ({"mlp": 2}, "model.layers.{0,1}.mlp (LlamaMLP)"),
        ({"model.layers.*.mlp": [-1, 1]}, "model.layers.{1,4}.mlp (LlamaMLP)"),
        (
            '{"attention": "first-2, last-1", "mlp": [1]}',
            "model.layers.{0,1,4}.self_attn (LlamaAttention), model.layers.1.mlp (LlamaMLP)",
        ),
        (
            {"block": [0, 1], "attention": "last-1"},
            "model.layers.{0,1} (LlamaDecoderLayer), model.layers.4.self_attn (LlamaAttention)",
        ),
        (
            "*.mlp.*_proj",
            "model.layers.{0-4}.mlp.gate_proj (Linear), model.layers.{0-4}.mlp.up_proj (Linear), "
            "model.layers.{0-4}.mlp.down_proj (Linear)",
        ),
        ({}, ""),
        ({"attention": 0}, ""),
    ],
)
def test_what_is_selected(llama, target, words):
    assert in_words(selected(llama, target)) == words


def test_a_class_by_where_it_is_imported_from(llama):
    """torch.nn.Linear is written elsewhere."""
    assert selected(llama, "torch.nn.Linear") == selected(llama, "Linear")
    assert len(selected(llama, "Linear")) == 5 * 7


@pytest.mark.parametrize(("every_n", "blocks"), [(0, "{0-4}"), (1, "{0-4}"), (2, "{0,2,4}")])
def test_every_nth_block(llama, every_n, blocks):
    words = in_words(selected(llama, every_n=every_n))
    assert words == f"model.layers.{blocks} (LlamaDecoderLayer)"
    assert in_words(selected(llama, every_n=9)) == "model.layers.0 (LlamaDecoderLayer)"


def test_the_order_is_that_of_the_model(llama):
    names = [one.name.split("layers.")[1] for one in selected(llama, {"mlp": [4, 0], "norm": [2]})]
    assert names == ["0.mlp", "2.input_layernorm", "2.post_attention_layernorm", "4.mlp"]


def test_norms_inside_of_what_is_selected_too_go_with_it():
    model = tiny_models.build("qwen3")
    assert "self_attn.q_norm" in in_words(selected(model, "norm"))
    assert "self_attn.q_norm" not in in_words(selected(model, "norm, attention"))
    some = in_words(selected(model, {"norm": "all", "attention": [0]}))
    assert "model.layers.1.self_attn.q_norm (Qwen3RMSNorm)" in some


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("lamaMLP", ["lamaMLP matches nothing", "LlamaAttention", "did you mean LlamaMLP?"]),
        ("atention", ["did you mean attention?", "expected: block, attention, mlp, norm, "]),
        ("model.layers.*.self_atn", ["did you mean model.layers.*.self_attn?"]),
        ("model.layers.7.mlp", ["model.layers.7.mlp matches nothing"]),
        ("transformers.LlamaMLP", ["matches nothing", "did you mean LlamaMLP?"]),
        ("lm_head", ["matches lm_head only, in no block of LlamaForCausalLM"]),
        ("Embedding", ["matches model.embed_tokens only, in no block"]),
        ("LlamaForCausalLM", ["matches LlamaForCausalLM only, in no block"]),
        ("model.layers", ["model.layers matches nothing"]),  # a list computes nothing itself
        ({"mlp": "range-5-99"}, ["mlp: range-5-99", "0 to 4"]),
        ({"mlp": [7]}, ["mlp: there is no block 7", "0 to 4"]),
        (
            "block, attention",
            ["model.layers.0.self_attn (attention) is inside of model.layers.0 (block)"],
        ),
        ({"mlp": "all", "block": [3]}, ["layers.3.mlp (mlp) is inside of model.layers.3 (block)"]),
        ("mlp, LlamaMLP", ["layers.0.mlp (LlamaMLP) is model.layers.0.mlp (mlp)"]),
        ("norm, LlamaRMSNorm", ["(LlamaRMSNorm) is model.layers.0.input_layernorm (norm)"]),
        ("mlp, Linear", ["model.layers.0.mlp.gate_proj (Linear) is inside of model.layers.0.mlp"]),
        ({"model.layers.2.mlp": [0, 1]}, ["in these blocks", "got: blocks 0,1", "have one: 2"]),
    ],
)
def test_what_can_not_be(llama, target, parts):
    (fault,) = faults(llama, target)
    assert fault.startswith("--activation_checkpointing.target: ")
    assert [part for part in parts if part not in fault] == []


def test_all_faults_at_once(llama):
    found = faults(llama, {"block": 1, "attention": 2, "mlp": [9], "lamaMLP": "all", "norm": 1})
    expected = ["no block 9", "lamaMLP", "self_attn (attention) is inside", "layernorm (norm) is"]
    assert len(found) == len(expected)
    assert all(part in fault for part, fault in zip(expected, found, strict=True))


def test_blocks_of_several_kinds():
    """A hybrid has attention in some blocks only."""
    model = tiny_models.build(
        "lfm2", num_hidden_layers=4, layer_types=["conv", "full_attention"] * 2
    )
    assert in_words(selected(model, {"Lfm2Attention": "last-1"})).startswith("model.layers.3.")
    (fault,) = faults(model, {"Lfm2Attention": [0, 2]})
    assert "there is no Lfm2Attention in these blocks" in fault
    assert "some of the blocks that have one: 1,3" in fault


def test_blocks_without_an_mlp_say_so():
    (fault,) = faults(tiny_models.build("opt"), "mlp")
    assert "mlp matches nothing in OPTForCausalLM" in fault
    assert "expected: block, attention, norm, OPTDecoderLayer" in fault


def test_a_block_in_several_places_is_selected_once():
    model = tiny_models.build("llama", num_hidden_layers=3)
    model.model.layers[2] = model.model.layers[0]
    assert in_words(selected(model, "block")) == "model.layers.{0,1} (LlamaDecoderLayer)"
    assert in_words(selected(model, {"attention": [1], "model.layers.0.mlp": "all"})) == (
        "model.layers.0.mlp (LlamaMLP), model.layers.1.self_attn (LlamaAttention)"
    )


def test_blocks_that_share_weights_and_lists_beside_each_other():
    with torch.device("meta"):
        zamba, git = (
            AutoModelForCausalLM.from_config(tiny_families.small_config(name))
            for name in ("zamba", "git")
        )
    assert in_words(selected(zamba, "attention")) == (
        "model.layers.{0,1}.mamba (ZambaMambaMixer), "
        "model.layers.{2,3}.mamba_decoder.mamba (ZambaMambaMixer)"
    )
    assert in_words(selected(git, "attention")) == (
        "git.image_encoder.vision_model.encoder.layers.{0-3}.self_attn (GitVisionAttention), "
        "git.encoder.layer.{0-3}.attention (GitAttention)"
    )


LORA = {"r": 2, "lora_dropout": 0.3, "task_type": "CAUSAL_LM"}
ADAPTERS = {
    "LoRA": ("llama", LoraConfig(target_modules="all-linear", **LORA)),
    "DoRA": ("llama", LoraConfig(target_modules="all-linear", use_dora=True, **LORA)),
    "IA3": ("llama", IA3Config(target_modules=["k_proj", "down_proj"],
        feedforward_modules=["down_proj"], task_type="CAUSAL_LM")),
    "trained whole": ("llama", LoraConfig(target_modules=["q_proj"],
        modules_to_save=["mlp", "input_layernorm"], **LORA)),
    "experts": ("mixtral", LoraConfig(target_modules=["q_proj"], r=2, task_type="CAUSAL_LM",
        target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])),
}  # fmt: skip
TARGETS = ("block", "attention", "mlp", "norm", "Linear", "*.self_attn.?_proj", "*.mlp.*")


def adapted(name: str) -> nn.Module:
    family, settings = ADAPTERS[name]
    torch.manual_seed(0)
    return get_peft_model(tiny_models.build(family), settings).train()


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    reference.backward_step(model, ROWS)
    grads = ((canonical_name(name), p.grad) for name, p in model.named_parameters())
    return {name: grad for name, grad in grads if grad is not None}


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_change_no_name_and_are_inside(name):
    """The same modules as without them, and the same gradients (bit for bit: the same kernels)."""
    base, expected = tiny_models.build(ADAPTERS[name][0]), gradients(adapted(name))
    for target in TARGETS:
        model = adapted(name)
        found = selected(model, target)
        assert in_words(found) == in_words(selected(base, target))
        recompute(model, [one.module for one in found])
        assert in_words(selected(model, target)) == in_words(found)
        grads = gradients(model)
        assert grads.keys() == expected.keys()
        assert all(grads[key].equal(expected[key]) for key in grads), target
        wrappers = [n for n, module in model.named_modules() if isinstance(module, Recomputed)]
        assert len(wrappers) == len(found)
        assert not any("original_module" in path for path in wrappers), "what is not computed"


def test_quantized_layers_are_found_by_the_class_they_stand_for():
    with torch.device("meta"):
        model = tiny_models.build("llama")
        quantized = replace_with_bnb_linear(
            model, ["lm_head"], BitsAndBytesConfig(load_in_4bit=True)
        )
    quantized = get_peft_model(quantized, LoraConfig(target_modules=["q_proj"], **LORA))
    assert len(selected(quantized, "Linear")) == len(selected(quantized, "Linear4bit")) == 2 * 7
    words = in_words(selected(quantized, "*.q_proj"))
    assert words == "model.layers.{0,1}.self_attn.q_proj (Linear4bit)"


def test_wrapped_modules_are_found_again():
    model = tiny_models.build("llama")
    before = selected(model, "attention, mlp")
    recompute(model, [one.module for one in before])
    after = selected(model, "attention, mlp")
    assert [one.name for one in after] == [one.name for one in before]
    assert [without_wrapper(one.module) for one in after] == [one.module for one in before]
