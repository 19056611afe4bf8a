"""Nearly every causal language model of transformers, shrunk: the route, and its loss."""

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ftrecipes.config.errors import ModelError
from tests import reference, tiny_models
from tests.model.routes import flatten, route_of
from tests.tiny_families import TYPES, UNBUILT, build

PADDED = {
    "axk2", "bailing_hybrid", "bamba", "bart", "big_bird", "bigbird_pegasus", "blenderbot",
    "blenderbot-small", "bloom", "blt", "camembert", "data2vec-text", "deepseek_v32", "deepseek_v4",
    "diffllama", "doge", "dory", "dots3_note", "dots3_note_text", "falcon", "falcon_h1",
    "falcon_mamba", "git", "glm_moe_dsa", "gpt_neo", "gpt_neox_japanese", "granitemoehybrid",
    "hrm_text", "hy_v4", "inkling2_loop_text", "inkling2_text", "inkling_text", "jamba",
    "kimi_linear", "lara_mini", "lfm2", "lfm2_moe", "lfm3", "llama4", "llama4_text", "mamba",
    "mamba2", "marian", "mbart", "megatron-bert", "minimax", "mllama", "mpt", "mvp", "nemotron",
    "nemotron_h", "olmo_hybrid", "openai-gpt", "pegasus", "phimoe", "plbart", "qwen3_5",
    "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "qwen4_exp", "qwen4_exp_text",
    "recurrent_gemma", "rembert", "roberta", "roberta-prelayernorm", "roformer", "rwkv", "stablelm",
    "trocr", "xglm", "xlm", "xlm-roberta", "xlm-roberta-xl", "xlstm", "xmod", "zamba", "zamba2",
    "zaya",
}  # fmt: skip
REFUSED = {
    "cpmant": "looks ahead",
    "gemma4_unified_assistant": "shared_kv_states",
    "prophetnet": "a row that is padded",
    "reformer": "multipl",
    "xlnet": "looks ahead",
}


@pytest.mark.parametrize("model_type", sorted(set(TYPES) - REFUSED.keys()))
def test_route_and_loss(model_type):
    model = build(model_type)
    rows = tiny_models.random_rows([13, 30, 30, 7, 21])
    expected = sum(reference.row_loss_sum(model, row).item() for row in rows)
    route = route_of(model, rows)
    assert route.flat == (model_type not in PADDED), route.reason
    loss = route.loss_sum(model, *flatten(rows)).item()
    assert loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("model_type", sorted(REFUSED))
def test_what_can_not_be_trained_is_refused_with_the_reason(model_type):
    with pytest.raises(ModelError, match=REFUSED[model_type]):
        route_of(build(model_type), tiny_models.random_rows([13, 30, 30, 7, 21]))


def test_most_types_are_tried():
    assert len(TYPES) >= 190
    assert PADDED | REFUSED.keys() <= set(TYPES)
    assert UNBUILT.keys() <= MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys()
