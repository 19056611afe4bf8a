"""`--config`: flags win over the file, origins, faults, and the round trip of run.yaml."""

import re
from pathlib import Path

import pytest
import yaml

from ftrecipes.commands.config import settings_yaml
from ftrecipes.config import argv
from ftrecipes.config.flags import FLAT_SECTION, asked, flags_of
from ftrecipes.config.parse import parse, parse_words, to_mapping
from ftrecipes.config.schema import RunConfig
from tests.config.faults import faults_of


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
        ("config: other.yaml\n", ["run.yaml: config: no such flag", "do: --help lists all"]),
        ("load_in_4bit: true\n", ["did you mean run.yaml: quantization: 4bit?"]),
        ("lr: 1\nlr: 2\n", ["--config run.yaml: can not be used", "lr is given twice"]),
        ("lora: {r: 1, r: 2}\n", ["the key r is given twice"]),
        ("- lr\n", ["got: list", "a mapping of flags"]),
        ("", ["got: nothing", "a mapping of flags"]),
        ("true: 2\n", ["a key that is not a text"]),
        ("? [lr]\n: 1\n", ["a key must be a text"]),
        ("? {lr: 1}\n: 1\n", ["a key must be a text"]),
        ("lora: {? [r] : 1}\n", ["a key must be a text"]),
        ("max_train_step: 1:30\n", ["max_train_step: bad value", "got: 1:30"]),
        ("seed: 0x10\n", ["seed: bad value", "got: 0x10"]),
        (f"seed: {'9' * 5000}\n", ["seed: bad value", "a whole number"]),
        ("[" * 3000, ["--config run.yaml: can not be used", "expected: valid YAML"]),
        ('output_dir: "\\UFFFFFFFF"\n', ["--config run.yaml: can not be used"]),
        ('output_dir: "a\\0b"\n', ["output_dir: bad value", "zero byte"]),
        ('output_dir: "a\\ud800"\n', ["output_dir: bad value", "UTF-8"]),
        ('custom_dataset: {x: "a\\0"}\n', ["custom_dataset.x: bad value"]),
        ("lr: [\n", ["expected: valid YAML"]),
        ("lora: {r: 4}\n", ["would have no effect", "without --use_peft", "(see run.yaml)"]),
        ("lr: -1\n", ["--lr: out of range (see run.yaml)\n  got: -1"]),
    ],
)
def test_file_faults_name_the_file(text, expected, needed):
    Path("run.yaml").write_text(text)
    faults = faults_of(lambda: parse_words([*needed, "--config", "run.yaml"]))
    assert all(part in "\n".join(faults) for part in expected), faults


def test_numbers_are_read_as_they_are_written(needed):
    """YAML 1.1 alone would make 8 of 010, and lose the spelling of names that look like numbers."""
    Path("run.yaml").write_text(
        "seed: 010\nmax_train_step: 1_000\nlr: 1e-3\noutput_dir: 2024-01-05\n"
        "custom_dataset: {file: rows.py, limit: 010, data_path: 1.50}\n"
        "dataset: custom_dataset\nmodel_name: owner/model\n"
    )
    Path("rows.py").touch()
    config = parse({"config": "run.yaml"}).config
    assert (config.train.seed, config.train.max_train_step, config.train.lr) == (10, 1000, 1e-3)
    assert config.train.output_dir == "2024-01-05"
    assert config.custom_dataset.options == {"limit": "010"}
    assert config.custom_dataset.data_path == "1.50"


def test_a_number_in_place_of_a_text_is_written_again_as_one(needed):
    Path("own.yaml").write_text("output_dir: 2024\nnew_tokens: [10, 0x1f]\n")
    config = parse_words([*needed[:4], "--config", "own.yaml"]).config
    text = yaml.safe_dump(to_mapping(config))
    assert "output_dir: '2024'" in text
    Path("run.yaml").write_text(text)
    assert parse_words(["--config", "run.yaml"]).config == config


def test_merged_mappings_are_read(needed):
    Path("run.yaml").write_text(
        "lora: &usual {r: 4, lora_alpha: 8}\nuse_peft: true\nlora_config: {<<: *usual, r: 4}\n"
    )
    config = parse_words([*needed, "--config", "run.yaml"]).config
    assert (config.lora.r, config.lora.lora_alpha) == (4, 8.0)


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
    sections = {flag.section for flag in flags_of(RunConfig).values()} - {FLAT_SECTION}
    assert len(lines) == len(flags_of(RunConfig)) + len(sections)
