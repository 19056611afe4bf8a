"""Every adapter method on packed weights: the step of the same adapter on dequantized weights."""

from dataclasses import replace

import bitsandbytes as bnb
import pytest
import torch

from ftrecipes.config.schema import QuantizationConfig
from ftrecipes.model.adapters import add_adapters, trainable_parameters
from tests import reference, tiny_models
from tests.model.adapting import FLOAT32, method_config, moved
from tests.model.loading import load
from tests.model.routes import backward_step, route_of

ROWS = tiny_models.random_rows([17, 9, 9], vocab_size=32)
SIZES = {
    "llama": {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 32},
    "gpt2": {"n_embd": 64, "vocab_size": 32},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {
        family: tiny_models.save_folder(family, tmp_path_factory.mktemp(family), **sizes)
        for family, sizes in SIZES.items()
    }


def dequantized(folder, family, quantization) -> torch.nn.Module:
    """A plain model with the numbers that the packed weights stand for."""
    plain, packed = load(folder), load(folder, quantization)
    for name, layer in packed.named_modules():
        if isinstance(layer, bnb.nn.Linear4bit | bnb.nn.Linear8bitLt):
            weight = layer.dequantized(torch.float32)
            plain.get_submodule(name).weight.data = weight.T if family == "gpt2" else weight
    return plain


@pytest.mark.parametrize("family", SIZES)
@pytest.mark.parametrize("bits", ["4bit", "8bit"])
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("lora", {"use_dora": True}),
        ("lora", {"use_rslora": True}),
        ("ia3", {}),
        ("prefix", {}),
        ("prompt", {}),
        ("llama_adapter", {}),
    ],
)
def test_the_step_is_that_on_dequantized_weights(method, settings, bits, family, folders):
    config = method_config(method, **settings)
    quantization = QuantizationConfig(method=bits)
    quantized = add_adapters(
        load(folders[family], quantization), replace(config, quantization=quantization), FLOAT32
    )
    plain = add_adapters(dequantized(folders[family], family, quantization), config, FLOAT32)
    moved(quantized)
    trained = dict(trainable_parameters(quantized))
    with torch.no_grad():
        for name, parameter in trainable_parameters(plain):
            parameter.copy_(trained[name])
    expected = backward_step(plain, route_of(plain, ROWS), [ROWS])
    loss = backward_step(quantized, route_of(quantized, ROWS), [ROWS])
    assert loss == pytest.approx(expected, rel=1e-5)
    gradients = reference.gradients(plain)
    for name, gradient in reference.gradients(quantized).items():
        scale = gradients[name].abs().max().item()
        assert scale > 0, name
        torch.testing.assert_close(gradient, gradients[name], rtol=0, atol=1e-4 * scale, msg=name)
