"""The result as a whole: nothing is published that is not what was trained."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from ftrecipes.checkpoint import result
from ftrecipes.checkpoint.result import Result
from ftrecipes.config.errors import CheckpointError
from ftrecipes.config.run_files import STAGING
from ftrecipes.config.schema import RunConfig, TrainConfig
from tests import tiny_models
from tests.checkpoint.alone import ALONE
from tests.checkpoint.test_adapter import trained_model
from tests.tiny_tokenizers import build_tokenizer

STATE = {"step": 3, "tokens": 30, "first_eval_loss": 2.0, "last_eval_loss": 1.0}
KINDS = {"adapter": "adapter_model.safetensors", "full": "model.safetensors"}


def save(folder, kind: str, **settings) -> None:
    config = RunConfig(train=replace(TrainConfig(), **settings))
    model = trained_model() if kind == "adapter" else tiny_models.build("llama")
    tokenizer = build_tokenizer("chatml")
    Result(config, model, tokenizer, "org/base", **ALONE).save(folder, state=STATE)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_tokenizer_and_card_are_there(tmp_path, kind, caplog):
    with caplog.at_level("INFO", logger="ftrecipes"):
        save(tmp_path / "new" / "out", kind)
    names = {path.name for path in (tmp_path / "new" / "out").iterdir()}
    assert {KINDS[kind], "tokenizer.json", "chat_template.jinja", "README.md"} <= names
    assert ("adapter_config.json" in names) == (kind == "adapter")
    assert ("config.json" in names) == (kind == "full")
    assert "read back, and equal to what was trained" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_who_may_read_a_new_file_may_read_the_weights(tmp_path, kind):
    save(tmp_path / "out", kind)
    (tmp_path / "usual").touch()
    modes = {path.stat().st_mode for path in [*(tmp_path / "out").iterdir(), tmp_path / "usual"]}
    assert len(modes) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_that_changes_a_tensor_is_found_and_nothing_is_published(
    tmp_path, kind, monkeypatch
):
    name = {"adapter": "save_adapter", "full": "save_full"}[kind]
    honest = getattr(result, name)

    def lying(model, folder, **settings):
        honest(model, folder, **settings)
        tensors = load_file(folder / KINDS[kind])
        tensors[min(tensors)] = torch.zeros_like(tensors[min(tensors)])
        save_file(tensors, folder / KINDS[kind], metadata={"format": "pt"})

    monkeypatch.setattr(result, name, lying)
    with pytest.raises(CheckpointError, match="other values in the file than in the model"):
        save(tmp_path / "out", kind)
    (kept,) = (tmp_path / "out").iterdir()
    assert kept.name.startswith(STAGING)


@pytest.mark.parametrize("kind", KINDS)
def test_save_model_false_writes_nothing_and_says_so(tmp_path, kind, caplog):
    with caplog.at_level("INFO", logger="ftrecipes"):
        save(tmp_path / "out", kind, save_model=False)
    assert not (tmp_path / "out").exists()
    assert "no weights are written" in caplog.text
