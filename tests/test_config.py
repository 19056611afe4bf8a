"""Flags and files to settings: types, faults, names, files, checks, precision, help, pages."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import fire
import pytest
import yaml
from fire.decorators import SetParseFn

from ftrecipes.commands.config import settings_yaml
from ftrecipes.config import argv, docs
from ftrecipes.config.errors import ConfigError
from ftrecipes.config.flags import asked, flags_of, value_of
from ftrecipes.config.help import field_doc, help_text, section_doc
from ftrecipes.config.later import LATER_FLAGS, LATER_SECTIONS, LATER_VALUES
from ftrecipes.config.legacy import FATES
from ftrecipes.config.names import MEANINGS
from ftrecipes.config.parse import Parsed, check_argv, parse, parse_words, to_mapping
from ftrecipes.config.precision import (
    Precision,
    cpu_has_bfloat16,
    precision_warnings,
    resolve_precision,
)
from ftrecipes.config.schema import GenerateConfig, RunConfig

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture
def needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The flags that every run needs, with files that exist."""
    monkeypatch.chdir(tmp_path)
    Path("train.jsonl").write_text("{}\n")
    return ["--model_name", "owner/model", "--dataset", "train.jsonl", "--output_dir", "out"]


def faults_of(action: Callable[[], object]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        action()
    assert caught.value.exit_code == 2
    return caught.value.faults


# --- the command line, and fire


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


# --- values


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


# --- names


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("learning_rate", "lr"),
        ("learning-rate", "lr"),
        ("LR", "lr"),
        ("train_config.lr", "lr"),
        ("lora_config.rank", "lora.r"),
        ("lora.rank", "lora.r"),
        ("rank", "lora.r"),
        ("lora_r", "lora.r"),
        ("lora_cfg.r", "lora.r"),
        ("lora.alpha", "lora.lora_alpha"),
        ("lora.dropout", "lora.lora_dropout"),
        ("lora_target_modules", "lora.target_modules"),
        ("use_dora", "lora.use_dora"),
        ("per_device_train_batch_size", "batch_size_training"),
        ("per_device_eval_batch_size", "val_batch_size"),
        ("batch_size", "batch_size_training"),
        ("max_seq_length", "context_length"),
        ("max_length", "context_length"),
        ("cutoff_len", "context_length"),
        ("num_train_epochs", "num_epochs"),
        ("num_epoch", "num_epochs"),
        ("max_steps", "max_train_step"),
        ("max_train_steps", "max_train_step"),
        ("max_grad_norm", "gradient_clipping_threshold"),
        ("model_name_or_path", "model_name"),
        ("mode_name", "model_name"),
        ("dataset_name", "dataset"),
        ("output", "output_dir"),
        ("ouput_dir", "output_dir"),
        ("gradient_acumulation_steps", "gradient_accumulation_steps"),
        ("quantisation", "quantization"),
        ("load_in_4bit", "quantization"),
        ("quant_config.quant_type", "quantization.quant_type"),
        ("bnb_4bit_quant_type", "quantization.quant_type"),
        ("lr_scheduler_type", "scheduler"),
        ("warmup", "warmup_steps"),
        ("enable_fspd", "enable_fsdp"),
        ("gradient_checkpointing", "activation_checkpointing"),
        ("report_to", "tracking"),
        ("test_split", "custom_dataset.test_split"),
    ],
)
def test_unknown_flags_name_the_one_that_was_meant(name, meant, needed):
    (fault,) = faults_of(lambda: parse_words([*needed, f"--{name}", "1"]))
    assert f"did you mean --{meant}?" in fault
    assert fault.startswith(f"--{name.replace('-', '_')}: no such flag\n  got: 1")


def test_words_of_other_tools_point_to_flags_that_exist():
    known = {*flags_of(RunConfig), *flags_of(GenerateConfig), *LATER_FLAGS, *LATER_SECTIONS}
    assert set(MEANINGS) - known == {"quantization"}  # a shorthand
    assert len(MEANINGS) > 30
    assert set(flags_of(RunConfig)).isdisjoint(" ".join(MEANINGS.values()).split())


def test_a_far_fetched_name_still_gets_the_nearest(needed):
    (fault,) = faults_of(lambda: parse_words([*needed, "--nonsense", "1"]))
    assert re.search(r"--help lists all; the nearest name is --\w", fault)


def test_three_dotted_parts_are_one_clear_fault(needed):
    assert len(faults_of(lambda: parse_words([*needed, "--a.b.c", "1"]))) == 1


def test_all_faults_come_together():
    words = ["--lora.rank", "4", "--nonsense", "1", "--lr", "fast"]
    faults = faults_of(lambda: parse_words(words))
    assert [fault.split("\n")[0] for fault in faults] == [
        "--lora.rank: no such flag",
        "--nonsense: no such flag",
        "--lr: bad value",
        "--model_name, --dataset, --output_dir: required",
    ]


def test_a_misspelt_required_flag_is_one_fault(needed):
    words = ["--mode_name", *needed[1:]]
    (fault,) = faults_of(lambda: parse_words(words))
    assert "did you mean --model_name?" in fault


def test_one_complaint_about_one_mistake(needed):
    words = ["--pure_bf16", "--fsdp_config.pure_bf16", "--lr", "1e-5", "--nonsense", "1"]
    (fault,) = faults_of(lambda: parse_words([*needed, *words]))
    assert fault.startswith("--nonsense")


def test_two_spellings_may_agree_but_not_contradict(needed):
    same = parse_words([*needed, "--use_peft", "--lora.r", "4", "--lora_config.r", "4"])
    assert same.config.lora.r == 4
    words = [*needed, "--use_peft", "--lora.r", "4", "--lora_config.r", "5"]
    (fault,) = faults_of(lambda: parse_words(words))
    assert fault.startswith("--lora_config.r: contradicts --lora.r, which says 4\n  got: 5")


# --- quantization words


@pytest.mark.parametrize(
    ("word", "method", "quant_type"),
    [
        ("4bit", "4bit", "nf4"),
        ("int4", "4bit", "nf4"),
        ("nf4", "4bit", "nf4"),
        ("fp4", "4bit", "fp4"),
        ("FP4", "4bit", "fp4"),
        ("8bit", "8bit", "nf4"),
        ("int8", "8bit", "nf4"),
        ("none", "none", "nf4"),
        ("None", "none", "nf4"),
        (None, "none", "nf4"),
    ],
)
@pytest.mark.parametrize("flag", ["quantization", "quantization.method"])
def test_quantization_words(word, method, quant_type, flag, needed):
    flags = argv.split([*needed, "--use_peft"], ()).flags
    config = parse(flags | {flag: word}).config
    assert (config.quantization.method, config.quantization.quant_type) == (method, quant_type)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--quantization"], ["--quantization 8bit or 4bit"]),
        (["--quantization", "True"], ["--quantization 8bit or 4bit"]),
        (["--quantization", "4"], ["did you mean 4bit?"]),
        (["--quantization", "8"], ["did you mean 8bit?"]),
        (["--quantization", "nf5"], ["4bit, int4, nf4, fp4, 8bit, int8"]),
        (["--quantization.quant_type", "nf4"], ["would have no effect", "not none"]),
        (["--quantization", "8bit", "--quantization.quant_type", "fp4"], ["not 8bit"]),
        (["--quantization", "8bit", "--quant_type", "nf4"], ["not 8bit"]),
        (["--quantization", "fp4", "--quantization.quant_type", "nf4"], ["contradicts"]),
        (["--quantization", "nf4", "--quantization_config.quant_type", "fp4"], ["contradicts"]),
        (["--quantization.compute_dtype", "bf16"], ["would have no effect"]),
    ],
)
def test_quantization_faults(words, expected, needed):
    (fault,) = faults_of(lambda: parse_words([*needed, "--use_peft", *words]))
    assert all(part in fault for part in expected), fault


def test_eight_bit_with_fsdp_names_both_and_four_bit(needed):
    words = [*needed, "--use_peft", "--quantization", "8bit", "--enable_fsdp"]
    (fault,) = faults_of(lambda: parse_words(words))
    assert all(part in fault for part in ("--enable_fsdp", "8bit", "4bit"))


def test_a_bare_section_field_has_its_old_effect(needed):
    words = ["--use_peft", "--quantization", "4bit", "--quant_type", "fp4", "--r", "4"]
    config = parse_words([*needed, *words]).config
    assert config.quantization.quant_type == "fp4"
    assert config.lora.r == 4


# --- files, origins, round trip


def test_flags_win_over_the_file_and_origins_tell(needed):
    Path("run.yaml").write_text(
        "data:\nlr: 1e-3\nuse_peft: yes\nnum_epochs: 2\nlora: {r: 4, target-modules: [q_proj]}\n"
        "lora.lora_alpha: 8\nquantization: fp4\n"
    )
    words = [*needed, "--config", "run.yaml", "--lr", "0.5", "--lora_config.r", "2"]
    config = parse_words(words).config
    assert (config.train.lr, config.train.num_epochs, config.lora.r) == (0.5, 2, 2)
    assert config.lora.target_modules == ["q_proj"]
    assert (config.lora.lora_alpha, config.quantization.quant_type) == (8.0, "fp4")
    told = {name: origin for name, origin in config.origins.items() if origin != "default"}
    assert told == {
        "model_name": "--model_name",
        "dataset": "--dataset",
        "output_dir": "--output_dir",
        "lr": "--lr",
        "lora.r": "--lora_config.r",
        "use_peft": "run.yaml",
        "num_epochs": "run.yaml",
        "lora.target_modules": "run.yaml",
        "lora.lora_alpha": "run.yaml",
        "quantization.method": "run.yaml",
        "quantization.quant_type": "run.yaml",
    }
    assert config.origins.keys() == flags_of(RunConfig).keys()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "lr: fast\nlora: {rank: 3}\n",
            ["run.yaml: lr: bad value", "run.yaml: lora.rank: no such"],
        ),
        ("nonsense: 1\n", ["run.yaml: nonsense: no such flag"]),
        ("train: {lr: 1}\n", ["run.yaml: train: no such flag"]),
        ("config: other.yaml\n", ["run.yaml: config: no such flag"]),
        ("lr: 1\nlr: 2\n", ["--config run.yaml: can not be used", "lr is given twice"]),
        ("lora: {r: 1, r: 2}\n", ["the key r is given twice"]),
        ("- lr\n", ["got: list", "a mapping of flags"]),
        ("", ["got: nothing", "a mapping of flags"]),
        ("1: 2\n", ["a key that is not a text"]),
        ("lr: [\n", ["expected: valid YAML"]),
        ("lora: {r: 4}\n", ["would have no effect", "without --use_peft", "(see run.yaml)"]),
        ("lr: -1\n", ["--lr: out of range (see run.yaml)\n  got: -1"]),
    ],
)
def test_file_faults_name_the_file(text, expected, needed):
    Path("run.yaml").write_text(text)
    faults = faults_of(lambda: parse_words([*needed, "--config", "run.yaml"]))
    assert all(part in "\n".join(faults) for part in expected), faults


@pytest.mark.parametrize("path", ["none.yaml", "folder", "latin.yaml"])
def test_unreadable_file_is_the_only_fault(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("latin.yaml").write_bytes(b"lr: \xe9\xff")
    (fault,) = faults_of(lambda: parse_words(["--config", path]))
    assert fault.startswith(f"--config {path}: can not be used")


def test_run_yaml_gives_an_equal_configuration(needed):
    Path("rows.py").touch()
    words = "--use_peft --quantization fp4 --lora.target_modules q_proj,v_proj --warmup_steps 3 "
    words += "--lora.rank_pattern {'q_proj':4} --lr 1e-5 --custom_dataset.file rows.py:rows "
    words += "--custom_dataset.max_rows 10 --custom_dataset.train_split no"
    words = words.replace("'", '"').split()
    words += ["--model_name", "m", "--dataset", "custom_dataset", "--output_dir", "out"]
    config = parse_words(words).config
    assert config.custom_dataset.options == {"max_rows": "10"}
    Path("run.yaml").write_text(yaml.safe_dump(to_mapping(config), sort_keys=False))
    again = parse({"config": "run.yaml"}).config
    assert again == config
    assert set(again.origins.values()) == {"run.yaml"}
    Path("shown.yaml").write_text("\n".join(settings_yaml(config)))
    assert parse({"config": "shown.yaml"}).config == config


def test_the_default_run_yaml_asks_for_nothing(needed):
    """Values in run.yaml that equal a default must not count as contradictions."""
    config = parse_words(needed).config
    Path("run.yaml").write_text(yaml.safe_dump(to_mapping(config)))
    words = ["--config", "run.yaml", "--scheduler", "constant", "--pure_bf16"]
    again = parse_words(words).config
    assert again.train.pure_bf16
    assert not asked(again, "lora.r")


def test_python_values_and_nested_mappings_are_taken(needed):
    flags = argv.split(needed, ()).flags
    config = parse(flags | {"lr": 1e-3, "use_peft": True, "lora": {"r": 4}}).config
    assert (config.train.lr, config.train.use_peft, config.lora.r) == (1e-3, True, 4)


def test_settings_yaml_tells_origins(needed):
    lines = list(settings_yaml(parse_words([*needed, "--lr", "1e-5"]).config))
    assert any(re.fullmatch(r"lr: 1\.0e-05 +# --lr", line) for line in lines)
    assert any(re.fullmatch(r"seed: 42 +# default", line) for line in lines)
    assert len(lines) == len(flags_of(RunConfig)) + 4  # and the names of four sections


# --- custom data sets


def custom(*words: str) -> list[str]:
    start = ["--model_name", "m", "--output_dir", "out", "--dataset", "custom_dataset"]
    return [*start, *words]


def test_unknown_options_reach_the_custom_data_set(needed):
    Path("rows.py").touch()
    words = custom("--custom_dataset.file", "rows.py", "--custom_dataset.language", "de")
    parsed = parse_words([*words, "--custom_dataset.fast", "--custom_dataset.test_spit", "x"])
    assert parsed.config.custom_dataset.options == {
        "language": "de",
        "fast": "True",
        "test_spit": "x",
    }
    assert parsed.config.origins["custom_dataset.language"] == "--custom_dataset.language"
    (warning,) = parsed.warnings
    assert "custom_dataset.test_split was meant" in warning


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "needs --custom_dataset.file"),
        (["--custom_dataset.file", "row.py:f"], "did you mean rows.py?"),
        (["--custom_dataset.file", "rows.txt"], "file.py or file.py:function"),
        (["--custom_dataset.file", "rows.py:not a name"], "file.py or file.py:function"),
        (["--custom_dataset.file", "rows.py", "--data.val_file", "train.jsonl"], "no effect"),
    ],
)
def test_custom_data_set_faults(words, expected, needed):
    Path("rows.py").touch()
    (fault,) = faults_of(lambda: parse_words(custom(*words)))
    assert expected in fault


# --- ranges and combinations


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--max_train_step -1", "--max_train_step: out of range\n  got: -1\n  expected: 0 or more"),
        ("--max_eval_step -1", "0 or more"),
        ("--eval_every_steps -5", "0 or more"),
        ("--warmup_steps -1", "0 or more"),
        ("--batch_size_training 0", "1 or more"),
        ("--val_batch_size 0", "1 or more"),
        ("--gradient_accumulation_steps 0", "1 or more"),
        ("--num_epochs 0", "1 or more"),
        ("--context_length 1", "2 or more"),
        ("--seed -1", "0 or more"),
        ("--seed 4294967296", "less than 4294967296"),
        ("--lr 0", "more than 0"),
        ("--lr -1e-4", "more than 0"),
        ("--weight_decay -0.1", "0 or more"),
        ("--scheduler step --gamma 0", "more than 0"),
        ("--gamma 0.5", "needs --scheduler step"),
        ("--gradient_clipping_threshold 0", "more than 0"),
        ("--gradient_clipping false --gradient_clipping_threshold 2", "--gradient_clipping is off"),
        ("--lora.r 16", "without --use_peft every weight is trained"),
        ("--lora_config.r 8 --peft_method lora", "--peft_method, --lora.r: would have no effect"),
        ("--use_peft --lora.r 0", "1 or more"),
        ("--use_peft --lora.lora_alpha 0", "more than 0"),
        ("--use_peft --lora.lora_dropout 1", "less than 1"),
        ("--use_peft --lora.lora_dropout -0.1", "0 or more"),
        ("--use_peft --lora.target_modules all-linear,q_proj", "all-linear stands alone"),
        ("--use_peft --lora.target_modules none", "nothing would get an adapter"),
        ("--use_peft --lora.layers_pattern layers", "--lora.layers_to_transform is empty"),
        ("--use_peft --lora.target_parameters w --lora.use_dora", "does not work with"),
        ("--use_peft --lora.target_parameters w --lora.lora_dropout .1", "does not work with"),
        ('--use_peft --lora.rank_pattern {"q":0}', "more than 0 for each"),
        ("--quantization 4bit", "without --use_peft: quantized weights can not be trained"),
        ("--quantization 8bit", "without --use_peft: quantized weights can not be trained"),
        ("--custom_dataset.file x.py", "needs --dataset custom_dataset"),
        ("--data.shuffle plain", "for --batching_strategy padding"),
        ("--data.train_split a --data.val_split b", "train.jsonl has no splits"),
        ("--custom_dataset.language de", "needs --dataset custom_dataset"),
        ("--pure_bf16 --use_fp16", "--pure_bf16 true and --use_fp16 true contradict"),
        ("--pure_bf16 --dtype float32", "contradict"),
        ("--pure_bf16 --mixed_precision true", "contradict"),
        ("--use_fp16 --dtype bf16 --use_peft", "contradict"),
        ("--use_fp16 --mixed_precision no", "contradict"),
        ("--dtype bfloat16", "use --pure_bf16"),
        (
            "--use_peft --quantization 4bit --pure_bf16 --quantization.compute_dtype fp32",
            "contradict",
        ),
        (
            "--use_peft --quantization 4bit --use_fp16 --quantization.compute_dtype bf16",
            "contradict",
        ),
        (
            "--use_peft --quantization 4bit --dtype bf16 --quantization.compute_dtype fp32",
            "contradict",
        ),
    ],
)
def test_ranges_and_combinations(words, expected, needed):
    faults = faults_of(lambda: parse_words([*needed, *words.split()]))
    assert expected in "\n".join(faults)
    assert len(faults) == 1 or "--custom_dataset.file" in words


@pytest.mark.parametrize(
    "words",
    [
        "--max_train_step 0",
        "--max_train_step 1",
        "--pure_bf16 --dtype bf16",
        "--pure_bf16 --mixed_precision false",
        "--use_fp16 --dtype float32",
        "--mixed_precision false --dtype bf16",
        "--dtype float32",
        "--use_peft --dtype bf16",
        "--use_peft --quantization 4bit --pure_bf16 --quantization.compute_dtype bf16",
    ],
)
def test_combinations_that_are_allowed(words, needed):
    assert parse_words([*needed, *words.split()]).warnings == ()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--dataset trian.jsonl", "did you mean train.jsonl?"),
        ("--dataset ./none", "does not exist"),
        ("--dataset no/such/file.csv", "there is no folder"),
        ("--dataset ./", "name one file: train.jsonl"),
        ("--dataset notes.txt", "got: .txt"),
        ("--dataset samsum_dataset", "not yet in this version"),
        ("--dataset alpaca_dataset", "not yet in this version"),
        ("--dataset train.jsonl --data.val_file val.jsonl", "--data.val_file val.jsonl"),
        ("--dataset base", "folders are not yet read"),
        ("--dataset o/d --data.val_file train.jsonl --data.val_split v", "--data.val_split: would"),
        ("--model_name ./none", "does not exist"),
        ("--model_name https://a.b/o/m", "a hub id (owner/name)"),
        ("--model_name notes.txt", "no model\n  got: a file"),
        ("--model_name a/b/c", "does not exist"),
        ("--model_name none.gguf", "does not exist"),
        ("--tokenizer_name /none", "does not exist"),
        ("--output_dir notes.txt", "notes.txt is a file"),
        ("--output_dir notes.txt/out", "notes.txt is a file"),
        ("--output_dir base --model_name base", "the folder of --model_name"),
        ("--output_dir earlier", "holds an earlier result\n  got: adapter_model.safetensors"),
        ("--output_dir logs", "holds an earlier result\n  got: metrics.jsonl"),
    ],
)
def test_paths(words, expected, needed):
    Path("notes.txt").write_text("x")
    for name in ("base", "earlier", "logs"):
        Path(name).mkdir()
    Path("earlier/adapter_model.safetensors").write_text("x")
    Path("logs/metrics.jsonl").write_text("x")
    flags = argv.split(needed, ()).flags | argv.split(words.split(), ()).flags
    (fault,) = faults_of(lambda: parse(flags))
    assert expected in fault


def test_earlier_result_may_be_replaced_and_an_empty_one_is_none(needed):
    Path("out").mkdir()
    Path("out/run.yaml").write_text("lr: 1")
    Path("out/metrics.jsonl").touch()  # a run that failed before its first step
    parse_words(needed)
    Path("out/model.safetensors").write_text("x")
    assert parse_words([*needed, "--overwrite_output_dir"]).config.train.overwrite_output_dir


def test_a_folder_that_can_not_be_written_to(needed, monkeypatch):
    # the tests may run as root, whom no mode of a folder stops
    monkeypatch.setattr("ftrecipes.config.check_paths.os.access", lambda path, mode: False)
    (fault,) = faults_of(lambda: parse_words(needed))
    assert "can not be written to" in fault


# --- names whose time has not come


@pytest.mark.parametrize(
    "words",
    [
        *(f"--{name} something" for name in LATER_FLAGS),
        *(f"--{section}.anything 1" for section in LATER_SECTIONS),
        *(f"--{name} {word}" for name, words in LATER_VALUES.items() for word in words),
        "--resume auto",
        "--activation_checkpointing full",
        "--compile",
    ],
)
def test_later_names_and_values_are_refused_with_not_yet(words, needed):
    use = [] if "optimizer" in words or "data." in words else ["--use_peft"]
    (fault,) = faults_of(lambda: parse_words([*needed, *use, *words.split()]))
    assert "not yet in this version" in fault


def test_later_names_are_accepted_when_they_ask_for_nothing(needed):
    words = "--compile false --early_stopping_patience 0 --resume none --data.val_fraction 0"
    assert parse_words([*needed, *words.split()]).warnings == ()


# --- the predecessor's flags, written down from its dataclasses, not from our table

OLD_FLAGS = {
    "": "model_name tokenizer_name enable_fsdp low_cpu_fsdp run_validation batch_size_training "
    "batching_strategy context_length gradient_accumulation_steps gradient_clipping "
    "gradient_clipping_threshold num_epochs max_train_step max_eval_step num_workers_dataloader lr "
    "weight_decay gamma seed use_fp16 mixed_precision val_batch_size dataset peft_method use_peft "
    "from_peft_checkpoint output_dir freeze_layers num_freeze_layers freeze_LLM_only quantization "
    "one_gpu save_model dist_checkpoint_root_folder dist_checkpoint_folder save_optimizer "
    "use_fast_kernels use_wandb save_metrics flop_counter flop_counter_start use_profiler "
    "profiler_dir",
    "fsdp_config": "mixed_precision use_fp16 sharding_strategy hsdp sharding_group_size "
    "replica_group_size checkpoint_type fsdp_activation_checkpointing fsdp_cpu_offload pure_bf16 "
    "optimizer",
    "lora_config": "r lora_alpha target_modules bias task_type lora_dropout inference_mode",
    "llama_adapter_config": "adapter_len adapter_layers task_type",
    "prefix_config": "num_virtual_tokens task_type",
    "quantization_config": "quant_type compute_dtype use_double_quant quant_storage",
    "wandb_config": "project entity job_type tags group notes mode",
    "samsum_dataset": "dataset train_split test_split",
    "grammar_dataset": "dataset train_split test_split",
    "alpaca_dataset": "dataset train_split test_split data_path",
    "custom_dataset": "dataset file train_split test_split data_path",
    "llamaguard_toxicchat_dataset": "dataset train_split test_split",
}
OLD_NAMES = [
    f"{section}.{name}" if section else name
    for section, names in OLD_FLAGS.items()
    for name in names.split()
]
ACCEPTED = {  # a value that our flag takes, where the old default is none
    "model_name": "m",
    "dataset": "train.jsonl",
    "custom_dataset.file": "rows.py",
    "output_dir": "out",
}


def old_command(name: str, value: object) -> Parsed:
    """Parse one old flag, with what it needs around it."""
    flags: dict[str, object] = {"model_name": "m", "dataset": "train.jsonl", "output_dir": "out"}
    flags["use_peft"] = "true"
    if name.startswith("quantization_config"):
        flags["quantization"] = "4bit"
    if name.startswith("custom_dataset"):
        flags |= {"dataset": "custom_dataset", "custom_dataset.file": "rows.py"}
    if name == "gamma":
        flags["scheduler"] = "step"
    return parse(flags | {name: value})


def test_the_table_has_every_flag_of_the_predecessor_and_no_other():
    assert sorted(FATES) == sorted(OLD_NAMES)
    assert len(OLD_NAMES) == len(set(OLD_NAMES)) == 43 + 11 + 7 + 3 + 2 + 4 + 7 + 3 + 3 + 4 + 5 + 3


@pytest.mark.parametrize("name", OLD_NAMES)
def test_every_old_flag_meets_its_fate(name, needed):
    Path("rows.py").touch()
    fate = FATES[name]
    value = ACCEPTED.get(name, fate.default)
    if fate.kind in ("same", "renamed"):
        parsed = old_command(name, value)
        flag = "quantization.method" if name == "quantization" else fate.to
        assert parsed.config.origins[flag] == f"--{name}"
        assert parsed.warnings == ()
        return
    assert old_command(name, fate.neutral).warnings == ()
    if fate.kind == "ignored":
        (warning,) = old_command(name, "something").warnings
        assert warning == f"--{name} is ignored: {fate.why}"
        return
    (fault,) = faults_of(lambda: old_command(name, "something"))
    refusal = {"later": "not yet in this version", "refused": "refused"}[fate.kind]
    assert fault.startswith(f"--{name}: {refusal}: {fate.why}\n  got: something")


def test_off_switches_of_old_commands_are_accepted_in_silence(needed):
    words = "--enable_fsdp False --freeze_layers False --use_wandb False --low_cpu_fsdp no "
    words += "--from_peft_checkpoint= --save_optimizer 0 --flop_counter false --use_profiler off "
    words += "--lora_config.task_type CAUSAL_LM --fsdp_config.fsdp_activation_checkpointing False"
    assert parse_words([*needed, *words.split()]).warnings == ()


# --- precision

FP32 = ("float32", "float32", "float32", "float32", False, False)
PRECISION_TABLE = [
    # flags, device, checkpoint -> base, trainable, compute, reduce, autocast, loss scaling
    ("--use_peft", "cuda", "bfloat16", ("bfloat16", "float32", "bfloat16", "float32", True, False)),
    ("--use_peft", "cuda", "float16", ("float16", "float32", "bfloat16", "float32", True, False)),
    ("--use_peft", "cuda", "float32", ("float32", "float32", "bfloat16", "float32", True, False)),
    ("--use_peft", "cuda", None, ("bfloat16", "float32", "bfloat16", "float32", True, False)),
    ("", "cuda", "bfloat16", ("float32", "float32", "bfloat16", "float32", True, False)),
    ("--use_peft", "cpu", "bfloat16", FP32),
    ("", "cpu", "bfloat16", FP32),
    ("--use_peft --quantization 4bit", "cpu", "bfloat16", FP32),
    ("--use_peft --quantization 8bit", "cpu", "bfloat16", FP32),
    (
        "--use_peft --quantization 4bit",
        "cuda",
        "bfloat16",
        ("bfloat16", "float32", "bfloat16", "float32", True, False),
    ),
    (
        "--use_peft --quantization 4bit --quantization.compute_dtype bf16",
        "cpu",
        "bfloat16",
        ("float32", "float32", "bfloat16", "float32", True, False),
    ),
    ("--use_peft --quantization 4bit --quantization.compute_dtype fp32", "cuda", "bfloat16", FP32),
    *(
        (
            f"--pure_bf16 {words}",
            device,
            "float32",
            ("bfloat16", "bfloat16", "bfloat16", "float32", False, False),
        )
        for words in ("", "--use_peft", "--use_peft --quantization 4bit", "--mixed_precision no")
        for device in ("cpu", "cuda")
    ),
    (
        "--use_fp16 --use_peft",
        "cuda",
        "bfloat16",
        ("float16", "float32", "float16", "float32", True, True),
    ),
    ("--use_fp16", "cuda", "bfloat16", ("float32", "float32", "float16", "float32", True, True)),
    (
        "--mixed_precision False --use_peft",
        "cuda",
        "float16",
        ("float16", "float16", "float16", "float32", False, False),
    ),
    (
        "--mixed_precision False",
        "cuda",
        "bfloat16",
        ("bfloat16", "bfloat16", "bfloat16", "float32", False, False),
    ),
    ("--mixed_precision False --use_peft --quantization int4", "cpu", "bfloat16", FP32),
    (
        "--mixed_precision False --use_peft --quantization 4bit --quantization.compute_dtype bf16",
        "cuda",
        "float32",
        ("float32", "bfloat16", "bfloat16", "float32", False, False),
    ),
    (
        "--use_peft --dtype float32",
        "cuda",
        "bfloat16",
        ("float32", "float32", "bfloat16", "float32", True, False),
    ),
    (
        "--use_peft --dtype bfloat16",
        "cpu",
        "float32",
        ("bfloat16", "float32", "bfloat16", "float32", True, False),
    ),
]


@pytest.mark.parametrize(("words", "device", "checkpoint", "expected"), PRECISION_TABLE)
def test_precision_table(words, device, checkpoint, expected, needed):
    config = parse_words([*needed, *words.split()]).config
    got = resolve_precision(config, device_type=device, checkpoint_dtype=checkpoint)
    assert got == Precision(*expected)


def test_precision_warning_for_a_cpu_without_bfloat16_units():
    slow = Precision("float32", "float32", "bfloat16", "float32", True, False)
    exact = Precision(*FP32)
    kept = precision_warnings(slow, device_type="cpu", cpu_has_bfloat16=False)
    assert len(kept) == 1
    assert "bfloat16" in kept[0]
    assert "40 times" in kept[0]
    for precision, device, units in (
        (slow, "cpu", True),
        (slow, "cuda", False),
        (exact, "cpu", False),
    ):
        assert precision_warnings(precision, device_type=device, cpu_has_bfloat16=units) == []
    assert cpu_has_bfloat16("flags : fpu avx512f avx512_bf16 amx_tile")
    assert cpu_has_bfloat16("Features : fp asimd bf16")
    assert not cpu_has_bfloat16("flags : fpu avx2 avx512f")


# --- generate


def test_generate_has_the_same_strictness(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    faults = faults_of(
        lambda: parse_words(["--temperture", "1", "--max_new_tokens", "0"], into=GenerateConfig)
    )
    assert len(faults) == 4
    text = "\n".join(faults)
    for part in (
        "did you mean --temperature?",
        "1 or more",
        "--prompt is missing",
        "--adapter and",
    ):
        assert part in text
    Path("run").mkdir()
    words = ["--adapter", "run", "--prompt", "Hi", "--compare", "no"]
    (fault,) = faults_of(lambda: parse_words(words, into=GenerateConfig))
    assert "adapter_config.json" in fault
    Path("run/adapter_config.json").write_text(json.dumps({}))
    config = parse_words(words, into=GenerateConfig).config
    assert config == GenerateConfig(adapter="run", prompt="Hi", compare=False)


# --- help and pages


@pytest.mark.parametrize("command", ["finetune", "config", "generate"])
def test_help_has_every_flag_with_its_meaning(command):
    config_class = GenerateConfig if command == "generate" else RunConfig
    text = help_text(command)
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 100
    words = " ".join(text.split())
    for name, flag in flags_of(config_class).items():
        assert f"\n  --{name} " in text
        assert field_doc(config_class, flag) in words
    assert len(flags_of(RunConfig)) > 50


def test_every_field_and_section_has_a_doc_literal():
    for config_class in (RunConfig, GenerateConfig):
        for flag in flags_of(config_class).values():
            assert field_doc(config_class, flag).endswith((".", ".)"))
            assert section_doc(config_class, flag.section)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.md", docs.config_markdown()),
        ("from-llama-recipes.md", docs.legacy_markdown()),
    ],
)
def test_pages_are_fresh(name, text):
    page = (DOCS / name).read_text(encoding="utf-8")
    assert page == text, "run: python -m ftrecipes.config.docs"


def test_pages_have_every_name():
    page = docs.config_markdown()
    assert all(f"| `--{name}` |" in page for name in flags_of(RunConfig))
    page = docs.legacy_markdown()
    assert all(f"| `--{name}` |" in page for name in OLD_NAMES)


def test_other_defaults_are_those_that_differ():
    assert {name: (there, here) for name, there, here in docs.other_defaults()} == {
        "gradient_clipping": ("false", "true"),
        "val_batch_size": ("1", "4"),
        "custom_dataset.file": (
            "getting-started/finetuning/datasets/custom_dataset.py",
            "none",
        ),
        "lora.r": ("8", "16"),
        "lora.target_modules": ("q_proj,v_proj", "all-linear"),
        "lora.lora_dropout": ("0.05", "0"),
        "quantization.quant_type": ("fp4", "nf4"),
        "quantization.compute_dtype": ("bfloat16", "auto"),
        "quantization.use_double_quant": ("false", "true"),
        "quantization.quant_storage": ("bfloat16", "uint8"),
    }
