"""How much of a model is quantized, and what the log says when it is little."""

import pytest
import torch

from ftrecipes.config.errors import ModelError
from ftrecipes.config.schema import QuantizationConfig
from ftrecipes.model import quantize
from ftrecipes.model.quantize import (
    DequantizedLinear4bit,
    DequantizedLinear8bit,
    quantized_share,
)
from tests import reference, tiny_families, tiny_models
from tests.model.loading import load

FOUR_BIT = QuantizationConfig(method="4bit")


@pytest.fixture
def logged(monkeypatch):
    lines = {"info": [], "warning": []}
    for level, into in lines.items():
        monkeypatch.setattr(quantize.log, level, into.append)
    return lines


def test_experts_left_out_are_named(tmp_path, logged):
    """A Mixtral's experts are 3-D parameters: bitsandbytes leaves them in 8 bits without a word."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 32}
    tiny_models.save_folder("mixtral", tmp_path, **sizes)
    model = load(tmp_path, QuantizationConfig(method="8bit"))
    share, others = quantized_share(model)
    total = sum(p.numel() for p in load(tmp_path).parameters())
    attention = 2 * (64 * 64 * 2 + 64 * 32 * 2)
    assert share == pytest.approx(attention / total)
    assert share < 0.2
    assert others.most_common(1)[0][0] == "model.layers.*.mlp.experts.gate_up_proj"
    (warning,) = logged["warning"]
    assert "model.layers.*.mlp.experts.gate_up_proj" in warning
    assert f"only {share:.0%}" in warning
    share, _ = quantized_share(load(tmp_path, FOUR_BIT))
    experts = 2 * 4 * 3 * 64 * 128
    assert share == pytest.approx((attention + experts) / total)


def test_enough_quantized_is_no_warning(tmp_path, logged):
    sizes = {"hidden_size": 64, "intermediate_size": 256, "vocab_size": 16}
    tiny_models.save_folder("llama", tmp_path, **sizes)
    share, _ = quantized_share(load(tmp_path, FOUR_BIT))
    assert share > 0.9
    assert not logged["warning"]
    assert logged["info"] == [f"{share:.0%} of the weights are quantized"]


def test_nothing_to_quantize_is_an_error(tmp_path):
    tiny_models.save_folder("llama", tmp_path, num_hidden_layers=0)
    with pytest.raises(ModelError, match="no layer that bitsandbytes can quantize"):
        load(tmp_path, FOUR_BIT)


@pytest.mark.parametrize("method", ["4bit", "8bit"])
def test_a_layer_that_is_read_past_its_forward_stays_at_full_size(method, tmp_path):
    """Mamba multiplies with the weight of its step projection itself."""
    tiny_models.save_folder("mamba", tmp_path)
    model = load(tmp_path, QuantizationConfig(method=method))
    mixer = model.backbone.layers[0].mixer
    assert type(mixer.dt_proj) is torch.nn.Linear
    assert type(mixer.x_proj) in (DequantizedLinear4bit, DequantizedLinear8bit)
    assert reference.mean_loss(model, tiny_models.random_rows([9])) > 0


def test_the_head_weights_of_sparse_attention_stay_at_full_size(tmp_path):
    """The model casts their input to the dtype of the weight, and would cast it to uint8."""
    tiny_families.build("deepseek_v32").save_pretrained(tmp_path)
    indexer = load(tmp_path, FOUR_BIT).model.layers[0].self_attn.indexer
    assert type(indexer.weights_proj) is torch.nn.Linear
    assert type(indexer.wk) is DequantizedLinear4bit
    with pytest.raises(TypeError, match="dtype of its packing"):
        indexer.wk(torch.ones(1, 64, dtype=torch.uint8))
