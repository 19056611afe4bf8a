"""Flags about the base model: one that is stored quantized, frozen blocks, new tokens."""

import json
from pathlib import Path

import pytest

from ftrecipes.config.parse import parse_words
from ftrecipes.config.schema import QuantizationConfig
from ftrecipes.config.stored import Stored, stored_in, stored_quantization
from tests.config.faults import faults_of

FOUR_BIT = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
EIGHT_BIT = {"quant_method": "bitsandbytes", "load_in_8bit": True}


@pytest.fixture
def base(needed):
    """Arguments of a run on a local model of the given quantization_config."""

    def make(quantization: dict, *words: str) -> list[str]:
        folder = Path("base")
        folder.mkdir(exist_ok=True)
        settings = {"model_type": "llama", "quantization_config": quantization}
        (folder / "config.json").write_text(json.dumps(settings))
        at = needed.index("--model_name")
        return [*needed[:at], "--model_name", "base", *needed[at + 2 :], *words]

    return make


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, None),
        ({"quantization_config": None}, None),
        (
            {"quantization_config": FOUR_BIT | {"bnb_4bit_quant_storage": "bfloat16"}},
            Stored("bitsandbytes", QuantizationConfig("4bit", "nf4", "auto", False, "bfloat16")),
        ),
        (  # what bitsandbytes' own defaults are
            {"quantization_config": {"load_in_4bit": True}},
            Stored("bitsandbytes", QuantizationConfig("4bit", "fp4", "auto", False, "uint8")),
        ),
        (
            {"text_config": {"quantization_config": EIGHT_BIT}},
            Stored("bitsandbytes", QuantizationConfig("8bit")),
        ),
        ({"quantization_config": {"quant_method": "gptq"}}, Stored("gptq", QuantizationConfig())),
        ({"quantization_config": "x"}, Stored("x", QuantizationConfig())),
        ({"quantization_config": {}}, Stored("an unknown method", QuantizationConfig())),
    ],
)
def test_what_a_config_says(settings, expected):
    assert stored_quantization(settings) == expected


def test_no_config_that_can_be_read(tmp_path):
    for content in (None, "[]", "{", '{"quantization_config": null}'):
        if content is not None:
            (tmp_path / "config.json").write_text(content)
        assert stored_in(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("quantization", "words", "expected"),
    [
        (FOUR_BIT, "", "add --use_peft"),
        (EIGHT_BIT, "", "(bitsandbytes 8bit), and such weights can not be trained"),
        (FOUR_BIT, "--use_peft --quantization 8bit", "--quantization.method 8bit contradicts"),
        (EIGHT_BIT, "--use_peft --quantization 4bit", "got: 8bit in its config"),
        (FOUR_BIT, "--use_peft --quantization fp4", "--quantization.quant_type fp4 contradicts"),
        (
            FOUR_BIT,
            "--use_peft --quantization 4bit --quantization.use_double_quant true",
            "--quantization.use_double_quant True contradicts",
        ),
        ({"quant_method": "gptq"}, "--use_peft", "got: gptq"),
        ({"quant_method": "awq"}, "", "give the unquantized model"),
        ({"quant_method": "mxfp4"}, "--use_peft --quantization 4bit", "dequantized while it is"),
    ],
)
def test_contradictions_name_both(quantization, words, expected, base):
    (fault,) = faults_of(lambda: parse_words(base(quantization, *words.split())))
    assert expected in fault
    assert "base" in fault


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        (FOUR_BIT, "--use_peft"),
        (FOUR_BIT, "--use_peft --quantization 4bit"),
        (FOUR_BIT, "--use_peft --quantization nf4 --quantization.use_double_quant false"),
        (EIGHT_BIT, "--use_peft --quantization 8bit"),
        ({"quant_method": "fp8"}, ""),
        ({"quant_method": "mxfp4"}, "--use_peft"),
    ],
)
def test_agreeing_is_fine(quantization, words, base):
    parse_words(base(quantization, *words.split()))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--freeze_layers", "--use_peft"], "--lora.layers_to_transform"),
        (["--num_freeze_layers", "2"], "would have no effect"),
        (["--freeze_layers", "--num_freeze_layers", "0"], "1 or more"),
        (["--new_tokens", "<a>,<b>,<a>"], "<a> twice"),
        (["--new_tokens", '["<a>", " "]'], "not blank"),
    ],
)
def test_frozen_blocks_and_new_tokens(words, expected, needed):
    (fault,) = faults_of(lambda: parse_words([*needed, *words]))
    assert expected in fault


def test_new_tokens_in_full_fine_tuning(needed):
    words = ["--new_tokens", "<a>,<b>", "--freeze_layers", "--num_freeze_layers", "2"]
    train = parse_words([*needed, *words]).config.train
    assert train.new_tokens == ["<a>", "<b>"]
    assert (train.freeze_layers, train.num_freeze_layers) == (True, 2)
