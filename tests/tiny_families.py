"""Nearly every causal language model of transformers, shrunk to a few thousand random weights.

The settings are the union of what small configs of all families need; each config takes those it
knows, and OWN adds what a family needs beyond that. Imports nothing of ours.
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests import tiny_models

LAYERS = 4
SMALL = {
    **dict.fromkeys(["hidden_size", "n_embd", "d_model", "embedding_size"], 64),
    "word_embed_proj_dim": 64,
    **dict.fromkeys(["num_hidden_layers", "n_layer", "num_layers"], LAYERS),
    **dict.fromkeys(["encoder_layers", "decoder_layers"], 2),
    **dict.fromkeys(["num_attention_heads", "n_head"], 4),
    **dict.fromkeys(["encoder_attention_heads", "decoder_attention_heads"], 4),
    **dict.fromkeys(["intermediate_size", "ffn_dim", "d_ff"], 96),
    **dict.fromkeys(["encoder_ffn_dim", "decoder_ffn_dim"], 96),
    **dict.fromkeys(["max_position_embeddings", "n_positions"], 256),
    **dict.fromkeys(["num_experts", "num_local_experts", "n_routed_experts"], 4),
    **dict.fromkeys(["moe_intermediate_size", "shared_expert_intermediate_size"], 48),
    **dict.fromkeys(["n_group", "num_expert_group", "topk_group", "first_k_dense_replace"], 1),
    **dict.fromkeys(["num_key_value_heads", "num_experts_per_tok", "num_experts_per_token"], 2),
    **dict.fromkeys(["linear_num_key_heads"], 2),
    **dict.fromkeys(["head_dim", "d_kv", "q_lora_rank", "kv_lora_rank", "mamba_d_head"], 16),
    **dict.fromkeys(["qk_rope_head_dim", "qk_nope_head_dim", "sliding_window", "window_size"], 8),
    **dict.fromkeys(["linear_key_head_dim", "linear_value_head_dim", "mamba_n_heads"], 8),
    **dict.fromkeys(["hidden_size_per_layer_input", "mamba_d_state", "state_size"], 8),
    "v_head_dim": 12,
    "linear_num_value_heads": 4,
    "conv_kernel": 4,
    "attention_types": [[["global", "local"], LAYERS // 2]],
    **dict.fromkeys(["initializer_range", "init_std", "unembed_init_std"], 0.1),
    "is_decoder": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
VOCABULARIES = ("vocab_size", "vocab_size_per_layer_input", "unpadded_vocab_size")
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LATENT = {"head_dim": 8, "num_key_value_heads": 4}
# Gates that are normalized over one expert have no gradient, only noise of rounding: two a token.
TWO_EXPERTS = {"moe_topk": 2, "num_experts_per_tok": 2}
KDA = {
    "layer_types": ["linear_attention", "full_attention"] * (LAYERS // 2),
    "mlp_layer_types": ["dense", *["sparse"] * (LAYERS - 1)],
    "v_head_dim": 12,
}
OWN = {
    **dict.fromkeys(
        ["axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite",
         "glm_moe_dsa", "minicpm3", "sarvam_mla", "youtu"], LATENT),
    "bailing_hybrid": KDA | {"head_dim": 16, "num_local_experts": 4, "num_key_value_heads": 4},
    "blt": {"encoder_hash_byte_group_vocab": 100, "encoder_hash_byte_group_size": [3, 4],
        "patching_threshold": 1.0},
    "blt_local_decoder": {"hidden_size_global": 64},
    "blt_local_encoder": {"hidden_size_global": 64},
    "codegen": {"rotary_dim": 8},
    "cohere_compass_text": {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "cpmant": {"dim_ff": 96, "num_attention_heads": 4, "dim_head": 16},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note": {
        "vision_config": {"num_hidden_layers": 42, "hidden_size": 48, "num_attention_heads": 4,
            "intermediate_size": 48, "adapter_in_dim": 48, "adapter_out_dim": 64,
            "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
        "audio_config": {"num_hidden_layers": 1, "hidden_size": 48, "num_attention_heads": 4,
            "intermediate_size": 48, "downsample_hidden_size": 16, "adapter_input_size": 48,
            "adapter_out_dim": 64},
    },
    "dots3_note_text": LATENT | {"qk_nope_head_dim": 16, "swa_kv_lora_rank": 16,
        "layer_types": ["indexed_attention", "full_attention"] * (LAYERS // 2),
        "index_head_dim": 16, "index_n_heads": 16, "index_topk": 16},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma3n_text": {"num_kv_shared_layers": 0, "laurel_rank": 8},
    "gptj": {"rotary_dim": 8},
    "hunyuan_v1_moe": TWO_EXPERTS,
    "kimi_linear": KDA | {"linear_head_dim": 8, "linear_num_heads": 4, "num_key_value_heads": 4},
    "lfm2": {"layer_types": ["conv", "full_attention"] * (LAYERS // 2)},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * (LAYERS // 2)},
    "longcat_flash": LATENT | {"num_layers": 2, "ffn_hidden_size": 96, "moe_topk": 2,
        "zero_expert_num": 2, "expert_ffn_hidden_size": 48},
    "mamba2": {"num_heads": 8},
    "phimoe": {"router_jitter_noise": 0.0, "input_jitter_noise": 0.0},  # random while training
    "qwen4_exp_text": {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16,
        "indexer_budget": 64, "indexer_compress_ratio": 4, "hc_lowrank": 8},
    "reformer": {"axial_pos_embds_dim": (32, 32)},
    "xlm": {"emb_dim": 64, "n_layers": 2, "n_heads": 4, "embed_init_std": 0.1, "causal": True},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["linear_attention", "linear_attention", "hybrid", "hybrid"],
        "attention_hidden_size": 128, "attention_head_dim": 32, "num_key_value_heads": 4},
    "zamba2": {"layers_block_type": ["linear_attention", "linear_attention", "hybrid", "hybrid"],
        "num_key_value_heads": 4},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
# Why a type is not built; what is built is a list too, so that one that falls out is noticed.
UNBUILT = {
    "gemma3n": "its vision part needs the package timm; `gemma3n_text` is tried",
    "gemma4_assistant": "transformers refuses its own default config; `gemma4_unified_assistant`, "
    "a draft model for another model's states as well, is tried",
    "musicgen": "transformers can not build it from a config alone; it continues audio codes",
    "musicgen_melody": "as musicgen",
}
TYPES = sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - set(UNBUILT))


def shrunk(settings: dict, *, vocab_size: int) -> dict:
    """Small values for those settings that a config has, no dropout, nested ones too."""
    known = SMALL | dict.fromkeys(VOCABULARIES, vocab_size)
    small = {key: value for key, value in known.items() if key in settings}
    for key, value in settings.items():
        if key.endswith(("dropout", "pdrop", "dropout_prob")) and isinstance(value, float):
            small[key] = 0.0
        elif key.endswith("_config") and isinstance(value, dict):
            small[key] = shrunk(value, vocab_size=vocab_size)
    return small | OWN.get(settings.get("model_type"), {})


def small_config(model_type: str, *, vocab_size: int = tiny_models.VOCABULARY) -> PretrainedConfig:
    """The type's own config with small numbers."""
    settings = shrunk(AutoConfig.for_model(model_type).to_dict(), vocab_size=vocab_size)
    return AutoConfig.for_model(**settings | {"model_type": model_type})


def build(model_type: str, *, vocab_size: int = tiny_models.VOCABULARY) -> torch.nn.Module:
    """A random float32 model of the type in eval mode, the same each time."""
    torch.manual_seed(0)
    config = small_config(model_type, vocab_size=vocab_size)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
