"""Trackers whose package is not there, settings that only wandb has, a trace of a counted step."""

import sys
from pathlib import Path

import pytest

from ftrecipes.config.parse import parse_words
from tests.config.faults import faults_of


@pytest.mark.parametrize("with_folder", [False, True], ids=["nothing", "a folder of that name"])
def test_packages_that_are_not_there_are_faults_each(needed, monkeypatch, with_folder):
    for name in ("wandb", "tensorboard"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        if with_folder:
            Path(name, "run-1").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(Path.cwd())])
    faults = faults_of(lambda: parse_words([*needed, "--tracking", "wandb,tensorboard"]))
    assert len(faults) == 2
    assert "--tracking.wandb: the package wandb is not installed here" in faults[0]
    assert "pip install tensorboard" in faults[1]


@pytest.mark.parametrize("words", ["", "--tracking tensorboard"])
def test_settings_of_wandb_without_wandb_would_do_nothing(needed, words):
    asked = ["--tracking.project", "p", "--tracking.tags", "a,b", "--tracking.mode", "offline"]
    (fault,) = faults_of(lambda: parse_words([*needed, *words.split(), *asked]))
    assert "--tracking.project, --tracking.tags, --tracking.mode" in fault
    assert "it needs --tracking.wandb" in fault


def test_settings_of_wandb_with_wandb(needed):
    words = [*needed, "--use_wandb", "--wandb_config.tags", "a,b", "--tracking.mode", "offline"]
    tracking = parse_words(words).config.tracking
    assert (tracking.tags, tracking.mode, tracking.project) == (["a", "b"], "offline", "ftrecipes")


def test_a_step_that_is_counted_is_in_no_trace(needed):
    both = [*needed, "--use_profiler", "--flop_counter"]
    (fault,) = faults_of(lambda: parse_words(both))
    assert "a trace of the steps 3 to 5" in fault
    assert "do: --flop_counter_start 6" in fault
    for start in ("2", "6"):
        assert parse_words([*both, "--flop_counter_start", start]).config.train.flop_counter


def test_names_that_wandb_refuses_are_faults(needed):
    wandb = pytest.importorskip("wandb")
    words = [*needed, "--tracking", "wandb"]
    for project, tag in (("a/b", "t" * 65), ("p" * 129, "t" * 65)):
        asked = [*words, "--tracking.project", project, "--tracking.tags", f"ok,{tag}"]
        first, second = faults_of(lambda asked=asked: parse_words(asked))
        assert "--tracking.project: no name for a project of wandb" in first
        assert "--tracking.tags: too long a tag" in second
        with pytest.raises(wandb.Error):
            wandb.Settings(project=project)
        with pytest.raises(ValueError, match="64 characters"):
            wandb.Settings(run_tags=(tag,))
    fine = ["--tracking.project", "p" * 128, "--tracking.tags", "t" * 64]
    assert parse_words([*words, *fine]).config.tracking.project == "p" * 128
    wandb.Settings(project="p" * 128, run_tags=("t" * 64,))
