"""Units of models: of nearly every family of transformers, without weights."""

from collections import Counter

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM

from ftrecipes.config.errors import ModelError
from ftrecipes.model.units import find_blocks
from ftrecipes.parallel.recompute import recompute, without_wrapper
from ftrecipes.parallel.wrap import Unit, blocks_of, lora_aware_wrap_policy
from tests import tiny_families, tiny_models

# Their blocks are not the list that `find_blocks` takes, or are more than that.
SHARED = {"zamba", "zamba2"}  # blocks that share weights are in the root, but for their own parts
BESIDE = {"gemma3", "git", "got_ocr2", "moss_transcribe_diarize", "phi4_multimodal", "xlm"}
NO_LIST = {"blt", "hrm_text", "longcat_flash"}  # the config counts otherwise


def on_meta(model_type: str) -> nn.Module:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(tiny_families.small_config(model_type))


def kinds(units: tuple[Unit, ...]) -> list[str]:
    return [unit.kind for unit in units]


def own_parameters(units: tuple[Unit, ...]) -> list[list[nn.Parameter]]:
    """Of each unit, without those of units before it."""
    taken, found = set(), []
    for unit in units:
        own = [p for m in unit.modules for p in set(m.parameters()) if p not in taken]
        taken |= set(own)
        found.append(own)
    return found


@pytest.mark.parametrize("model_type", tiny_families.TYPES)
def test_blocks_of_every_family(model_type):
    model = on_meta(model_type)
    units = lora_aware_wrap_policy(model)
    blocks = blocks_of(units)
    if model_type in NO_LIST:
        assert len(blocks) > 1
    elif model_type in BESIDE:
        assert set(find_blocks(model)) < set(blocks)
    elif model_type in SHARED:
        assert {part for block in find_blocks(model) for part in block.modules()} > set(blocks)
        assert blocks
    else:
        assert blocks == list(find_blocks(model))
    modules = [module for unit in units[:-1] for module in unit.modules]
    counts = Counter(p for module in modules for p in module.parameters())
    assert max(counts.values()) == 1, "a parameter is in two units, or one unit in another"
    inside = {part for module in modules for part in module.modules()}
    outside = [m.parameters(recurse=False) for m in model.modules() if m not in inside]
    assert counts.keys().isdisjoint(p for own in outside for p in own), "in a unit and in the root"
    assert units[-1] == Unit("", "root", (model,))


def test_llama_by_hand():
    model = tiny_models.build("llama")
    units = lora_aware_wrap_policy(model)
    names = ["model.layers.0", "model.layers.1", "model.embed_tokens", "lm_head", ""]
    assert [unit.name for unit in units] == names
    assert kinds(units) == ["block", "block", "embedding", "head", "root"]
    assert own_parameters(units)[-1] == [model.model.norm.weight]


def test_tied_embeddings_stay_in_the_root():
    model = tiny_models.build("llama_tied")
    units = lora_aware_wrap_policy(model)
    assert kinds(units) == ["block", "block", "root"]
    assert set(own_parameters(units)[-1]) == {model.lm_head.weight, model.model.norm.weight}


def test_adapters_are_inside_of_the_units():
    """Also those of embedding and head, whose unit is the layer of PEFT."""
    targets = ["q_proj", "embed_tokens", "lm_head"]
    settings = LoraConfig(r=2, target_modules=targets, task_type="CAUSAL_LM")
    model = get_peft_model(tiny_models.build("llama"), settings)
    units = lora_aware_wrap_policy(model)
    assert kinds(units) == ["block", "block", "embedding", "head", "root"]
    assert units[-1].modules == (model,)
    own = own_parameters(units)
    assert [sum(p.requires_grad for p in parameters) for parameters in own] == [2, 2, 2, 2, 0]
    assert all(model.get_submodule(unit.name) is unit.modules[0] for unit in units)


def test_recomputed_blocks_are_units_with_their_wrapper():
    model = tiny_models.build("llama")
    before = lora_aware_wrap_policy(model)
    recompute(model, blocks_of(before))
    after = lora_aware_wrap_policy(model)
    assert [unit.name for unit in after] == [unit.name for unit in before]
    assert blocks_of(after) != blocks_of(before)
    assert [without_wrapper(block) for block in blocks_of(after)] == blocks_of(before)


def test_a_table_as_large_as_a_block_is_gathered_alone():
    model = on_meta("gemma3n_text")
    with torch.device("meta"):
        model.model.embed_tokens_per_layer = nn.Embedding(10**6, 64)
    tables = [unit.name for unit in lora_aware_wrap_policy(model) if unit.kind == "embedding"]
    assert "model.embed_tokens_per_layer" in tables


def test_classes_that_are_asked_for_win():
    model = tiny_models.build("llama")
    units = lora_aware_wrap_policy(model, ["LlamaMLP", "LlamaAttention"])
    assert [type(block).__name__ for block in blocks_of(units)] == 2 * [
        "LlamaAttention",
        "LlamaMLP",
    ]


def test_classes_that_match_nothing_name_those_there_are():
    model = tiny_models.build("llama")
    with pytest.raises(ModelError, match=r"wrap_classes GPTBlock\n.*LlamaDecoderLayer \(2\)"):
        lora_aware_wrap_policy(model, ["GPTBlock"])


def test_a_model_without_any_blocks():
    model = tiny_models.build("llama", num_hidden_layers=1)
    model.model.layers = nn.ModuleList([nn.Linear(2, 2)])
    with pytest.raises(ModelError, match="can not be told"):
        lora_aware_wrap_policy(model)
