"""A skeleton is the loaded model in everything but the numbers that are read from files."""

import copy
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from ftrecipes.config.errors import ModelError
from ftrecipes.config.schema import LoraConfig, QuantizationConfig, RunConfig, TrainConfig
from ftrecipes.model.adapters import add_adapters, train_everything, trained_share
from ftrecipes.model.load import load_model
from ftrecipes.model.packed import packed_parameters
from ftrecipes.model.quantize import quantized_share
from ftrecipes.model.resolve import resolve_source, settle_quantization
from ftrecipes.model.skeleton import build_skeleton
from tests import tiny_families, tiny_models
from tests.model.gguf_file import write_gguf
from tests.model.loading import FLOAT32
from tests.model.test_stored import FOUR_BIT as STORED
from tests.model.test_stored import describe, quantized_folder
from tests.tiny_tokenizers import build_tokenizer

HALF = replace(FLOAT32, base="bfloat16", compute="bfloat16", autocast=True)
FLOAT16 = replace(FLOAT32, base="float16", compute="float16", autocast=True)
FOUR_BIT = QuantizationConfig(method="4bit")
ROPE = {"rope_theta": 10000.0, "factor": 4.0}
SHORT = {"original_max_position_embeddings": 64}


def both(folder, precision=FLOAT32, **quantization):
    """(the loaded model, the skeleton) of a run."""
    source = resolve_source(str(folder), None, trust_remote_code=False)
    config = RunConfig(
        train=TrainConfig(use_peft=True), quantization=QuantizationConfig(**quantization)
    )
    config = settle_quantization(config, source)
    given = copy.deepcopy(source.config.to_dict())
    skeleton = build_skeleton(source, config, precision)
    assert source.config.to_dict() == given
    return load_model(source, config, precision, torch.device("cpu")), skeleton


def parameters(model) -> dict:
    """Name -> everything but the numbers, and the first name of the same tensor."""
    first = {}
    return {
        name: (p.shape, p.dtype, p.requires_grad, type(p), first.setdefault(id(p), name))
        for name, p in model.named_parameters(remove_duplicate=False)
    }


def packings(model) -> dict:
    return {
        name: {k: v for k, v in vars(packed).items() if k != "module"}
        for name, packed in packed_parameters(model).items()
    }


def settings(model) -> dict:
    """Of the modules, of the whole, and of generating."""
    modules = {name: (type(m), m.training) for name, m in model.named_modules()}
    config, generation = model.config.to_dict(), model.generation_config.to_dict()
    return {"whole": (model.name_or_path, vars(model).keys(), config, generation)} | modules


def assert_same(loaded, skeleton) -> None:
    assert parameters(skeleton) == parameters(loaded)
    assert settings(skeleton) == settings(loaded)
    assert packings(skeleton) == packings(loaded)
    assert all(p.is_meta for p in skeleton.parameters())
    buffers, read = dict(skeleton.named_buffers()), loaded.state_dict()
    assert buffers.keys() == dict(loaded.named_buffers()).keys()
    for name, buffer in loaded.named_buffers():
        found = buffers[name]
        assert (found.dtype, found.shape, found.is_meta) == (buffer.dtype, buffer.shape, False)
        assert name in read or torch.equal(found, buffer), name


@pytest.mark.parametrize("family", sorted(set(tiny_models.FAMILIES) - {"bert"}))
def test_every_family(family, tmp_path):
    """`python benchmarks/coverage.py` has other types; all 192 of transformers 5.24 were equal."""
    tiny_models.save_folder(family, tmp_path)
    assert_same(*both(tmp_path))
    assert_same(*both(tmp_path, HALF))
    if family not in ("dbrx", "falcon"):  # refused, and without a layer to quantize
        assert_same(*both(tmp_path, HALF, method="4bit"))


@pytest.mark.parametrize("family", ["gptj", "deepseek_v3", "nemotron_h", "rwkv", "xglm"])
def test_families_with_sines_or_weights_of_a_dtype_of_their_own(family, tmp_path):
    """GPT-J computes sines in float32; DeepSeek keeps the bias of its router in float32."""
    tiny_families.build(family).save_pretrained(tmp_path)
    for precision in (FLOAT32, HALF, FLOAT16):
        loaded, skeleton = both(tmp_path, precision)
        assert_same(loaded, skeleton)
    kept = {p.dtype for p in skeleton.parameters()} | {b.dtype for b in skeleton.buffers()}
    assert torch.float32 in kept or family == "xglm"


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear"},
        {"rope_type": "dynamic"},
        {"rope_type": "yarn"} | SHORT,
        {"rope_type": "longrope", "short_factor": [1.5] * 4, "long_factor": [3.0] * 4} | SHORT,
        {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0} | SHORT,
        {"rope_type": "proportional"},
    ],
    ids=lambda rope: rope["rope_type"],
)
@pytest.mark.parametrize("precision", [FLOAT32, HALF], ids=["float32", "bfloat16"])
def test_scaled_positions(rope, precision, tmp_path):
    tiny_models.save_folder("llama", tmp_path, rope_parameters=ROPE | rope)
    loaded, skeleton = both(tmp_path, precision)
    assert_same(loaded, skeleton)
    plain = 10000.0 ** -(torch.arange(0, 8, 2) / 8)
    changed = not torch.equal(skeleton.model.rotary_emb.inv_freq, plain)
    assert changed == (rope["rope_type"] not in ("dynamic",))


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("storage", ["uint8", "bfloat16", "float32"])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_packed_weights(kind, storage, double, tmp_path):
    tiny_models.save_folder("mixtral", tmp_path, hidden_size=64, intermediate_size=128)
    loaded, skeleton = both(
        *(tmp_path, HALF),
        method="4bit",
        quant_type=kind,
        quant_storage=storage,
        use_double_quant=double,
    )
    assert_same(loaded, skeleton)
    assert quantized_share(skeleton) == quantized_share(loaded)
    assert len(packings(skeleton)) == 2 * (4 + 2)
    for packed in packed_parameters(skeleton).values():
        assert (packed.quant_type, packed.double_quant) == (kind, double)
        assert packed.parameter.compress_statistics == double
        assert packed.state is None


@pytest.mark.parametrize("family", ["llama", "mixtral"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_base_that_is_stored_in_four_bits(family, dtype, tmp_path):
    """With its own type, statistics, storage, and layers that it leaves at full size."""
    left = {"llm_int8_skip_modules": ["lm_head", "q_proj"], "bnb_4bit_quant_storage": "bfloat16"}
    plain, packed = quantized_folder(tmp_path, STORED, family)
    other = tmp_path / "other"
    AutoModelForCausalLM.from_pretrained(
        plain, quantization_config=BitsAndBytesConfig(**STORED | left), dtype=dtype
    ).save_pretrained(other)
    for folder in (packed, other):
        loaded, skeleton = both(folder, HALF)
        assert_same(loaded, skeleton)
        assert len(packings(skeleton)) > 5
        rest = {p.dtype for n, p in loaded.named_parameters() if n not in packings(loaded)}
        assert rest == {torch.bfloat16}  # whatever dtype the files have


def test_a_stored_base_with_weights_of_a_dtype_of_their_own(tmp_path):
    tiny_families.build("nemotron_h").save_pretrained(tmp_path / "plain")
    AutoModelForCausalLM.from_pretrained(
        tmp_path / "plain", quantization_config=BitsAndBytesConfig(**STORED), dtype=torch.bfloat16
    ).save_pretrained(tmp_path / "packed")
    loaded, skeleton = both(tmp_path / "packed", FLOAT16)
    assert_same(loaded, skeleton)
    rest = {p.dtype for n, p in skeleton.named_parameters() if n not in packings(skeleton)}
    assert rest == {torch.float16, torch.float32}


def test_files_that_are_dequantized_give_a_plain_skeleton(tmp_path):
    folder = tiny_models.save_folder("llama", tmp_path)
    source = resolve_source(str(folder), None, trust_remote_code=False)
    expected = build_skeleton(source, RunConfig(), HALF)
    describe(folder, quant_method="fp8", weight_block_size=[16, 16])
    source = resolve_source(str(folder), None, trust_remote_code=False)
    skeleton = build_skeleton(source, RunConfig(), HALF)
    assert parameters(skeleton) == parameters(expected)
    assert settings(skeleton) == settings(expected)


def test_gguf_file(tmp_path):
    tokenizer = build_tokenizer("chatml")
    model = tiny_models.build("llama", vocab_size=len(tokenizer))
    loaded, skeleton = both(write_gguf(model, tokenizer, tmp_path / "tiny.gguf"), HALF)
    # transformers leaves other traces of a file that it dequantized
    del skeleton._weight_conversions, loaded.is_quantized
    assert_same(loaded, skeleton)
    with pytest.raises(ModelError, match=r"not yet on a \.gguf file"):
        both(tmp_path / "tiny.gguf", method="4bit")


def test_what_can_not_be_packed_is_refused(tmp_path):
    tiny_models.save_folder("dbrx", tmp_path)
    source = resolve_source(str(tmp_path), None, trust_remote_code=False)
    with pytest.raises(ModelError, match="not possible for the experts of DbrxForCausalLM"):
        build_skeleton(source, RunConfig(quantization=FOUR_BIT), FLOAT32)


@pytest.mark.parametrize("quantization", [{}, {"method": "4bit"}], ids=["plain", "4bit"])
@pytest.mark.parametrize("trainable", ["float32", "bfloat16"])
def test_adapters_on_a_skeleton(quantization, trainable, tmp_path):
    """With the same names, shapes and dtypes; experts and a linear layer have them."""
    tiny_models.save_folder("mixtral", tmp_path, hidden_size=64, intermediate_size=128)
    precision = replace(HALF, trainable=trainable)
    config = RunConfig(
        train=TrainConfig(use_peft=True),
        lora=LoraConfig(
            r=4,
            target_modules=["q_proj"],
            target_parameters=["experts.gate_up_proj", "experts.down_proj"],
        ),
    )
    loaded, skeleton = both(tmp_path, HALF, **quantization)
    loaded = add_adapters(loaded, config, precision)
    with torch.device("meta"):
        skeleton = add_adapters(skeleton, config, precision)
    assert parameters(skeleton) == parameters(loaded)
    assert trained_share(skeleton) == trained_share(loaded)
    assert [(n, type(m)) for n, m in skeleton.named_modules()] == [
        (n, type(m)) for n, m in loaded.named_modules()
    ]
    assert all(p.is_meta for p in skeleton.parameters())


def test_everything_trained_on_a_skeleton(tmp_path):
    tiny_models.save_folder("llama_tied", tmp_path)
    models = [train_everything(m, FLOAT32, frozen_blocks=1) for m in both(tmp_path)]
    assert parameters(models[1]) == parameters(models[0])
