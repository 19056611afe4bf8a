"""--help and the generated pages, against the schema."""

from pathlib import Path

import pytest

from ftrecipes.config import docs
from ftrecipes.config.flags import flags_of
from ftrecipes.config.help import field_doc, help_text, section_doc
from ftrecipes.config.legacy import FATES
from ftrecipes.config.schema import GenerateConfig, RunConfig

DOCS = Path(__file__).parents[2] / "docs"


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
    assert all(f"| `--{name}` |" in page for name in FATES)


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
