"""How a run begins and ends: its seed, and an interrupt."""

import json

import pytest
import torch
from safetensors.torch import load_file

from ftrecipes.data.loader import Loader
from tests.e2e.runs import WEIGHTS, status

DRAWING = """
import random, numpy, torch
def get_custom_dataset(config, tokenizer, split):
    if split == "validation":
        return None
    %s
    return [{"instruction": "Hi", "output": "word " * number} for number in numbers]
"""


def test_the_seed_reaches_the_adapters_whatever_a_custom_data_set_draws(finetune, tmp_path):
    saved = {}
    for name, draws in {"none": "", "some": "torch.rand(3); numpy.random.rand(); "}.items():
        code = tmp_path / f"{name}.py"
        code.write_text(DRAWING % f"{draws}numbers = [1, 2, 3]")
        settings = {"custom_dataset.file": code, "output_dir": tmp_path / name}
        folder = finetune(dataset="custom_dataset", **{"lora.lora_dropout": 0.5}, **settings)
        saved[name] = load_file(folder / WEIGHTS)
    assert all(torch.equal(saved["none"][key], saved["some"][key]) for key in saved["none"])


def test_the_seed_reaches_a_custom_data_set(finetune, tmp_path):
    code = tmp_path / "rows.py"
    code.write_text(DRAWING % "numbers = [random.randint(1, 99), int(torch.randint(1, 99, ()))]")
    prints = []
    for number, seed in enumerate((3, 3, 4)):
        settings = {"custom_dataset.file": code, "output_dir": tmp_path / str(number)}
        folder = finetune(dataset="custom_dataset", seed=seed, **settings)
        prints.append(json.loads((folder / "run.json").read_text())["train_fingerprint"])
    assert prints[0] == prints[1] != prints[2]


def interrupt(monkeypatch, *, after: int) -> None:
    """What Ctrl-C raises, while the rows of the step behind `after` steps are fetched."""
    fetch, calls = Loader.micro_batch, []

    def micro_batch(loader, row_ids):
        calls.append(row_ids)
        if len(calls) > after:
            raise KeyboardInterrupt
        return fetch(loader, row_ids)

    monkeypatch.setattr(Loader, "micro_batch", micro_batch)


def test_an_interrupted_run_saves_the_steps_it_finished(finetune, tmp_path, monkeypatch):
    settings = {"batching_strategy": "padding", "batch_size_training": 2, "lr": 0.01}
    settings |= {"scheduler": "constant", "warmup_steps": 0}
    whole = finetune(**settings, max_train_step=2, output_dir=tmp_path / "whole")
    interrupt(monkeypatch, after=2)
    with pytest.raises(KeyboardInterrupt):
        finetune(**settings)
    cut = tmp_path / "out"
    assert status(cut) == "interrupted"
    assert "| optimizer steps | 2 |" in (cut / "README.md").read_text()
    saved, expected = load_file(cut / WEIGHTS), load_file(whole / WEIGHTS)
    assert saved.keys() == expected.keys()
    assert all(torch.equal(saved[name], expected[name]) for name in saved)


def test_a_run_interrupted_before_its_first_step_saves_nothing(finetune, tmp_path, monkeypatch):
    interrupt(monkeypatch, after=0)
    with pytest.raises(KeyboardInterrupt):
        finetune()
    assert status(tmp_path / "out") == "interrupted"
    assert not (tmp_path / "out" / WEIGHTS).exists()
