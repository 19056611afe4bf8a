"""Words of a command line: what fire hands over, and what it would bend is a fault."""

import fire
import pytest
from fire.decorators import SetParseFn

from ftrecipes.config import argv
from ftrecipes.config.parse import check_argv, parse
from tests.config.faults import faults_of

FIRE_HANDS_OVER = [
    ["--lr", "1e-4", "--use_peft", "--lora.r", "8"],
    ["--lr=1e-4", "--output-dir", "a-b", "--lora.target-modules=[q_proj,v_proj]"],
    ["--use_peft", "false", "--run_validation=false", "--save_model", "no", "--enable_fsdp", "0"],
    ["--a", "none", "--b", "007", "--c", "0x10", "--d", "1_000", "--e", "1,2", "--f", "(1)"],
    ["--max_train_step", "-1", "--lr", "-.5", "--x=-", "--y=--", "--z="],
    ["--custom_dataset.file", "my.py:fn", "--custom_dataset.a=b=c", "--lora.r"],
    ["--prompt", "two words", "--empty", "", "--note", "None"],
]


@pytest.mark.parametrize("words", FIRE_HANDS_OVER)
def test_split_agrees_with_fire(words):
    received = {}

    @SetParseFn(str)
    def receive(*stray: str, **flags: str) -> None:
        received.update(flags, stray=stray)

    fire.Fire(receive, command=words)
    found = argv.split(words, ())
    assert found.faults == []
    assert {**found.flags, "stray": ()} == received


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--seed", "3", "--seed", "4"], ["--seed: given twice", "3 and 4"]),
        (["--output-dir", "a", "--output_dir", "b"], ["--output_dir: given twice", "a and b"]),
        (["--lr", "-"], ["-: dashes alone"]),
        (["--lr", "1", "--"], ["--: dashes alone"]),
        (["--", "--lr", "1"], ["--: dashes alone"]),
        (["stray"], ["stray: belongs to no flag"]),
        (["--lr", "1", "stray", "words"], ["stray words after --lr 1: belongs to no flag"]),
        ([" --lr", "1"], ["a space stands before the dashes: write --lr"]),
        (["\u2013lr", "1"], ["replaced by a long one: write --lr"]),
        (["\u2013-lr", "1"], ["replaced by a long one: write --lr"]),
        (["--noeval"], ["--noeval: no value follows", "--run_validation false"]),
        (["--no_peft"], ["--no_peft: no value follows", "--use_peft false"]),
        (["-lr", "1"], ["-lr: not a flag", "write --lr"]),
        (["-x"], ["-x: not a flag"]),
        (["--"], ["--: dashes alone"]),
        (["--=3"], ["--=3: not a flag"]),
        (
            ["--lora.target_modules", "[q_proj,", "v_proj]"],
            ["--lora.target_modules: the value has spaces", "'[q_proj, v_proj]'"],
        ),
        (["--lora.rank_pattern", "{q_proj:", "8}"], ["--lora.rank_pattern: the value has spaces"]),
    ],
)
def test_words_that_fire_would_bend_are_faults(words, expected, needed):
    faults = check_argv([*words, *needed] if words[-1] not in ("--", "-") else [*needed, *words])
    text = "\n".join(faults)
    assert all(part in text for part in expected), text
    assert "required" not in text


def test_a_good_command_line_has_no_faults_for_fire(needed):
    assert check_argv([*needed, "--max_train_step", "-1"]) == []  # its range is for parse to judge


def test_shape_and_flag_faults_are_told_together(needed):
    faults = check_argv([*needed, "--lr", "fast", "stray", "--rank", "3"])
    assert len(faults) == 3
    assert "did you mean --lora.r?" in "\n".join(faults)


def test_stray_words_that_reach_main_are_faults(needed):
    flags = argv.split(needed, ()).flags
    assert faults_of(lambda: parse(flags, stray=("my", "file"))) == [
        "my: belongs to no flag",
        "file: belongs to no flag",
    ]
