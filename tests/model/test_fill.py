"""A model filled from its files by one process is the one that transformers loads, bit by bit."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from ftrecipes.config.errors import ModelError
from ftrecipes.model.fill import fill
from ftrecipes.model.skeleton import build_skeleton
from ftrecipes.runtime.shares import Share
from tests import tiny_models
from tests.model.filling import (
    BFLOAT16,
    CPU,
    FLOAT32,
    assert_same,
    filled,
    loaded,
    put_whole,
    settings,
)

NF4 = {"quant_type": "nf4", "use_double_quant": True}
FP4 = {"quant_type": "fp4", "use_double_quant": False}
# what is transposed before it is packed, fused, tied, renamed, has buffers, or three dimensions
PACKED = ["llama", "llama_tied", "gpt2", "mixtral", "gpt_oss", "qwen3_moe", "gemma3", "mamba"]
PLAIN = [*PACKED, "dbrx", "falcon", "bloom", "llama4", "lfm2", "phi3"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("families")
    return {name: tiny_models.save_folder(name, root / name) for name in PLAIN}


@pytest.mark.parametrize("precision", [FLOAT32, BFLOAT16], ids=lambda p: p.base)
@pytest.mark.parametrize("family", PLAIN)
def test_plain_weights(family, precision, folders):
    model, done = filled(folders[family], None, precision)
    assert_same(model, loaded(folders[family], None, precision))
    on_disk = (folders[family] / "model.safetensors").stat().st_size
    assert 0.9 * on_disk < done.bytes_read <= on_disk  # once; the header is not counted
    assert (done.num_converted > 0) == (family in ("mixtral", "qwen3_moe"))


@pytest.mark.parametrize("quantization", [NF4, FP4], ids=["nf4", "fp4"])
@pytest.mark.parametrize("family", PACKED)
def test_packed_weights(family, quantization, folders):
    model, _ = filled(folders[family], quantization, BFLOAT16)
    assert assert_same(model, loaded(folders[family], quantization, BFLOAT16)) > 0


@pytest.mark.parametrize("storage", ["uint8", "bfloat16", "float32"])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_dtypes_of_files_run_and_storage(stored, storage, tmp_path):
    tiny_models.build("llama").to(stored).save_pretrained(tmp_path)
    quantization = NF4 | {"quant_storage": storage}
    for precision in (FLOAT32, BFLOAT16):
        model, _ = filled(tmp_path, quantization, precision)
        assert_same(model, loaded(tmp_path, quantization, precision))


@pytest.mark.parametrize("double", [True, False])
def test_files_that_are_packed_already(double, tmp_path):
    plain = tiny_models.save_folder("llama", tmp_path / "plain")
    settings = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double
    )
    AutoModelForCausalLM.from_pretrained(
        plain, quantization_config=settings, dtype=torch.bfloat16
    ).save_pretrained(tmp_path / "packed")
    model, _ = filled(tmp_path / "packed", None, BFLOAT16)
    assert assert_same(model, loaded(tmp_path / "packed", None, BFLOAT16)) == 14


def test_several_files_with_an_index(tmp_path):
    tiny_models.build("mixtral").save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    assert_same(filled(tmp_path, NF4)[0], loaded(tmp_path, NF4))


def test_names_with_and_without_the_prefix_of_the_base(folders, tmp_path):
    """Files of a bare GPT-2 lack `transformer.`, and a tied head is in neither."""
    shutil.copytree(folders["gpt2"], tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    bare = {name.removeprefix("transformer."): value for name, value in weights.items()}
    assert bare.keys().isdisjoint(weights)
    save_file(bare, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert_same(filled(tmp_path, NF4)[0], loaded(tmp_path, NF4))


def test_tied_weights_are_one_and_read_once(folders, tmp_path):
    model, _ = filled(folders["llama_tied"])
    assert model.lm_head.weight is model.model.embed_tokens.weight
    shutil.copytree(folders["llama_tied"], tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    head = weights["model.embed_tokens.weight"].clone()
    save_file(weights | {"lm_head.weight": head}, tmp_path / "model.safetensors")
    assert_same(filled(tmp_path)[0], model)
    save_file(weights | {"lm_head.weight": head + 1}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"lm_head\.weight and model\.embed_tokens(.|\n)*tie_word"):
        filled(tmp_path)


def test_weights_that_are_not_there_or_have_no_place(folders, tmp_path, caplog):
    """As `load_model` tells of them."""
    shutil.copytree(folders["llama"], tmp_path, dirs_exist_ok=True)
    described = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(described | {"num_hidden_layers": 1}))
    told = []
    for read in (loaded, filled):
        with caplog.at_level("WARNING", logger="ftrecipes"):
            read(tmp_path)
        told.append(caplog.text)
        caplog.clear()
    assert "9 weights that its config has no place for" in told[0]
    assert told[0].partition("resolve")[0].split("holds")[1] == told[1].split("holds")[1]
    (tmp_path / "config.json").write_text(json.dumps(described | {"num_hidden_layers": 3}))
    with pytest.raises(ModelError, match=r"lacks weights(.|\n)*model\.layers\.2\.input_layernorm"):
        filled(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(described | {"vocab_size": 100}))
    with pytest.raises(ModelError, match=r"another shape: \('lm_head\.weight', \(96, 32\), \(100"):
        filled(tmp_path)


def test_experts_that_are_missing_are_told(folders, tmp_path):
    shutil.copytree(folders["mixtral"], tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    kept = {name: value for name, value in weights.items() if "layers.1.block_sparse" not in name}
    assert len(kept) < len(weights)
    save_file(kept, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"lacks weights(.|\n)*layers\.1\.mlp"):
        filled(tmp_path)


def test_files_that_are_cut_short_or_missing_are_named(tmp_path):
    tiny_models.build("llama").save_pretrained(tmp_path, max_shard_size="40KB")
    file = sorted(tmp_path.glob("*.safetensors"))[1]
    whole = file.read_bytes()
    for content in (whole[:-1], whole[:100], b"", b"\xff" * 100):
        file.write_bytes(content)
        with pytest.raises(ModelError, match=f"{file.name} can not be read"):
            filled(tmp_path)
    file.unlink()
    with pytest.raises(ModelError, match=f"{file.name} is missing"):
        filled(tmp_path)


def test_weights_that_are_kept_in_another_dtype_are_rounded_as_they_are_read(folders):
    """A base of bfloat16 whose weights are then stored in float32, as trained ones may be."""
    source, config = settings(folders["llama"])
    model = build_skeleton(source, config, BFLOAT16).float()
    put = put_whole(model)
    one = {"share": Share(), "group": None, "beat": lambda: None}
    fill(model, source, config, BFLOAT16, device=CPU, put=put, **one)
    assert_same(model, loaded(folders["llama"], None, BFLOAT16).float())


def test_a_folder_without_weights(folders, tmp_path):
    shutil.copy(folders["llama"] / "config.json", tmp_path)
    with pytest.raises(ModelError, match="holds no weights"):
        filled(tmp_path)
