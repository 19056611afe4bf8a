"""Values are read by the type of their field."""

from pathlib import Path

import pytest

from ftrecipes.config import argv
from ftrecipes.config.flags import value_of
from ftrecipes.config.parse import parse, parse_words
from ftrecipes.config.schema import GenerateConfig
from tests.config.faults import faults_of

GOOD_VALUES = [
    ("use_peft", "false", False),
    ("run_validation", "False", False),
    ("save_model", "no", False),
    ("save_model", "0", False),
    ("save_model", "OFF", False),
    ("trust_remote_code", "True", True),
    ("trust_remote_code", "1", True),
    ("trust_remote_code", "on", True),
    ("trust_remote_code", "Yes", True),
    ("trust_remote_code", True, True),
    ("num_epochs", "007", 7),
    ("num_epochs", "1_000", 1000),
    ("num_epochs", 5, 5),
    ("lr", "1e-4", 1e-4),
    ("lr", "1", 1.0),
    ("lr", 2, 2.0),
    ("warmup_steps", "none", None),
    ("warmup_steps", "Null", None),
    ("warmup_steps", "10", 10),
    ("warmup_steps", None, None),
    ("tokenizer_name", "None", None),
    ("output_dir", "none", "none"),
    ("output_dir", Path("a/b"), "a/b"),
    ("scheduler", "Linear", "linear"),
    ("optimizer", "AdamW", "adamw"),
    ("dtype", "torch.float32", "float32"),
    ("dtype", "fp32", "float32"),
    ("lora.target_modules", "q_proj", ["q_proj"]),
    ("lora.target_modules", "q_proj,v_proj", ["q_proj", "v_proj"]),
    ("lora.target_modules", "[q_proj,v_proj]", ["q_proj", "v_proj"]),
    ("lora.target_modules", "[q_proj, v_proj]", ["q_proj", "v_proj"]),
    ("lora.target_modules", "['q_proj', \"v_proj\"]", ["q_proj", "v_proj"]),
    ("lora.target_modules", '["a{1,2}"]', ["a{1,2}"]),
    ("lora.target_modules", r".*\.[qv]_proj", [r".*\.[qv]_proj"]),
    ("lora.target_modules", ("q_proj", "v_proj"), ["q_proj", "v_proj"]),
    ("lora.modules_to_save", "none", []),
    ("lora.modules_to_save", "[]", []),
    ("lora.layers_to_transform", "0,2", [0, 2]),
    ("lora.layers_to_transform", "[0, 2]", [0, 2]),
    ("lora.layers_to_transform", 3, [3]),
    ("lora.rank_pattern", '{"q_proj": 8}', {"q_proj": 8}),
    ("lora.alpha_pattern", {"q_proj": 8}, {"q_proj": 8.0}),
    ("lora.init_lora_weights", True, "true"),
    ("custom_dataset.data_path", "", ""),
]


@pytest.mark.parametrize(("name", "value", "expected"), GOOD_VALUES)
def test_values_are_read_by_the_type_of_their_field(name, value, expected, needed):
    flags = argv.split(needed, ()).flags
    if name.startswith("lora."):
        flags["use_peft"] = "true"
    if name.startswith("custom_dataset."):
        Path("rows.py").touch()
        flags |= {"dataset": "custom_dataset", "custom_dataset.file": "rows.py"}
    got = value_of(parse(flags | {name: value}).config, name)
    assert got == expected
    assert type(got) is type(expected)


BAD_VALUES = [
    ("use_peft", "maybe", "true or false"),
    ("use_peft", "", "true or false"),
    ("num_epochs", "1.5", "a whole number"),
    ("num_epochs", "0x10", "a whole number"),
    ("num_epochs", "True", "a flag without a value reads as True"),
    ("num_epochs", True, "a whole number"),
    ("num_epochs", 1.0, "a whole number"),
    ("num_epochs", "none", "a whole number"),
    ("lr", "fast", "a number"),
    ("lr", "1,2", "a number"),
    ("lr", "nan", "finite"),
    ("lr", "inf", "finite"),
    ("lr", "1e999", "finite"),
    ("lr", 10**400, "a number"),
    ("lr", True, "a number"),
    ("lora.r", "True", "a flag without a value reads as True"),
    ("warmup_steps", "", "a whole number (or none)"),
    ("tokenizer_name", "", "leave the flag out, or write none"),
    ("output_dir", "True", "a flag without a value reads as True"),
    ("output_dir", 2024, "put the value in quotes"),
    ("scheduler", "cosin", "did you mean cosine?"),
    ("peft_method", "lorra", "one of lora"),
    ("quantization.quant_type", "nf5", "one of nf4, fp4"),
    ("lora.target_modules", "q_proj,,v_proj", "names separated by commas"),
    ("lora.target_modules", "q_proj v_proj", "names separated by commas"),
    ("lora.target_modules", "True", "a flag without a value reads as True"),
    ("lora.layers_to_transform", "0,x", "whole numbers separated by commas"),
    ("lora.rank_pattern", "q_proj:8", "a JSON object"),
    ("lora.rank_pattern", '{"q_proj": 1.5}', "a JSON object"),
    ("lora.rank_pattern", "[8]", "a JSON object"),
    ("lora.rank_pattern", "[" * 100_000, "a JSON object"),
    ("lora.rank_pattern", '{"q_proj": 8, "q_proj": 4}', "q_proj is given twice"),
    ("num_epochs", "9" * 5000, "a whole number"),
    ("output_dir", "a\0b", "zero byte"),
    ("model_name", "m\ud800", "UTF-8"),
]


@pytest.mark.parametrize(("name", "value", "expected"), BAD_VALUES)
def test_bad_values_are_faults_with_what_was_expected(name, value, expected, needed):
    flags = argv.split(needed, ()).flags | {name: value}
    (fault,) = faults_of(lambda: parse(flags))
    assert fault.startswith(f"--{name}: bad value\n  got: ")
    assert expected in fault


def test_home_is_expanded_in_paths_only(needed, monkeypatch):
    monkeypatch.setenv("HOME", "/somewhere")
    assert parse_words([*needed[:-1], "~/a b"]).config.train.output_dir == "/somewhere/a b"
    config = parse_words(["--model_name", "m", "--prompt", "~/x"], into=GenerateConfig).config
    assert config.prompt == "~/x"
