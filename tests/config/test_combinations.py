"""Ranges, combinations, paths and custom data sets: faults found before torch is imported."""

import json
from pathlib import Path

import pytest

from ftrecipes.config import argv
from ftrecipes.config.parse import parse, parse_words
from ftrecipes.config.schema import GenerateConfig
from tests.config.faults import faults_of


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
        ("--num_epochs 10000000000", "100000 or less"),
        ("--context_length 100000000000000000000", "1000000000 or less"),
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
        ("--data.train_split a --data.val_split b", "rows of train.jsonl have no splits"),
        ("--custom_dataset.language de", "needs --dataset custom_dataset"),
        ("--use_peft --lora.target_modules (", "target_modules: no name and no regular expression"),
        ("--use_peft --lora.exclude_modules *x", "--lora.exclude_modules: no name and no regular"),
        ('--use_peft --lora.rank_pattern {"[":8}', "--lora.rank_pattern: no name and no regular"),
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


def test_all_bad_patterns_are_told_together(needed):
    words = "--use_peft --lora.target_modules (,q_proj,[ --lora.modules_to_save )"
    faults = faults_of(lambda: parse_words([*needed, *words.split()]))
    assert [fault.splitlines()[1].strip() for fault in faults] == ["got: (", "got: [", "got: )"]


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
        ("--dataset notes.md", "got: .md"),
        ("--dataset llamaguard_toxicchat_dataset", "do: shape such rows with a function of"),
        ("--dataset train.jsonl --data.val_file val.jsonl", "--data.val_file val.jsonl"),
        ("--dataset base", "this folder holds no data files"),
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
    for name in ("notes.txt", "notes.md"):
        Path(name).write_text("x")
    for name in ("base", "earlier", "logs"):
        Path(name).mkdir()
    Path("earlier/adapter_model.safetensors").write_text("x")
    Path("logs/metrics.jsonl").write_text("x")
    flags = argv.split(needed, ()).flags | argv.split(words.split(), ()).flags
    (fault,) = faults_of(lambda: parse(flags))
    assert expected in fault


def test_names_too_long_for_a_file_are_no_crash(needed):
    words = {"model_name": "m" * 5000, "dataset": "/" + "d" * 5000, "output_dir": "o" * 5000}
    missing, too_long = faults_of(lambda: parse(words))
    assert ": does not exist" in missing
    assert "--output_dir" in too_long


def test_a_folder_that_can_not_be_written_to(needed, monkeypatch):
    # the tests may run as root, whom no mode of a folder stops
    monkeypatch.setattr("ftrecipes.config.check_paths.os.access", lambda path, mode: False)
    (fault,) = faults_of(lambda: parse_words(needed))
    assert "can not be written to" in fault


# --- generate
@pytest.mark.parametrize(("path", "folder"), [("out/run.yaml", "out"), ("run.yaml", ".")])
def test_generate_points_from_a_file_of_settings_to_the_folder(path, folder, needed):
    Path("out").mkdir()
    for name in ("out/run.yaml", "run.yaml"):
        Path(name).write_text("lr: 1e-4\nlora: {r: 4}\n")
    words = ["--config", path, "--prompt", "Hi"]
    (fault,) = faults_of(lambda: parse_words(words, into=GenerateConfig))
    assert fault.endswith(f"name the run's folder: --adapter {folder}")


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
    parse_words([*words, "--model_name", "o/m"], into=GenerateConfig)
    Path("run/adapter_config.json").rename("run/config.json")
    parse_words(words, into=GenerateConfig)
    (fault,) = faults_of(lambda: parse_words([*words, "--model_name", "o/m"], into=GenerateConfig))
    assert "--model_name: would have no effect" in fault
