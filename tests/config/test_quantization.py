"""Words of --quantization, and the fields beside it."""

import pytest

from ftrecipes.config import argv
from ftrecipes.config.parse import parse, parse_words
from tests.config.faults import faults_of


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
