"""Nearly every causal language model of transformers, shrunk: the route, and its loss.

The settings are the union of what small configs of all families need; each config takes those it
knows. What is tried is a list, so that a type that falls out is noticed.
"""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests import reference, tiny_models
from tests.model.routes import flatten, route_of

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
    **dict.fromkeys(["vocab_size", "vocab_size_per_layer_input"], tiny_models.VOCABULARY),
    **dict.fromkeys(["num_experts", "num_local_experts", "n_routed_experts"], 4),
    **dict.fromkeys(["moe_intermediate_size", "shared_expert_intermediate_size"], 48),
    **dict.fromkeys(["n_group", "topk_group", "first_k_dense_replace"], 1),
    **dict.fromkeys(["num_key_value_heads", "num_experts_per_tok", "linear_num_key_heads"], 2),
    **dict.fromkeys(["head_dim", "d_kv", "q_lora_rank", "kv_lora_rank", "mamba_d_head"], 16),
    **dict.fromkeys(["qk_rope_head_dim", "qk_nope_head_dim", "sliding_window", "window_size"], 8),
    **dict.fromkeys(["linear_key_head_dim", "linear_value_head_dim", "mamba_n_heads"], 8),
    **dict.fromkeys(["hidden_size_per_layer_input", "mamba_d_state", "state_size"], 8),
    "v_head_dim": 12,
    "linear_num_value_heads": 4,
    "conv_kernel": 4,
    "attention_types": [[["global", "local"], LAYERS // 2]],
    "initializer_range": 0.1,
    "is_decoder": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
LATENT = {"head_dim": 8, "num_key_value_heads": 4}
OWN = {
    **dict.fromkeys(
        ["axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite",
         "glm_moe_dsa", "minicpm3", "sarvam_mla", "youtu"], LATENT),
    "codegen": {"rotary_dim": 8},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4}},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gptj": {"rotary_dim": 8},
    "lfm2": {"layer_types": ["conv", "full_attention"] * (LAYERS // 2)},
    "mamba2": {"num_heads": 8},
    "reformer": {"axial_pos_embds_dim": (32, 32)},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
PADDED = {
    "axk2", "bamba", "bart", "big_bird", "bigbird_pegasus", "blenderbot", "blenderbot-small",
    "bloom", "camembert", "data2vec-text", "deepseek_v32", "deepseek_v4", "diffllama", "doge",
    "dory", "falcon", "falcon_h1", "falcon_mamba", "git", "glm_moe_dsa", "gpt_neo",
    "gpt_neox_japanese", "granitemoehybrid", "hrm_text", "hy_v4", "inkling2_loop_text",
    "inkling2_text", "inkling_text", "jamba", "lara_mini", "lfm2", "lfm3", "llama4",
    "llama4_text", "mamba", "mamba2", "marian", "mbart", "megatron-bert", "minimax", "mllama",
    "mpt", "mvp", "nemotron", "nemotron_h", "olmo_hybrid", "openai-gpt", "pegasus", "phimoe",
    "plbart", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
    "recurrent_gemma", "reformer", "rembert", "roberta", "roberta-prelayernorm", "roformer",
    "rwkv", "stablelm", "trocr", "xglm", "xlm-roberta", "xlm-roberta-xl", "xlstm", "zaya",
}  # fmt: skip
# Not causal, not to be shrunk with the settings above, or (ProphetNet) of coarser rounding.
UNTRIED = {
    "bailing_hybrid", "blt", "cohere_compass_text", "cpmant", "dots1", "dots3_note",
    "dots3_note_text", "gemma3n", "gemma3n_text", "gemma4_assistant",
    "gemma4_unified_assistant", "kimi_linear", "lfm2_moe", "longcat_flash", "musicgen",
    "musicgen_melody", "prophetnet", "qwen4_exp", "qwen4_exp_text", "xlm", "xlnet", "xmod",
    "zamba", "zamba2",
}  # fmt: skip
TRIED = sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - UNTRIED)


def shrunk(settings: dict) -> dict:
    """Small values for those settings that a config has, no dropout, nested ones too."""
    small = {key: value for key, value in SMALL.items() if key in settings}
    for key, value in settings.items():
        if key.endswith(("dropout", "pdrop", "dropout_prob")) and isinstance(value, float):
            small[key] = 0.0
        elif key.endswith("_config") and isinstance(value, dict):
            small[key] = shrunk(value)
    return small


def build(model_type: str) -> torch.nn.Module:
    settings = shrunk(AutoConfig.for_model(model_type).to_dict()) | OWN.get(model_type, {})
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **settings)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@pytest.mark.parametrize("model_type", TRIED)
def test_route_and_loss(model_type):
    model = build(model_type)
    rows = tiny_models.random_rows([13, 30, 30, 7, 21])
    expected = sum(reference.row_loss_sum(model, row).item() for row in rows)
    route = route_of(model, rows)
    assert route.flat == (model_type not in PADDED), route.reason
    loss = route.loss_sum(model, *flatten(rows)).item()
    assert loss == pytest.approx(expected, rel=1e-5)


def test_most_types_are_tried():
    assert len(TRIED) >= 170
    assert PADDED.issubset(TRIED)
    assert UNTRIED.issubset(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
