"""Optimizers, stopping, best and samples: what the flags alone tell is told before torch."""

from pathlib import Path

import pytest

from ftrecipes.config import argv
from ftrecipes.config.parse import parse, parse_words
from tests.config.faults import faults_of


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--optimizer anyprecision", "without --pure_bf16"),
        ("--optimizer anyprecision --use_fp16", "without --pure_bf16"),
        ("--optimizer paged_adamw_8bit --device cpu", "it needs CUDA"),
        ("--optimizer adamw8bit", "did you mean adamw_8bit"),
        ("--early_stopping_patience -1", "0 or more"),
        ("--early_stopping_patience 2 --run_validation false", "it needs --run_validation"),
        ("--saving.best true --save_model false", "--saving.best: would have no effect"),
        ("--saving.best true --run_validation false", "--run_validation is off"),
        ("--samples.max_new_tokens 5", "it needs --samples.prompts"),
        ("--samples.prompts p.txt --samples.max_new_tokens 0", "1 or more"),
        ("--samples.prompts p.txt --samples.every_steps -1", "0 or more"),
        ("--samples.prompts q.txt", "did you mean p.txt"),
        ("--samples.prompts train.csv", "got: .csv"),
        ("--samples.prompts folder.txt", "got: a folder"),
        ("--model_name out/best --output_dir out --overwrite_output_dir", "folder of --model_name"),
        ("--output_dir kept", "holds an earlier result\n  got: best"),
    ],
)
def test_faults(words, expected, needed):
    for name in ("p.txt", "train.csv"):
        Path(name).write_text("Hi\n")
    Path("folder.txt").mkdir()
    if "best --" in words or "kept" in words:
        for name in ("out/best", "kept/best"):
            Path(name).mkdir(parents=True)
    flags = argv.split(needed, ()).flags | argv.split(words.split(), ()).flags
    (fault,) = faults_of(lambda: parse(flags))
    assert expected in fault


@pytest.mark.parametrize(
    "words",
    [
        "--optimizer anyprecision --pure_bf16",
        "--optimizer adamw_8bit --device cpu",
        "--optimizer paged_adamw_8bit --device cuda",
        "--early_stopping_patience 2 --eval_every_steps 5",
        "--saving.best false --save_model false",
        "--samples.prompts p.txt --samples.every_steps 3 --samples.max_new_tokens 5",
    ],
)
def test_what_is_allowed(words, needed):
    Path("p.txt").write_text("Hi\n")
    assert parse_words([*needed, *words.split()]).warnings == ()
