"""Experts in 4 bits: loss and gradients of the dequantized model, from packed weights only."""

import gc
from dataclasses import replace

import bitsandbytes as bnb
import peft
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from ftrecipes.config.errors import ModelError
from ftrecipes.config.schema import LoraConfig, QuantizationConfig, RunConfig, TrainConfig
from ftrecipes.model.adapters import add_adapters
from ftrecipes.model.experts import PackedParamWrapper, adapt_packed, pack
from ftrecipes.model.packed import packed_parameters
from ftrecipes.model.quantize import quantized_share
from tests import reference, tiny_models
from tests.model.loading import FLOAT32, load
from tests.model.routes import backward_step, route_of

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]
SIZES = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 32}
# name -> settings; experts that run as grouped products, one with biases and transposed, and one
# whose class knows its own forward only
FAMILIES = {
    "mixtral": SIZES,
    "qwen3_moe": SIZES | {"moe_intermediate_size": 128},
    "olmoe": SIZES,
    "gpt_oss": SIZES,
    "llama4": SIZES,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {
        family: tiny_models.save_folder(family, tmp_path_factory.mktemp(family), **settings)
        for family, settings in FAMILIES.items()
    }


def four_bit(**settings) -> QuantizationConfig:
    return QuantizationConfig(method="4bit", **settings)


def lora(**settings) -> RunConfig:
    return RunConfig(train=TrainConfig(use_peft=True), lora=LoraConfig(r=4, **settings))


def experts_of(model) -> dict[str, bnb.nn.Params4bit]:
    return {n: p.parameter for n, p in packed_parameters(model).items() if "experts." in n}


def dequantized(packed: bnb.nn.Params4bit) -> torch.Tensor:
    return bnb.functional.dequantize_4bit(packed.data, packed.quant_state)


def plain_copy(folder, model):
    """The model of the folder, with the weights that the quantized one stands for."""
    plain = load(folder)
    for name, packed in packed_parameters(model).items():
        plain.get_parameter(name).data = dequantized(packed.parameter)
    return plain


def stir(model) -> None:
    """B starts at zero: move it, or the gradient of A would be zero."""
    torch.manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.1)


@pytest.mark.parametrize("targets", [ATTENTION, EXPERTS, ["all-linear"]], ids=["att", "exp", "all"])
@pytest.mark.parametrize("family", FAMILIES)
def test_step_equals_that_of_the_dequantized_model(family, targets, folders):
    """Adapters on packed weights against PEFT's own on the same weights, dequantized.

    Both compute the same products on the same numbers; 1e-5 and 1e-4 of the largest entry are
    float32 sums in another order.
    """
    on_experts = targets is EXPERTS
    settings = {"target_modules": ATTENTION if on_experts else targets}
    config = lora(**settings, target_parameters=EXPERTS if on_experts else [])
    quantized = load(folders[family], four_bit())
    plain = plain_copy(folders[family], quantized)
    model = add_adapters(quantized, config, FLOAT32)
    stir(model)
    wrappers = [m for m in model.modules() if isinstance(m, PackedParamWrapper)]
    assert not on_experts or len(wrappers) == 4  # two parameters in two layers
    plain = add_adapters(plain, config, FLOAT32)
    assert not [m for m in plain.modules() if isinstance(m, PackedParamWrapper)]
    plain.load_state_dict({n: p for n, p in model.named_parameters() if "lora_" in n}, strict=False)
    rows = tiny_models.random_rows([17, 9, 9, 12], vocab_size=32)
    expected = reference.backward_step(plain, rows)
    assert backward_step(model, route_of(model, rows), [rows]) == pytest.approx(expected, rel=1e-5)
    ours, theirs = reference.gradients(model), reference.gradients(plain)
    assert ours.keys() == theirs.keys()
    assert any("experts" in name for name in theirs) or not on_experts
    for name, gradient in theirs.items():
        scale = gradient.abs().max().item()
        assert scale > 0 or "shared" in name, name
        torch.testing.assert_close(ours[name], gradient, rtol=0, atol=1e-4 * scale + 1e-7, msg=name)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("storage", ["uint8", "bfloat16"])
def test_quantized_as_asked_and_near_the_originals(kind, double, storage, folders):
    """0.12 standard deviations of rounding; a mixed up layout would give 1.4."""
    asked = four_bit(quant_type=kind, use_double_quant=double, quant_storage=storage)
    model, plain = load(folders["gpt_oss"], asked), load(folders["gpt_oss"])
    packed = experts_of(model)
    assert len(packed) == 4
    for name, parameter in packed.items():
        state = parameter.quant_state
        assert (state.quant_type, state.nested) == (kind, double)
        assert parameter.dtype == getattr(torch, storage)
        assert not parameter.requires_grad
        weight = plain.get_parameter(name)
        error = dequantized(parameter) - weight
        assert error.std() < (0.12 if kind == "nf4" else 0.16) * weight.std(), name
        path, _, last = name.rpartition(".")
        assert torch.equal(getattr(model.get_submodule(path), last), dequantized(parameter))


def test_nearly_all_weights_of_a_real_shape_are_quantized(tmp_path):
    """The proportions of Qwen3-30B-A3B at a sixteenth of its width, with fewer experts."""
    shape = {
        "hidden_size": 128,
        "moe_intermediate_size": 64,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_hidden_layers": 4,
        "vocab_size": 256,
    }
    tiny_models.save_folder("qwen3_moe", tmp_path, **shape)
    share, others = quantized_share(load(tmp_path, four_bit()))
    assert share >= 0.9
    assert not [name for name in others if "experts" in name]


def test_a_graph_keeps_no_weight_of_the_experts(folders):
    """Between forward and backward nothing as large as the experts of one layer is held."""
    model = add_adapters(
        load(folders["mixtral"], four_bit()), lora(target_parameters=EXPERTS), FLOAT32
    )
    rows = tiny_models.random_rows([9], vocab_size=32)
    smallest = 4 * 64 * 128  # of the two parameters of a layer
    for adapted, held in ((model, False), (plain_adapted(folders["mixtral"]), True)):
        sizes = []
        with saved_tensors_hooks(
            lambda saved, sizes=sizes: sizes.append(saved.untyped_storage().nbytes() // 4) or saved,
            lambda saved: saved,
        ):
            reference.row_loss_sum(adapted, rows[0])
        assert (max(sizes) >= smallest) == held


def plain_adapted(folder):
    return add_adapters(load(folder), lora(target_parameters=EXPERTS), FLOAT32)


def test_evaluation_between_steps_changes_nothing(folders):
    model = add_adapters(load(folders["mixtral"], four_bit()), lora(), FLOAT32)
    stir(model)
    rows = tiny_models.random_rows([17, 9], vocab_size=32)
    first = reference.backward_step(model.train(), rows)
    assert reference.evaluate(model, rows) == pytest.approx(first, rel=1e-6)
    with model.disable_adapter():
        assert reference.evaluate(model, rows) != pytest.approx(first, rel=1e-4)
    assert reference.backward_step(model.train(), rows) == first


def test_saved_adapter_is_read_by_peft_on_the_plain_base(folders, tmp_path):
    config = lora(target_modules=ATTENTION, target_parameters=EXPERTS)
    model = add_adapters(load(folders["mixtral"], four_bit()), config, FLOAT32)
    stir(model)
    model.save_pretrained(tmp_path)
    row = tiny_models.random_rows([12], vocab_size=32)[0][0]
    expected = reference.row_logits(model.eval(), row)
    base = plain_copy(folders["mixtral"], load(folders["mixtral"], four_bit()))
    reread = peft.PeftModel.from_pretrained(base, tmp_path).eval()
    torch.testing.assert_close(reference.row_logits(reread, row), expected, rtol=1e-5, atol=1e-5)
    packed = peft.PeftModel.from_pretrained(load(folders["mixtral"], four_bit()), tmp_path).eval()
    adapt_packed(packed)
    assert torch.equal(reference.row_logits(packed, row), expected)


def test_experts_in_half_precision_under_autocast(folders):
    """The dtype of the products is the one asked for, whatever the hidden states have."""
    precision = replace(FLOAT32, base="bfloat16", compute="bfloat16", autocast=True)
    model = load(folders["mixtral"], four_bit(compute_dtype="bfloat16"), precision)
    experts = model.model.layers[0].mlp.experts
    assert experts.gate_up_proj.dtype == torch.bfloat16
    states, index = torch.randn(6, 64), torch.tensor([[0, 1]] * 6)
    output = experts(states, index, torch.full((6, 2), 0.5))
    assert output.dtype == states.dtype
    half = experts(states.bfloat16(), index, torch.full((6, 2), 0.5))
    torch.testing.assert_close(output, half.float(), rtol=0.02, atol=0.02 * output.abs().max())


def test_experts_that_can_not_be_packed_are_refused_by_name(tmp_path):
    tiny_models.save_folder("dbrx", tmp_path)
    with pytest.raises(ModelError, match="not possible for the experts of DbrxForCausalLM"):
        load(tmp_path, four_bit())


def test_eight_bits_leave_experts_at_full_size_and_say_so(folders, caplog):
    with caplog.at_level("WARNING", logger="ftrecipes"):
        model = load(folders["mixtral"], QuantizationConfig(method="8bit"))
    assert not experts_of(model)
    assert "mlp.experts.gate_up_proj" in caplog.text
    assert "nor the experts of a mixture in 8 bits" in caplog.text


def test_one_parameter_at_a_time_is_at_full_size_while_reading(tmp_path, monkeypatch):
    """Whenever one is packed, fewer of its size are alive than there are layers."""
    layers, size = 6, 4 * 2 * 128 * 64
    tiny_models.save_folder("mixtral", tmp_path, **SIZES, num_hidden_layers=layers)
    alive = []

    def count() -> int:
        tensors = [x for x in gc.get_objects() if issubclass(type(x), torch.Tensor)]
        return sum(x.numel() == size and x.device.type == "cpu" for x in tensors)

    def watched(weight, config):
        alive.append(count())
        return pack(weight, config)

    gc.collect()
    others = count()  # of other tests
    monkeypatch.setattr("ftrecipes.model.quantizer.pack", watched)
    load(tmp_path, four_bit())
    assert len(alive) == 2 * layers
    assert 1 <= max(alive) - others <= 2
