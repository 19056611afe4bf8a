"""Models whose files hold quantized weights: read as they are, or into plain weights."""

import json

import bitsandbytes as bnb
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from ftrecipes.config.errors import ModelError
from ftrecipes.config.schema import LoraConfig, QuantizationConfig, RunConfig, TrainConfig
from ftrecipes.model.adapters import add_adapters
from ftrecipes.model.load import load_model, sketch_model
from ftrecipes.model.packed import packed_sizes
from ftrecipes.model.quantize import DequantizedLinear4bit, DequantizedLinear8bit
from ftrecipes.model.resolve import resolve_source, settle_quantization
from tests import reference, tiny_models
from tests.model.loading import FLOAT32, load
from tests.model.routes import backward_step, route_of

SIZES = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 32}
FOUR_BIT = {
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "fp4",
    "bnb_4bit_use_double_quant": True,
    "bnb_4bit_compute_dtype": "bfloat16",
}
ROWS = tiny_models.random_rows([17, 9, 9], vocab_size=32)
# the sixteen values of a four-bit float with two bits of exponent
FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


def with_lora(**quantization) -> RunConfig:
    return RunConfig(
        train=TrainConfig(use_peft=True),
        lora=LoraConfig(r=4, target_modules=["q_proj", "up_proj"]),
        quantization=QuantizationConfig(**quantization),
    )


def read(folder, config: RunConfig | None = None):
    """The model of a run on the folder."""
    source = resolve_source(str(folder), None, trust_remote_code=False)
    config = settle_quantization(config or with_lora(), source)
    return load_model(source, config, FLOAT32, torch.device("cpu"))


def quantized_folder(tmp_path, settings: dict, family: str = "llama"):
    """(folder of the plain model, folder that transformers wrote of the quantized one)."""
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    tiny_models.save_folder(family, plain, **SIZES)
    quantization = BitsAndBytesConfig(**settings)
    AutoModelForCausalLM.from_pretrained(
        plain, quantization_config=quantization, dtype=torch.float32
    ).save_pretrained(packed)
    return plain, packed


def describe(folder, **quantization) -> None:
    """Write into the config that the weights are quantized."""
    path = folder / "config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"quantization_config": quantization})
    )


@pytest.mark.parametrize(
    ("stored", "asked", "layer"),
    [
        (FOUR_BIT, {"method": "4bit", "quant_type": "fp4"}, DequantizedLinear4bit),
        ({"load_in_8bit": True}, {"method": "8bit"}, DequantizedLinear8bit),
    ],
    ids=["4bit", "8bit"],
)
def test_trains_as_if_quantized_while_it_is_read(stored, asked, layer, tmp_path):
    """Bit by bit the model that --quantization makes, and the loss of the dequantized one."""
    plain, packed = quantized_folder(tmp_path, stored)
    model = read(packed)
    assert type(model.model.layers[0].mlp.up_proj) is layer
    other = load(plain, QuantizationConfig(**asked))
    dequantized = load(plain)
    for name, parameter in other.named_parameters():
        assert torch.equal(parameter.data, model.get_parameter(name).data), name
        if name in packed_sizes(other):
            module = model.get_submodule(name.rpartition(".")[0])
            dequantized.get_parameter(name).data = module.dequantized(torch.float32)
    assert reference.mean_loss(model, ROWS) == reference.mean_loss(other, ROWS)
    config = with_lora()
    model, dequantized = (add_adapters(m, config, FLOAT32) for m in (model, dequantized))
    dequantized.load_state_dict(
        {n: p for n, p in model.named_parameters() if "lora_" in n}, strict=False
    )
    # the same products of the same numbers: float32 sums in another order
    expected = reference.train(dequantized, [ROWS] * 3, lr=1e-2)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-2, weight_decay=0.0)
    route = route_of(model, ROWS)
    for loss in expected:
        assert backward_step(model, route, [ROWS]) == pytest.approx(loss, rel=1e-5)
        optimizer.step()
    assert expected[-1] < expected[0]


def test_the_compute_dtype_is_the_runs(tmp_path):
    _, packed = quantized_folder(tmp_path, FOUR_BIT)
    assert read(packed).model.layers[0].mlp.up_proj.compute_dtype == torch.float32


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (RunConfig(), "add --use_peft"),
        (with_lora(method="8bit"), "--quantization.method 8bit contradicts"),
    ],
)
def test_contradictions_are_found_before_weights(config, expected, tmp_path):
    _, packed = quantized_folder(tmp_path, FOUR_BIT)
    (packed / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=expected):
        read(packed, config)


def test_a_method_that_is_not_supported_is_named(tmp_path):
    tiny_models.save_folder("llama", tmp_path, **SIZES)
    describe(tmp_path, quant_method="gptq", bits=4)
    with pytest.raises(ModelError, match=r"not supported(.|\n)*got: gptq(.|\n)*fp8, mxfp4"):
        read(tmp_path)


def test_experts_packed_one_by_one_are_an_error(tmp_path):
    """Files of transformers 4: there each expert was linear layers, here they are one parameter."""
    _, packed = quantized_folder(tmp_path, FOUR_BIT, "mixtral")
    weights = load_file(packed / "model.safetensors")
    name = "model.layers.0.block_sparse_moe.experts.0.w1.weight"
    weight = bnb.nn.Params4bit(weights[name], quant_type="fp4").to("cpu")
    weights[name] = weight.data
    for part, value in weight.quant_state.as_dict(packed=True).items():
        weights[f"{name}.{part}"] = value
    save_file(weights, packed / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="experts that were quantized one by one"):
        read(packed)


def fp8_folder(folder):
    """Blocks of float8 with one scale each; the model whose weights they stand for.

    The product with the scale is exact in float32.
    """
    expected = tiny_models.build("llama", **SIZES)
    expected.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    for name in [name for name in weights if name.endswith("_proj.weight")]:
        scale = weights[name].abs().max() / 448
        weights[name] = (weights[name] / scale).to(torch.float8_e4m3fn)
        weights[name.replace("weight", "weight_scale_inv")] = scale.reshape(1, 1)
        expected.get_parameter(name).data = weights[name].float() * scale
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    describe(folder, quant_method="fp8", weight_block_size=[128, 128])
    return expected


def mxfp4_folder(folder):
    """Experts of gpt-oss: two values a byte along the inputs, and a power of two for each 32; the
    model whose weights they stand for."""
    expected = tiny_models.build("gpt_oss", **SIZES)
    expected.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    for name in [name for name in weights if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = weights.pop(name).shape
        shape = (experts, outputs, inputs // 32, 32)
        codes = torch.randint(16, shape, generator=generator, dtype=torch.uint8)
        scales = torch.randint(120, 125, shape[:3], generator=generator, dtype=torch.uint8)
        weights[f"{name}_blocks"] = codes[..., ::2] | codes[..., 1::2] << 4
        weights[f"{name}_scales"] = scales
        values = torch.tensor(FP4)[codes.long()] * 2.0 ** (scales[..., None].float() - 127)
        expected.get_parameter(name).data = values.flatten(2).transpose(1, 2).contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    describe(folder, quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn"])
    return expected


@pytest.mark.parametrize("make", [fp8_folder, mxfp4_folder])
def test_quantized_files_become_plain_weights(make, tmp_path):
    """Every weight, and a model that can be trained whole and saved as one with plain weights."""
    folder, expected = tmp_path, make(tmp_path)
    model = read(folder, RunConfig())
    for name, parameter in expected.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter), name
    assert reference.mean_loss(model, ROWS) == reference.mean_loss(expected, ROWS)
    model.save_pretrained(folder / "saved")
    assert "quantization_config" not in json.loads((folder / "saved/config.json").read_text())
    names = {name for name, _ in expected.named_parameters()}
    source = resolve_source(str(folder), None, trust_remote_code=False)
    assert {name for name, _ in sketch_model(source).named_parameters()} == names
