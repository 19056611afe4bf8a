"""The best weights beside the last, over whole runs: what is kept, replaced, and never mixed up."""

import json
import shutil

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from ftrecipes.checkpoint import result
from ftrecipes.commands.generate import trained_with
from ftrecipes.config.errors import DataError
from ftrecipes.config.run_files import LIVE, STAGING
from ftrecipes.data.loader import Loader
from tests import reference
from tests.conftest import write_lines
from tests.e2e.runs import WEIGHTS, chat, lines, status

# Learning these by heart makes validation rows worse that say the opposite.
TRAIN = [chat(f"Is {word} good?", "yes yes yes") for word in ("rain", "salt", "tea", "wool")]
VAL = [chat("Is iron good?", "yes no no"), chat("Is bread good?", "yes no")]
WORSENING = {"lr": 0.02, "scheduler": "constant", "warmup_steps": 0, "num_epochs": 4}


@pytest.fixture
def data(tmp_path) -> dict:
    return {
        "dataset": write_lines(tmp_path / "rows.jsonl", TRAIN),
        "data.val_file": write_lines(tmp_path / "val.jsonl", VAL),
    }


def same(folder, other) -> bool:
    first, second = load_file(folder / WEIGHTS), load_file(other / WEIGHTS)
    return all(torch.equal(first[name], second[name]) for name in first)


def test_the_best_stays_when_later_epochs_are_worse(finetune, data, model_folder, caplog):
    with caplog.at_level("INFO", logger="ftrecipes"):
        folder = finetune(**data, **WORSENING | {"num_epochs": 14})
    _, *losses = [line["loss"] for line in lines(folder, "evaluation")]
    assert min(losses) < losses[-1], "the last epoch is worse than an earlier one"
    best = folder / "best"
    assert not same(best, folder)
    rows = reference.chat_rows(data["data.val_file"], AutoTokenizer.from_pretrained(best))
    for place, expected in ((best, min(losses)), (folder, losses[-1])):
        model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
        loss = reference.evaluate(PeftModel.from_pretrained(model, place), rows)
        assert loss == pytest.approx(expected, abs=1e-5)
    assert "| evaluation loss after |" in (best / "README.md").read_text()
    assert f"saved to {best}" in caplog.text
    assert not list(folder.glob(f"{STAGING}*"))


def test_an_improving_run_ends_with_both_alike(finetune, data):
    folder = finetune(**data, lr=1e-3, num_epochs=2, quantization="4bit")
    losses = [line["loss"] for line in lines(folder, "evaluation")]
    assert losses == sorted(losses, reverse=True)
    assert same(folder / "best", folder)
    # `ftrecipes generate` loads the base of either as it was trained on.
    for place in (folder, folder / "best"):
        assert trained_with(place).quantization.method == "4bit"


@pytest.mark.parametrize(
    "flags", [{"saving.best": False}, {"save_model": False}, {"run_validation": False}]
)
def test_none_is_kept_where_none_is_asked_for(finetune, data, flags):
    if "run_validation" in flags:
        data = {"dataset": data["dataset"]}
    folder = finetune(**data, **flags)
    assert not (folder / "best").exists()
    assert (folder / WEIGHTS).exists() == ("save_model" not in flags)


def test_an_earlier_best_is_never_taken_for_this_runs(finetune, data):
    """A run without an evaluation replaces a result that has a best."""
    folder = finetune(**data)
    assert (folder / "best").exists()
    finetune(dataset=data["dataset"], overwrite_output_dir=True, seed=3)
    assert not (folder / "best").exists()
    assert (folder / WEIGHTS).exists()


def test_an_earlier_best_goes_with_its_result_and_not_before(finetune, data, monkeypatch):
    folder = finetune(**data, lr=0.02)
    kept = shutil.copytree(folder, folder.with_name("copy"))
    real = result.publish

    def look(*arguments, **settings):
        # The new best is there already, beside the record of the new run.
        assert same(folder / "best", kept / "best")
        assert same(folder, kept)
        assert not same(folder / LIVE / "best", kept / "best")
        real(*arguments, **settings)

    monkeypatch.setattr(result, "publish", look)
    finetune(**data, lr=0.01, overwrite_output_dir=True)
    assert not same(folder / "best", kept / "best")
    assert not (folder / LIVE).exists()
    assert status(folder) == "finished"


def test_a_run_that_dies_before_its_first_step_leaves_an_earlier_best(finetune, data, monkeypatch):
    folder = finetune(**data)
    kept = shutil.copytree(folder, folder.with_name("copy"))
    monkeypatch.setattr(Loader, "micro_batch", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        finetune(**data, overwrite_output_dir=True)
    assert same(folder / "best", kept / "best")
    assert same(folder, kept)


def test_early_stopping_ends_well_and_saves(finetune, data, caplog):
    with caplog.at_level("INFO", logger="ftrecipes"):
        folder = finetune(**data, **WORSENING | {"num_epochs": 30}, early_stopping_patience=2)
    [event] = lines(folder, "early_stop")
    assert event["step"] == event["best_step"] + 2 == lines(folder, "end")[0]["step"] < 30
    assert status(folder) == "finished"
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
    assert (folder / WEIGHTS).exists()
    assert (folder / "best" / WEIGHTS).exists()
    assert "training ends early" in caplog.text


def test_patience_without_validation_rows_is_an_error_before_weights_are_read(
    finetune, data, model_folder, tmp_path
):
    base = shutil.copytree(
        model_folder, tmp_path / "base", ignore=shutil.ignore_patterns("*.safetensors")
    )
    with pytest.raises(DataError, match="--early_stopping_patience 2: there are no validation"):
        finetune(model_name=base, dataset=data["dataset"], early_stopping_patience=2)


def test_samples_go_into_the_metrics_and_their_faults_come_early(
    finetune, data, model_folder, tmp_path
):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Is rain good?\n")
    flags = {"samples.prompts": prompts, "samples.max_new_tokens": 5}
    short = WORSENING | {"num_epochs": 2}
    folder = finetune(**data, **short, **flags)
    samples = lines(folder, "sample")
    assert [line["step"] for line in samples] == [0, 1, 2]
    assert {line["prompt"] for line in samples} == {"Is rain good?"}
    plain = finetune(dataset=data["dataset"], **short, output_dir=tmp_path / "plain")
    losses = [[line["loss"] for line in lines(where, "step")] for where in (folder, plain)]
    assert losses[0] == losses[1]

    base = shutil.copytree(
        model_folder, tmp_path / "base", ignore=shutil.ignore_patterns("*.safetensors")
    )
    prompts.write_text("word " * 300)
    with pytest.raises(DataError, match=r"prompts\.txt line 1: .* takes fewer than 256"):
        finetune(**data, **flags, model_name=base, output_dir=tmp_path / "other")
