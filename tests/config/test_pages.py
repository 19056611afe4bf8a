"""--help and the generated pages, against the schema."""

import shlex
from pathlib import Path

import pytest

from ftrecipes.config import docs
from ftrecipes.config.flags import flags_of
from ftrecipes.config.help import CONFIGS, field_doc, help_text, section_doc
from ftrecipes.config.legacy import FATES
from ftrecipes.config.parse import parse_words
from ftrecipes.config.schema import GenerateConfig, PrepareConfig, PreviewConfig, RunConfig

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("command", CONFIGS)
def test_help_has_every_flag_with_its_meaning(command):
    config_class = CONFIGS[command]
    text = help_text(command)
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 100
    words = " ".join(text.split())
    for name, flag in flags_of(config_class).items():
        assert f"\n  --{name} " in text
        assert field_doc(config_class, flag) in words
    assert len(flags_of(RunConfig)) > 50


def test_help_begins_with_commands_to_copy():
    assert len(commands_of("finetune")) == 3
    assert "--config FILE" in help_text("config")
    assert "--config" not in help_text("generate")


@pytest.mark.parametrize("command", CONFIGS)
def test_the_commands_at_the_head_of_a_help_are_right(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()
    for name in ("train.jsonl", "out/adapter_config.json"):
        Path(name).write_text("{}")
    Path("out/run.yaml").write_text("model_name: m\ndataset: o/d\noutput_dir: other\n")
    into = CONFIGS[command]
    for line in commands_of(command):
        words = shlex.split(line)
        assert words[:2] == ["ftrecipes", command]
        parse_words(words[2:], into=into, writes=False)


def commands_of(command: str) -> list[str]:
    """The commands above the flags of a help, without the line of usage."""
    head = help_text(command).partition("\n  --help")[0].replace("\\\n", " ")
    return [line for line in head.splitlines() if line.startswith("    ftrecipes ")]


def test_every_field_and_section_has_a_doc_literal():
    for config_class in (RunConfig, PreviewConfig, PrepareConfig, GenerateConfig):
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
    assert all(f"| `--{name}` |" in page for name in FATES)


def test_other_defaults_are_those_that_differ():
    assert {name: (there, here) for name, there, here in docs.other_defaults()} == {
        "low_cpu_fsdp": ("false", "true"),
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
        "data.train_file": ("alpaca_data.json", "none"),
        "data.val_file": ("grammar_dataset/grammar_validation.csv", "none"),
        "data.val_split": ("validation", "none"),
        "profiler_dir": ("PATH/to/save/profiler/results", "none"),
        "tracking.project": ("llama_cookbook", "ftrecipes"),
    }
