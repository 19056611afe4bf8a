"""Quantization is what was asked for and computes exactly."""

from collections import Counter
from dataclasses import replace
from itertools import product

import bitsandbytes as bnb
import pytest
import torch
import torch.nn.functional as F

from ftrecipes.config.errors import ModelError
from ftrecipes.config.schema import LoraConfig, QuantizationConfig, RunConfig
from ftrecipes.model.adapters import add_adapters
from ftrecipes.model.quantize import DequantizedLinear4bit, DequantizedLinear8bit
from tests import reference, tiny_models
from tests.model.loading import FLOAT32, load
from tests.model.routes import backward_step, flatten, route_of

PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folder of a family, wide enough for blocks of 64 weights; a bias where the family has one."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 32, "num_hidden_layers": 2}
    return {
        family: tiny_models.save_folder(family, tmp_path_factory.mktemp(family), **settings)
        for family, settings in {
            "llama": sizes | {"attention_bias": True},
            "mixtral": sizes,
            "gpt2": {"n_embd": 64, "vocab_size": 32},
        }.items()
    }


def lora(**settings) -> RunConfig:
    return RunConfig(lora=LoraConfig(**settings))


def four_bit(**settings) -> QuantizationConfig:
    return QuantizationConfig(method="4bit", **settings)


def layers_of(model) -> dict[str, DequantizedLinear4bit]:
    return {n: m for n, m in model.named_modules() if isinstance(m, DequantizedLinear4bit)}


@pytest.mark.parametrize(("kind", "double"), list(product(["nf4", "fp4"], [True, False])))
def test_quantized_as_asked(folders, kind, double):
    model = load(folders["llama"], four_bit(quant_type=kind, use_double_quant=double))
    layers = layers_of(model)
    names = Counter(name.rsplit(".", 1)[-1] for name in layers)
    assert names == dict.fromkeys(PROJECTIONS, 2)  # two layers, and no head
    for layer in layers.values():
        state = layer.weight.quant_state
        assert (state.quant_type, state.nested) == (kind, double)
        assert layer.weight.dtype == torch.uint8
        assert layer.compute_dtype == torch.float32
    assert model.lm_head.weight.dtype == torch.float32


@pytest.mark.parametrize("storage", ["uint8", "float32", "bfloat16"])
@pytest.mark.parametrize("mode", ["train", "eval", "no_grad"])
@pytest.mark.parametrize(("kind", "double"), list(product(["nf4", "fp4"], [True, False])))
def test_forward_is_exactly_linear_on_the_dequantized_weight(folders, kind, double, mode, storage):
    """Bit by bit, in every mode: the layer of bitsandbytes repacks in eval on some CPUs."""
    model = load(
        folders["llama"],
        four_bit(quant_type=kind, use_double_quant=double, quant_storage=storage),
    )
    layer = model.model.layers[1].self_attn.q_proj
    packed = layer.weight.data.clone()
    weight = layer.dequantized(torch.float32)
    assert weight.shape == (64, 64)
    for length in (1, 5):
        x = torch.randn(1, length, 64, requires_grad=mode == "train")
        layer.train(mode == "train")
        with torch.set_grad_enabled(mode != "no_grad"):
            output = layer(x)
        assert torch.equal(output, F.linear(x, weight, layer.bias))
        if mode == "train":
            direction = torch.randn_like(output)
            (gradient,) = torch.autograd.grad(output, x, direction)
            assert torch.equal(gradient, direction @ weight)
    assert layer.weight.dtype == getattr(torch, storage)
    assert torch.equal(layer.weight.data.view(torch.uint8), packed.view(torch.uint8))


def test_dequantized_weights_are_near_the_originals(folders):
    """nf4 has 16 values: 0.1 standard deviations of rounding; a mixed up layout would give 1.4."""
    model = load(folders["llama"], four_bit())
    plain = load(folders["llama"])
    for name, layer in layers_of(model).items():
        weight = plain.get_submodule(name).weight
        error = layer.dequantized(torch.float32) - weight
        assert error.std() < 0.12 * weight.std(), name


def test_bias_gets_its_gradient(folders):
    layer = load(folders["llama"], four_bit()).model.layers[0].self_attn.q_proj
    layer.bias.requires_grad_(True)
    x, direction = torch.randn(2, 3, 64), torch.randn(2, 3, 64)
    (gradient,) = torch.autograd.grad(layer(x), layer.bias, direction)
    torch.testing.assert_close(gradient, direction.sum((0, 1)))


def test_compute_dtype(folders):
    precision = replace(FLOAT32, compute="bfloat16", autocast=True)
    model = load(folders["llama"], four_bit(compute_dtype="bfloat16"), precision)
    layer = model.model.layers[0].mlp.up_proj
    assert layer.compute_dtype == torch.bfloat16
    x = torch.randn(4, 64)
    weight = layer.dequantized(torch.bfloat16)
    expected = F.linear(x.bfloat16(), weight)
    assert torch.equal(layer(x), expected.float())  # in the dtype of x ...
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer(x), expected)  # ... or of autocast, as torch's own layers


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_training_step_equals_that_of_the_dequantized_model(family, folders):
    """Adapters on 4-bit weights against adapters on the same weights dequantized: the reference."""
    model = add_adapters(load(folders[family], four_bit()), lora(r=4), FLOAT32)
    torch.manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.1)
    plain = load(folders[family])
    for name, layer in layers_of(model.get_base_model()).items():
        target = plain.get_submodule(name.removesuffix(".base_layer"))
        weight = layer.dequantized(torch.float32)
        target.weight.data = weight.T if family == "gpt2" else weight
    plain = add_adapters(plain, lora(r=4), FLOAT32)
    plain.load_state_dict({n: p for n, p in model.named_parameters() if "lora_" in n}, strict=False)
    rows = tiny_models.random_rows([17, 9, 9, 12], vocab_size=32)
    expected = reference.backward_step(plain, rows)
    route = route_of(model, rows)
    assert route.flat
    assert backward_step(model, route, [rows]) == pytest.approx(expected, rel=1e-5)
    ours, theirs = reference.gradients(model), reference.gradients(plain)
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        scale = gradient.abs().max().item()
        torch.testing.assert_close(ours[name], gradient, rtol=0, atol=1e-4 * scale + 1e-7, msg=name)


@pytest.mark.parametrize(
    ("targets", "adapted"),
    [
        (["all-linear"], PROJECTIONS),
        (["q_proj", "lm_head"], {"q_proj", "lm_head"}),
    ],
)
@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_adapters_on_four_bits(folders, targets, adapted, compute):
    """Where they are, and the dtype of each part: packed, adapters, norms, embedding, head."""
    precision = replace(FLOAT32, base=compute, compute=compute, autocast=compute != "float32")
    model = load(folders["llama"], four_bit(), precision)
    model = add_adapters(model, lora(r=4, target_modules=targets), precision)
    names = {n.split(".lora_A.")[0] for n, _ in model.named_parameters() if ".lora_A." in n}
    assert {name.rsplit(".", 1)[-1] for name in names} == adapted
    assert len(names) == (14 if adapted == PROJECTIONS else 3)
    for name, parameter in model.named_parameters():
        packed = isinstance(parameter, bnb.nn.Params4bit)
        assert packed == (
            parameter.dim() == 2
            and any(f".{projection}." in name for projection in PROJECTIONS)
            and "lora_" not in name
        ), name
        if not packed:
            dtype = torch.float32 if "lora_" in name else getattr(torch, compute)
            assert parameter.dtype == dtype, name
        assert parameter.requires_grad == ("lora_" in name), name


@pytest.mark.parametrize(
    "quantization",
    [
        QuantizationConfig(method="8bit"),
        *(
            QuantizationConfig(method="4bit", quant_storage=storage)
            for storage in ("uint8", "float16", "bfloat16", "float32")
        ),
    ],
    ids=lambda q: f"{q.method} {q.quant_storage}",
)
@pytest.mark.parametrize("entry", ["up_proj", "mlp"])
def test_quantized_weights_can_not_be_trained_whole(folders, quantization, entry):
    """Whatever dtype they are stored in: packed bytes as float32 would look like weights."""
    model = load(folders["llama"], quantization)
    settings = lora(target_modules=["q_proj"], modules_to_save=[entry, "lm_head"])
    with pytest.raises(ModelError, match=f"--lora.modules_to_save {entry}: its weights are quant"):
        add_adapters(model, settings, FLOAT32)


def test_evaluation_does_not_disturb_training(folders):
    model = add_adapters(load(folders["llama"], four_bit()), lora(r=4), FLOAT32)
    rows = tiny_models.random_rows([17, 9], vocab_size=32)
    route = route_of(model, rows)
    first = backward_step(model.train(), route, [rows])
    with torch.no_grad():
        evaluated = route.loss_sum(model.eval(), *flatten(rows)).item()
    assert evaluated / reference.count_tokens(rows) == pytest.approx(first, rel=1e-6)
    assert backward_step(model.train(), route, [rows]) == first


def test_eight_bit_is_exact_and_the_same_in_every_mode(folders):
    model = load(folders["llama"], QuantizationConfig(method="8bit"))
    plain = load(folders["llama"])
    layers = {n: m for n, m in model.named_modules() if isinstance(m, DequantizedLinear8bit)}
    assert len(layers) == 2 * len(PROJECTIONS)
    for name, layer in layers.items():
        weight, original = layer.dequantized(torch.float32), plain.get_submodule(name).weight
        assert layer.weight.dtype == torch.int8
        # half a step of 127 in the largest weight of a row, and a rounding to float16 before it
        limit = original.abs().amax(1, keepdim=True) * (0.5 / 127 + 2**-11)
        assert ((weight - original).abs() <= limit).all(), name
    layer = layers["model.layers.1.self_attn.q_proj"]
    weight = layer.dequantized(torch.float32)
    x = 10 * torch.randn(2, 5, 64, requires_grad=True)  # has what LLM.int8 calls outliers
    for training in (True, False):
        output = layer.train(training)(x)
        assert torch.equal(output, F.linear(x, weight, layer.bias))
        direction = torch.randn_like(output)
        assert torch.equal(torch.autograd.grad(output, x, direction)[0], direction @ weight)


def test_eight_bit_trains_and_evaluates(folders):
    model = load(folders["llama"], QuantizationConfig(method="8bit"))
    model = add_adapters(model, lora(r=4), FLOAT32)
    rows = tiny_models.random_rows([17, 9, 12], vocab_size=32)
    route = route_of(model, rows)
    assert route.flat
    loss = backward_step(model.train(), route, [rows])
    # weights rounded to 8 bits: near the unquantized loss
    expected = reference.evaluate(load(folders["llama"]), rows)
    assert loss == pytest.approx(expected, rel=0.02)
    gradients = [g for n, g in reference.gradients(model).items() if "lora_B" in n]
    assert len(gradients) == 14
    assert all(g.abs().max() > 0 for g in gradients)
