"""The best result moves in whole, in the place of an earlier best, or that one stays."""

import logging
import os
import stat
from dataclasses import replace
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file

from ftrecipes.checkpoint import result
from ftrecipes.checkpoint.publish import publish, publish_folder
from ftrecipes.checkpoint.result import Result, rehearse_saving
from ftrecipes.config.errors import CheckpointError
from ftrecipes.config.schema import RunConfig, TrainConfig
from tests import tiny_models
from tests.checkpoint.alone import ALONE, ONE
from tests.checkpoint.test_adapter import trained_model
from tests.checkpoint.test_publish import accept, write_adapter
from tests.tiny_tokenizers import build_tokenizer

STATE = {"step": 3, "tokens": 30, "first_eval_loss": 2.0, "last_eval_loss": 1.0}
WEIGHTS = "adapter_model.safetensors"


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def refuse(staging):
    raise OSError(28, "No space left")


def test_a_better_one_takes_the_place_of_the_whole_folder(tmp_path):
    best = tmp_path / "best"
    publish_folder(best, write_adapter("first"), accept, world=ONE)
    (best / "only_in_the_first").write_text("x")
    publish_folder(best, write_adapter("second"), accept, world=ONE)
    assert (best / WEIGHTS).read_text() == "second"
    assert names(best) == ["adapter_config.json", WEIGHTS]
    assert names(tmp_path) == ["best"]
    # As readable as any other folder of this user.
    (tmp_path / "usual").mkdir()
    assert stat.S_IMODE(os.stat(best).st_mode) == stat.S_IMODE(os.stat(tmp_path / "usual").st_mode)


@pytest.mark.parametrize("step", ["write", "verify", "move"])
@pytest.mark.parametrize("earlier", [False, True])
def test_a_failure_leaves_the_earlier_one_and_nothing_else(tmp_path, monkeypatch, step, earlier):
    best = tmp_path / "best"
    if earlier:
        publish_folder(best, write_adapter("first"), accept, world=ONE)
    if step == "move":
        replace_path = os.replace

        def fail(source, target):
            if target == best and ".saving." in str(source):
                raise OSError(5, "Input/output error")
            replace_path(source, target)

        monkeypatch.setattr(os, "replace", fail)
    write = refuse if step == "write" else write_adapter("second")
    with pytest.raises(CheckpointError, match="best could not be written"):
        publish_folder(best, write, refuse if step == "verify" else accept, world=ONE)
    assert names(tmp_path) == (["best"] if earlier else [])
    if earlier:
        assert (best / WEIGHTS).read_text() == "first"


@pytest.mark.parametrize("keep", [(), ("best",)])
def test_a_result_takes_an_earlier_best_away_and_keeps_its_own(tmp_path, keep):
    publish_folder(tmp_path / "best", write_adapter("best"), accept, world=ONE)
    publish(tmp_path, write_adapter("last"), accept, keep=keep, world=ONE)
    assert (tmp_path / "best").exists() == bool(keep)
    assert (tmp_path / WEIGHTS).read_text() == "last"


def test_a_failed_result_leaves_an_earlier_best(tmp_path):
    publish_folder(tmp_path / "best", write_adapter("best"), accept, world=ONE)
    with pytest.raises(CheckpointError):
        publish(tmp_path, write_adapter("last"), refuse, world=ONE)
    assert (tmp_path / "best" / WEIGHTS).read_text() == "best"


def run_result(kind: str) -> Result:
    model = trained_model() if kind == "adapter" else tiny_models.build("llama")
    config = RunConfig(train=replace(TrainConfig(), use_peft=kind == "adapter"))
    return Result(config, model, build_tokenizer("chatml"), "org/base", **ALONE)


@pytest.mark.parametrize("kind", ["adapter", "full"])
def test_the_best_is_a_result_like_the_last(tmp_path, kind, caplog):
    whole = run_result(kind)
    with caplog.at_level("INFO", logger="ftrecipes"):
        whole.save_best(tmp_path, state=STATE)
    whole.save(tmp_path / "last", state=STATE)
    assert names(tmp_path / "best") == names(tmp_path / "last")
    weights = WEIGHTS if kind == "adapter" else "model.safetensors"
    saved, expected = (load_file(tmp_path / name / weights) for name in ("best", "last"))
    assert saved.keys() == expected.keys()
    assert all((saved[name] == expected[name]).all() for name in saved)
    assert f"saved to {tmp_path / 'best'}" in caplog.text


def test_a_failure_is_a_warning_and_training_goes_on(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(result, "save_adapter", lambda *_, **__: refuse(None))
    run_result("adapter").save_best(tmp_path, state=STATE)
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "best weights so far are not kept" in record.message
    assert "No space left" in record.message
    assert names(tmp_path) == []


def test_the_disk_must_hold_both(tmp_path, monkeypatch):
    """Room for one and a half adapters: enough for the last alone, not for the best beside it."""
    one = run_result("adapter")
    trained = sum(p.nbytes for p in one.model.parameters() if p.requires_grad)
    usage = SimpleNamespace(free=trained * 1.5)
    monkeypatch.setattr("ftrecipes.checkpoint.publish.shutil.disk_usage", lambda _: usage)
    rehearse_saving(one, tmp_path, keeps_best=False)
    with pytest.raises(CheckpointError, match="too full"):
        rehearse_saving(one, tmp_path, keeps_best=True)
