"""Whole runs inside this process: awkward rows, lengths and tokenizers."""

import shutil
from pathlib import Path

import pytest
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from ftrecipes.config.errors import DataError, ModelError
from tests import tiny_models
from tests.conftest import write_lines
from tests.e2e.runs import WEIGHTS, chat, lines, status
from tests.tiny_tokenizers import build_tokenizer


@pytest.fixture(scope="module")
def no_weights(model_folder, tmp_path_factory) -> Path:
    """The model's folder without its weights: whoever reads them fails with a ModelError."""
    folder = tmp_path_factory.mktemp("models") / "no weights"
    shutil.copytree(model_folder, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return folder


# --- lengths
def test_answers_beyond_the_context_end_the_run_before_weights_are_read(
    finetune, no_weights, tmp_path
):
    """A prompt of 40 words in front of every answer, and room for 16 positions."""
    data = write_lines(tmp_path / "long.jsonl", [chat("word " * 40, "yes, it is")] * 64)
    with pytest.raises(DataError, match=r"None of 64 rows(.|\n)*--context_length 16"):
        finetune(model_name=no_weights, dataset=data, context_length=16)
    assert status(tmp_path / "out") == "failed"


def test_a_row_without_room_for_its_answer_is_told_and_passed_over(finetune, tmp_path, caplog):
    rows = [chat("Hi", "Hello"), chat("word " * 300, "Hello"), chat("Hi", "Hello there")]
    data = write_lines(tmp_path / "rows.jsonl", rows)
    with caplog.at_level("WARNING", logger="ftrecipes"):
        folder = finetune(dataset=data, context_length=64)
    assert "1 of 3 rows have no token to train on and are passed over: rows.jsonl line 2" in (
        caplog.text
    )
    [step] = lines(folder, "step")
    assert step["rows"] == 2
    assert step["loss"] > 1  # an untrained model is near ln(340)


@pytest.mark.parametrize("strategy", ["packing", "padding"])
def test_context_length_is_the_longest_row(finetune, tmp_path, strategy):
    data = write_lines(tmp_path / "rows.jsonl", [chat("Hi", "word " * 60)] * 3)
    folder = finetune(
        dataset=data, context_length=96, batching_strategy=strategy, batch_size_training=1
    )
    assert [step["positions"] for step in lines(folder, "step")] == [96] * 3


def test_context_length_is_never_above_the_models(finetune, tmp_path, caplog):
    data = write_lines(tmp_path / "rows.jsonl", [chat("Hi", "word " * 400)])
    with caplog.at_level("INFO", logger="ftrecipes"):
        folder = finetune(dataset=data)
    assert "context_length is 256" in caplog.text
    assert lines(folder, "step")[0]["positions"] == 256


# --- faults, found before weights are read
def test_faults_of_both_splits_are_told_together(finetune, no_weights, tmp_path):
    good = chat("Hi", "Hello")
    train = write_lines(tmp_path / "train.jsonl", [good, {"messages": []}])
    val = tmp_path / "val.jsonl"
    val.write_text('{"messages": [')
    with pytest.raises(DataError) as caught:
        finetune(model_name=no_weights, dataset=train, **{"data.val_file": val})
    assert "train.jsonl line 2: key 'messages' has no message" in str(caught.value)
    assert "val.jsonl line 1: no whole JSON object" in str(caught.value)


def test_unknown_names_for_adapters_are_found_first(finetune, no_weights):
    flags = {"lora.target_modules": "q_prj,v_proj", "lora.modules_to_save": "head"}
    with pytest.raises(ModelError) as caught:
        finetune(model_name=no_weights, **flags)
    for name in ("--lora.target_modules q_prj", "--lora.modules_to_save head"):
        assert name in str(caught.value)
    assert "--lora.target_modules v_proj" not in str(caught.value)


# --- few rows
@pytest.mark.parametrize("strategy", ["packing", "padding"])
def test_fewer_rows_than_a_batch_are_all_trained_and_all_evaluated(finetune, tmp_path, strategy):
    rows = [chat("Hi", answer) for answer in ("Hello", "Hello there", "Yes")]
    data = write_lines(tmp_path / "rows.jsonl", rows)
    folder = finetune(
        dataset=data,
        num_epochs=2,
        batching_strategy=strategy,
        **{"data.val_file": data},
    )
    assert [step["rows"] for step in lines(folder, "step")] == [3, 3]
    evaluations = lines(folder, "evaluation")
    assert [(line["rows"], line["total_rows"]) for line in evaluations] == [(3, 3)] * 3
    assert {line["num_tokens"] for line in evaluations} == {lines(folder, "step")[0]["num_tokens"]}


@pytest.mark.parametrize("run_validation", [True, False])
def test_a_custom_data_set_may_have_no_validation_rows(finetune, tmp_path, run_validation):
    """Without --run_validation the function is not even asked for them."""
    code = tmp_path / "mine.py"
    code.write_text(
        "def get_custom_dataset(config, tokenizer, split):\n"
        "    if split == 'validation':\n"
        f"        return {'None' if run_validation else 'undefined'}\n"
        "    return [{'instruction': 'Hi', 'output': 'Hello'}] * 3\n"
    )
    folder = finetune(
        dataset="custom_dataset",
        run_validation=run_validation,
        **{"custom_dataset.file": code},
    )
    assert lines(folder, "evaluation") == []
    assert (folder / WEIGHTS).exists()


# --- tokenizers
@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_no_pad_token_is_needed_and_nothing_is_resized(finetune, tmp_path, family):
    """Flat and padded rows of unlike length, a vocabulary as large as the embedding."""
    tokenizer = build_tokenizer("chatml", pad=None)
    base = tiny_models.save_folder(family, tmp_path / "base", tokenizer=tokenizer)
    folder = finetune(model_name=base, batching_strategy="padding")
    assert AutoTokenizer.from_pretrained(folder).pad_token is None
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)
    assert model.get_input_embeddings().weight.shape[0] == len(tokenizer)


def test_a_pad_token_outside_the_embedding_is_never_fed(finetune, tmp_path):
    tokenizer = build_tokenizer("chatml")
    assert tokenizer.pad_token_id < len(tokenizer) - 1
    tokenizer.add_special_tokens({"pad_token": "<far pad>"})
    assert tokenizer.pad_token_id == len(tokenizer) - 1
    base = tiny_models.save_folder(
        "llama", tmp_path / "base", tokenizer=tokenizer, vocab_size=len(tokenizer) - 1
    )
    assert (finetune(model_name=base, batching_strategy="padding") / WEIGHTS).exists()


@pytest.mark.parametrize("split", ["dataset", "data.val_file"])
def test_ids_outside_the_embedding_are_an_error_in_either_split(
    finetune, chat_file, tmp_path, split
):
    tokenizer = build_tokenizer("chatml")
    tokenizer.add_tokens(["<new>"])
    base = tiny_models.save_folder(
        "llama", tmp_path / "base", tokenizer=tokenizer, vocab_size=len(tokenizer) - 1
    )
    (base / "model.safetensors").unlink()  # found before the weights are read
    data = write_lines(tmp_path / "new.jsonl", [chat("Hi", "Hello <new>")])
    with pytest.raises(ModelError, match=f"token id {len(tokenizer) - 1}"):
        finetune(model_name=base, **{split: data})


def test_a_pad_id_of_zero_stays(finetune, tmp_path):
    tokenizer = build_tokenizer("chatml")
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0)
    base = tiny_models.save_folder("llama", tmp_path / "base", tokenizer=tokenizer)
    assert AutoTokenizer.from_pretrained(finetune(model_name=base)).pad_token_id == 0
