"""Files that can not be read by ranges: .bin and .gguf (converted once), fp8 and mxfp4."""

import json
import os
from multiprocessing import get_context

import pytest
import torch
from safetensors import safe_open

from ftrecipes.config.errors import ModelError
from ftrecipes.model.converted import converted
from tests import tiny_models
from tests.model.filling import BFLOAT16, FLOAT32, assert_same, filled, loaded, settings
from tests.model.gguf_file import write_gguf
from tests.model.test_stored import SIZES, fp8_folder, mxfp4_folder
from tests.tiny_tokenizers import build_tokenizer

NF4 = {"quant_type": "nf4", "use_double_quant": True}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/ftrecipes/weights"


def bin_folder(folder, family="llama", *, files=1, **options):
    """A folder as transformers 4 wrote it."""
    model = tiny_models.build(family)
    folder.mkdir()
    model.config.save_pretrained(folder)
    state = list(model.state_dict().items())
    if files == 1:
        torch.save(dict(state), folder / "pytorch_model.bin", **options)
        return folder
    names = [f"pytorch_model-{number}.bin" for number in range(files)]
    for number, name in enumerate(names):
        torch.save(dict(state[number::files]), folder / name, **options)
    index = {key: names[at % files] for at, (key, _) in enumerate(state)}
    content = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "pytorch_model.bin.index.json").write_text(content)
    return folder


@pytest.mark.parametrize("family", ["llama", "llama_tied", "gpt2", "mixtral"])
def test_bin_files(family, tmp_path):
    """Tied weights are in them twice, as one storage."""
    folder = bin_folder(tmp_path / "bin", family)
    for quantization in (None, NF4):
        assert_same(filled(folder, quantization)[0], loaded(folder, quantization))


def test_bin_files_are_converted_once(tmp_path, cache, caplog, monkeypatch):
    monkeypatch.setattr("ftrecipes.model.converted._FILE_BYTES", 40_000)
    folder = bin_folder(tmp_path / "bin", files=3)
    expected = loaded(folder)
    with caplog.at_level("INFO", logger="ftrecipes"):
        for _ in range(2):
            assert_same(filled(folder)[0], expected)
    assert caplog.text.count("is converted once") == 1
    (made,) = cache.iterdir()
    sizes = [file.stat().st_size for file in made.iterdir()]
    assert len(sizes) > 2
    assert max(sizes) < 45_000
    os.utime(folder / "pytorch_model-0.bin", ns=(1, 1))  # another file now, for all one knows
    filled(folder)
    assert len(list(cache.iterdir())) == 2


def test_bin_files_of_old_and_damaged_ones(tmp_path, cache):
    old = bin_folder(tmp_path / "old", _use_new_zipfile_serialization=False)
    assert_same(filled(old)[0], tiny_models.build("llama"))
    made = sorted(cache.iterdir())
    for content in (b"", b"no weights", (old / "pytorch_model.bin").read_bytes()[:5000]):
        (old / "pytorch_model.bin").write_bytes(content)
        with pytest.raises(ModelError, match=r"pytorch_model\.bin can not be read"):
            filled(old)
    assert sorted(cache.iterdir()) == made  # nothing half made is left


def test_a_cache_that_can_not_be_written(tmp_path, monkeypatch):
    folder = bin_folder(tmp_path / "bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "pytorch_model.bin"))
    with pytest.raises(ModelError, match="set XDG_CACHE_HOME"):
        filled(folder)


def _convert(folder):
    source, _ = settings(folder)
    return str(converted(source, FLOAT32))


def test_several_processes_convert_at_once(tmp_path, cache):
    folder = bin_folder(tmp_path / "bin")
    with get_context("fork").Pool(3) as pool:
        found = set(pool.map(_convert, [folder] * 6))
    assert found == {str(path) for path in cache.iterdir()}
    assert len(found) == 1


@pytest.mark.parametrize("precision", [FLOAT32, BFLOAT16], ids=lambda p: p.base)
def test_gguf_file(precision, tmp_path, cache):
    tokenizer = build_tokenizer("chatml", pad=None)
    model = tiny_models.build("llama", vocab_size=len(tokenizer))
    path = write_gguf(model, tokenizer, tmp_path / "tiny.gguf")
    assert_same(filled(path, None, precision)[0], loaded(path, None, precision))
    (file,) = next(cache.iterdir()).iterdir()
    with safe_open(file, "pt") as weights:
        dtypes = {weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118  a file is no mapping
    assert dtypes == {{"float32": "F32", "bfloat16": "BF16"}[precision.base]}


@pytest.mark.parametrize("precision", [FLOAT32, BFLOAT16], ids=lambda p: p.base)
@pytest.mark.parametrize("make", [fp8_folder, mxfp4_folder])
def test_dequantized_files(make, precision, tmp_path):
    make(tmp_path)
    model, done = filled(tmp_path, None, precision)
    assert_same(model, loaded(tmp_path, None, precision))
    assert done.num_converted > 0
    assert SIZES["hidden_size"] == model.config.hidden_size
