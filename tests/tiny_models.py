"""Tiny random causal language models of many families, built from their configuration.

Weights are drawn wider than transformers' default (std 0.1), so that attention, windows, soft caps
and sinks move the loss by far more than a test's tolerance. Windows are 4 or 5 tokens: any row of
ordinary test length is longer. Imports nothing of ours.
"""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCABULARY = 96

_SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "initializer_range": 0.1}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_FINE_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
_ALTERNATING = ["sliding_attention", "full_attention"]

# name -> (transformers' model_type, settings of its config)
FAMILIES: dict[str, tuple[str, dict]] = {
    "llama": ("llama", _SMALL),
    "llama_tied": ("llama", _SMALL | {"tie_word_embeddings": True}),
    "qwen2": ("qwen2", _SMALL),
    "qwen3": ("qwen3", _SMALL | {"head_dim": 8}),
    "gemma": ("gemma", _SMALL | {"head_dim": 8}),
    "gemma2": (
        "gemma2",
        _SMALL
        | {
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "sliding_window": 4,
            "layer_types": _ALTERNATING,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": (
        "gemma3_text",
        _SMALL
        | {
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "sliding_window": 4,
            "layer_types": _ALTERNATING,
        },
    ),
    "mistral": ("mistral", _SMALL | {"sliding_window": 5, "head_dim": 8}),
    "mixtral": ("mixtral", _SMALL | _EXPERTS),
    "qwen3_moe": ("qwen3_moe", _SMALL | _FINE_EXPERTS | {"head_dim": 8}),
    "olmoe": ("olmoe", _SMALL | _FINE_EXPERTS),
    "dbrx": (
        "dbrx",
        {
            "d_model": 32,
            "n_heads": 4,
            "n_layers": 2,
            "max_seq_len": 256,
            "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        },
    ),
    "gpt_oss": (
        "gpt_oss",
        _SMALL
        | _EXPERTS
        | {
            "head_dim": 8,
            "sliding_window": 4,
            "layer_types": _ALTERNATING,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    "cohere": ("cohere", _SMALL | {"logit_scale": 0.5}),
    "granite": (
        "granite",
        _SMALL | {"logits_scaling": 3.0, "attention_multiplier": 0.5, "residual_multiplier": 0.5},
    ),
    "gpt2": ("gpt2", _GPT2),
    "bloom": ("bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.1}),
    "falcon": ("falcon", _SMALL | {"new_decoder_architecture": False, "multi_query": True}),
    "opt": (
        "opt",
        {
            "hidden_size": 32,
            "ffn_dim": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 256,
            "word_embed_proj_dim": 32,
            "init_std": 0.1,
        },
    ),
    "gpt_neox": ("gpt_neox", _SMALL),
    "phi3": ("phi3", _SMALL | {"sliding_window": 5, "pad_token_id": 0}),
    "olmo2": ("olmo2", _SMALL),
    "mamba": ("mamba", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}),
    "bert": ("bert", _SMALL | {"is_decoder": False}),
    "llama4": ("llama4_text", _SMALL | _EXPERTS | {"head_dim": 8, "attention_chunk_size": 8}),
    "lfm2": ("lfm2", _SMALL | {"layer_types": ["conv", "full_attention"], "block_ff_dim": 48}),
}


def build(
    name: str, *, vocab_size: int = VOCABULARY, seed: int = 0, dropout: float = 0.0, **changes
) -> PreTrainedModel:
    """A random float32 model of the family on the CPU, in eval mode, the same for the same seed.

    `dropout` is that of all places where the family has one. `changes` override settings of the
    config.
    """
    model_type, settings = FAMILIES[name]
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
    settings = special | {"vocab_size": vocab_size} | settings | changes
    config = AutoConfig.for_model(model_type, **_dropouts(model_type, dropout) | settings)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    _move_constants(model)
    return model


def save_folder(name: str, folder: Path | str, *, tokenizer=None, **settings) -> Path:
    """Build the model, save it (and the tokenizer) as a folder that from_pretrained reads."""
    if tokenizer is not None:
        settings.setdefault("vocab_size", len(tokenizer))
    build(name, **settings).save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return Path(folder)


def random_rows(
    lengths, *, vocab_size: int = VOCABULARY, masked: float = 0.5, seed: int = 0
) -> list[tuple[list[int], list[int]]]:
    """Rows (input_ids, labels) of the given lengths with about `masked` of the labels at -100."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for length in lengths:
        ids = torch.randint(3, vocab_size, (length,), generator=generator)
        hidden = torch.rand(length, generator=generator) < masked
        rows.append((ids.tolist(), ids.masked_fill(hidden, -100).tolist()))
    return rows


def _dropouts(model_type: str, dropout: float) -> dict[str, float]:
    defaults = AutoConfig.for_model(model_type).to_dict()
    return {key: dropout for key in defaults if key.endswith(("dropout", "pdrop"))}


def _move_constants(model: PreTrainedModel) -> None:
    """Biases, norms and sinks start at 0 or 1: move them, or an error in them would not show."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
