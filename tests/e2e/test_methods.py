"""Runs with other adapter methods, and runs that go on from an adapter."""

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from ftrecipes.commands.generate import answers
from ftrecipes.config.errors import ConfigError, ModelError
from ftrecipes.config.schema import GenerateConfig
from ftrecipes.finetuning import main
from tests import reference


@pytest.fixture
def train(model_folder, chat_file, val_file, tmp_path):
    """Train with flags; the run's folder."""

    def run(name: str, **flags) -> Path:
        usual = {"model_name": model_folder, "dataset": chat_file, "data.val_file": val_file}
        usual |= {"device": "cpu", "lr": 0.02, "max_train_step": 2, "warmup_steps": 0}
        usual |= {"use_peft": True, "batching_strategy": "padding", "data.cache": False}
        main(**usual | flags, output_dir=tmp_path / name)
        return tmp_path / name

    return run


def evaluations(folder: Path) -> list[float]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] == "evaluation"]


def adapter_settings(folder: Path) -> dict:
    settings = json.loads((folder / "adapter_config.json").read_text())
    # PEFT keeps names as sets, and writes them in any order
    return {k: sorted(v) if isinstance(v, list) else v for k, v in settings.items()}


def trained_numbers(folder: Path) -> int:
    return sum(
        tensor.numel() for tensor in load_file(folder / "adapter_model.safetensors").values()
    )


@pytest.mark.parametrize("method", ["lora", "ia3", "prefix", "prompt", "llama_adapter"])
def test_a_run_goes_on_where_the_other_ended(method, train):
    first = train("first", peft_method=method)
    again = train("again", from_peft_checkpoint=first)
    before, after = evaluations(first), evaluations(again)
    assert before[-1] < before[0]
    # the same weights and rows; the order of summation may differ
    assert after[0] == pytest.approx(before[-1], rel=1e-6)
    assert after[-1] < after[0]
    assert trained_numbers(first) == trained_numbers(again)
    assert adapter_settings(first) == adapter_settings(again)
    ask = {"prompt": "Tell me about rain.", "max_new_tokens": 4, "device": "cpu"}
    [(title, _)] = answers(GenerateConfig(adapter=str(again), compare=False, **ask))
    assert title == f"with the adapter: {again}"


def test_a_flag_that_contradicts_the_adapter_stops_the_run(train):
    first = train("first", **{"lora.r": 4})
    with pytest.raises(ConfigError, match=r"--lora.r contradicts(.|\n)*got: 16\n  expected: 4"):
        train("again", from_peft_checkpoint=first, **{"lora.r": 16})


def test_new_tokens_are_saved_and_go_on(train, model_folder):
    first = train("first", new_tokens="<call>,<end>")
    tokenizer = AutoTokenizer.from_pretrained(first)
    ids = tokenizer("a<call>b<end>", add_special_tokens=False)["input_ids"]
    assert max(ids) == len(tokenizer) - 1
    with pytest.raises(ModelError, match=r"got: token id(.|\n)*--resize_embeddings"):
        train("lost", from_peft_checkpoint=first)
    flags = {"tokenizer_name": first, "resize_embeddings": True}
    again = train("again", from_peft_checkpoint=first, **flags)
    assert evaluations(again)[0] == pytest.approx(evaluations(first)[-1], rel=1e-6)
    logits = []
    for seed in (1, 2):  # another resize draws other rows: those of the file win
        torch.manual_seed(seed)
        base = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
        base.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        with torch.no_grad():
            model = PeftModel.from_pretrained(base, again).eval()
            logits.append(reference.row_logits(model, ids))
    assert torch.equal(*logits)


def test_virtual_tokens_take_room_from_the_rows(train, model_folder, caplog):
    settings = json.loads((model_folder / "config.json").read_text())
    limit = settings["max_position_embeddings"]
    many = {"peft_method": "prefix", "prefix.num_virtual_tokens": limit - 1}
    with pytest.raises(ConfigError, match="leave no room for rows"):
        train("none", **many)
    with caplog.at_level("INFO"):
        train("few", **many | {"prefix.num_virtual_tokens": limit - 100})
    assert f"context_length is 100, the longest row that this model takes beside {limit - 100}" in (
        caplog.text
    )
