"""What is attention, mlp and norm in nearly every family of transformers, without weights."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from ftrecipes.config.errors import ConfigError
from ftrecipes.config.targets import read_target
from ftrecipes.model.module_names import canonical_name
from ftrecipes.parallel.recompute import recompute
from ftrecipes.parallel.targets import Selected, select
from ftrecipes.parallel.wrap import Unit, blocks_of, lora_aware_wrap_policy
from tests import reference, tiny_families, tiny_models

ROLES = ("attention", "mlp", "norm")
# type -> why its blocks have no mlp
NO_MLP = {
    **dict.fromkeys(
        ["bart", "bigbird_pegasus", "biogpt", "blenderbot", "blenderbot-small", "marian", "mbart",
         "mvp", "opt", "pegasus", "plbart", "trocr", "whisper", "xglm"],
        "its blocks compute fc1 and fc2 themselves"),
    **dict.fromkeys(["falcon_mamba", "mamba", "mamba2"], "a mixer is all that a block has"),
    **dict.fromkeys(["zamba", "zamba2"], "blocks share it, and are cut down to what is their own"),
    "ctrl": "it is an nn.Sequential, which says nothing",
}  # fmt: skip
NO_NORM = {"xlm": "norms are beside its blocks, which are attentions and mlps"}
# Roles that some blocks have none of.
SOME = {
    "blt": {"mlp"},  # its cross attentions are blocks
    "gemma3": {"attention", "mlp", "norm"},  # the embeddings of its vision part are a block
    "moss_transcribe_diarize": {"mlp"},  # the blocks that hear compute fc1 and fc2 themselves
    "nemotron_h": {"attention", "mlp"},  # a block is one or the other
    "xlm": {"attention", "mlp"},
}


def on_meta(model_type: str) -> nn.Module:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(tiny_families.small_config(model_type))


def found(model: nn.Module, role: str) -> tuple[Selected, ...]:
    try:
        return select(model, blocks_of(lora_aware_wrap_policy(model)), read_target(role))
    except ConfigError:
        return ()


def without(model_type: str) -> set[str]:
    """The roles that there are none of."""
    return {role for role, types in (("mlp", NO_MLP), ("norm", NO_NORM)) if model_type in types}


def plain(units: tuple[Unit, ...]) -> list[tuple[str, str]]:
    return [(canonical_name(f"{unit.name}."), unit.kind) for unit in units]


@pytest.mark.parametrize("model_type", tiny_families.TYPES)
def test_roles_of_every_family(model_type):
    """They are in each block, never inside of each other, and no name or unit tells of them."""
    model = on_meta(model_type)
    units = lora_aware_wrap_policy(model)
    names, keys = [name for name, _ in model.named_parameters()], list(model.state_dict())
    by_role = {role: found(model, role) for role in ROLES}
    assert {role for role, modules in by_role.items() if not modules} == without(model_type)
    blocks = [set(block.modules()) for block in blocks_of(units)]
    for role, modules in by_role.items():
        somewhere = {part.module for part in modules}
        in_each = all(block & somewhere for block in blocks)
        assert in_each == (role not in without(model_type) | SOME.get(model_type, set())), role

    target = dict.fromkeys([role for role, modules in by_role.items() if modules], "all")
    selected = select(model, blocks_of(units), target)
    inside = {part for one in selected for part in one.module.modules() if part is not one.module}
    assert inside.isdisjoint(one.module for one in selected)
    assert [model.get_submodule(one.name) for one in selected] == [one.module for one in selected]
    recompute(model, [one.module for one in selected])
    assert plain(lora_aware_wrap_policy(model)) == plain(units)
    assert [canonical_name(name) for name, _ in model.named_parameters()] == names
    assert list(model.state_dict()) == keys


def test_every_type_is_seen():
    assert len(tiny_families.TYPES) >= 190
    assert NO_MLP.keys() | NO_NORM.keys() | SOME.keys() <= set(tiny_families.TYPES)


@pytest.mark.parametrize(
    ("model_type", "role", "names"),
    [
        ("bert", "attention", ["attention"]),
        ("bert", "mlp", ["intermediate", "output"]),
        ("bert", "norm", ["attention.output.LayerNorm", "output.LayerNorm"]),
        ("dbrx", "attention", ["norm_attn_norm.attn"]),
        ("dbrx", "norm", ["norm_attn_norm.norm_1", "norm_attn_norm.norm_2"]),
        ("falcon_h1", "attention", ["mamba", "self_attn"]),
        ("granitemoehybrid", "mlp", ["block_sparse_moe", "shared_mlp"]),
        ("longcat_flash", "mlp", ["mlp", "mlps.0", "mlps.1"]),
        ("mixtral", "mlp", ["mlp"]),
        ("axk2", "mlp", ["mlp"]),  # its norms have a gate that is an mlp
        ("qwen3", "norm", ["self_attn.q_norm", "self_attn.k_norm", "input_layernorm",
            "post_attention_layernorm"]),
    ],
)  # fmt: skip
def test_roles_by_hand(model_type, role, names):
    model = on_meta(model_type)
    block = lora_aware_wrap_policy(model)[0].name
    selected = select(model, blocks_of(lora_aware_wrap_policy(model)), {role: [0]})
    assert [one.name for one in selected] == [f"{block}.{name}" for name in names]


# name -> (type, settings), dropout aside; what shares keys and values over blocks is among them
SAMPLE = {
    **{name: (name, {}) for name in (
        "llama", "qwen3", "gpt2", "mixtral", "qwen3_moe", "falcon", "bloom", "opt", "jamba",
        "mamba", "bert", "gemma2", "llama4_text", "hrm_text", "recurrent_gemma", "zamba2")},
    "gemma3n_text": ("gemma3n_text", {"num_kv_shared_layers": 2}),
}  # fmt: skip
ROWS = tiny_models.random_rows((13, 6))


def built(name: str, dropout: float) -> nn.Module:
    model_type, settings = SAMPLE[name]
    config = tiny_families.small_config(model_type)
    for key, value in config.to_dict().items():
        if key.endswith(("dropout", "pdrop", "dropout_prob")) and isinstance(value, float):
            setattr(config, key, dropout)
    for key, value in settings.items():
        setattr(config, key, value)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    reference.backward_step(model, ROWS)
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {canonical_name(name): grad for name, grad in grads.items()}


@pytest.mark.parametrize(
    ("name", "dropout"), [*((name, 0.3) for name in SAMPLE), ("llama", 0.0), ("gpt2", 0.0)]
)
def test_roles_change_no_gradient(name, dropout):
    """Bit-equal: the same kernels on the same numbers, the random ones included."""
    expected = gradients(built(name, dropout))
    for role in ("block", *ROLES):
        model = built(name, dropout)
        selected = found(model, role)
        recompute(model, [one.module for one in selected])
        grads = gradients(model)
        assert grads.keys() == expected.keys()
        assert all(grads[key].equal(expected[key]) for key in grads), role
