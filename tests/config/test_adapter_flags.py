"""Flags of adapter methods, and an adapter that a run goes on from: found before torch."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ftrecipes.config.adapter_folder import method_of, virtual_tokens
from ftrecipes.config.parse import parse_words
from tests.config.faults import faults_of

LORA = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "lora_dropout": 0.0, "bias": "none",
        "target_modules": ["v_proj", "q_proj"], "modules_to_save": None, "use_dora": False,
        "init_lora_weights": True, "rank_pattern": {}, "use_rslora": False}  # fmt: skip
PREFIX = {"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 7, "prefix_projection": False}
ON = "--use_peft --from_peft_checkpoint old "


@pytest.fixture
def old(needed) -> Path:
    """The folder of a LoRA adapter beside the data."""
    return adapter(LORA)


def adapter(settings: dict | str) -> Path:
    Path("old").mkdir(exist_ok=True)
    text = settings if isinstance(settings, str) else json.dumps(settings)
    Path("old/adapter_config.json").write_text(text)
    Path("old/adapter_model.safetensors").touch()
    return Path("old")


def run(needed, words: str):
    return parse_words([*needed, *words.split()]).config


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--peft_method lorra", "one of lora, ia3, prefix, prompt, llama_adapter"),
        ("--peft_method prefix", "prefix does not work with --batching_strategy packing"),
        ("--peft_method prompt --batching_strategy packing", "add --batching_strategy padding"),
        ("--peft_method ia3 --new_tokens <a>", "--new_tokens does not work with --peft_method ia3"),
        ("--peft_method llama_adapter --resize_embeddings", "with LoRA only"),
        ("--quantization 4bit --lora.init_lora_weights pissa", "pissa does not work with --quanti"),
        ("--lora.init_lora_weights olora --lora.target_parameters w", "PEFT rewrites modules only"),
        ("--lora.init_lora_weights pizza", "pissa, olora"),
    ],
)
def test_methods_and_what_they_can_not_do(words, expected, needed):
    (fault,) = faults_of(lambda: run(needed, f"--use_peft {words}"))
    assert expected in fault


@pytest.mark.parametrize(
    "words",
    [
        "--peft_method prefix --batching_strategy padding",
        "--peft_method ia3 --quantization 4bit",
        "--lora.init_lora_weights pissa --lora.use_dora",
        "--new_tokens <a>,<b>",
    ],
)
def test_what_works(words, needed):
    run(needed, f"--use_peft {words}")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--lora.r 16", ["--lora.r contradicts", "got: 16\n  expected: 8, as old"]),
        ("--lora.r 8 --lora.use_dora", ["--lora.use_dora contradicts", "expected: False"]),
        ("--lora.target_modules q_proj", ["--lora.target_modules contradicts"]),
        ("--lora.init_lora_weights pissa", ["--lora.init_lora_weights contradicts"]),
        ("--peft_method ia3", ["--peft_method contradicts", "got: ia3\n  expected: lora"]),
        ("--ia3.target_modules k_proj", ["--ia3.target_modules", "its method is lora"]),
    ],
)
def test_settings_that_contradict_the_adapter(words, expected, old, needed):
    (fault,) = faults_of(lambda: run(needed, ON + words))
    assert all(part in fault for part in expected), fault


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--peft_method lora --lora.r 8 --lora.lora_alpha 16",
        "--lora.target_modules q_proj,v_proj --lora.init_lora_weights true",
        "--lora.r 8 --quantization 4bit",
    ],
)
def test_settings_that_repeat_the_adapter(words, old, needed):
    assert method_of(run(needed, ON + words)) == "lora"


def test_words_of_the_run_that_made_the_adapter_are_its_own(old, needed):
    """all-linear is a list of names in the file, and PiSSA has twice the rank there."""
    words = "--lora.r 4 --lora.init_lora_weights pissa --lora.target_modules all-linear"
    assert len(faults_of(lambda: run(needed, ON + words))) == 3
    (old / "run.yaml").write_text(
        "lora:\n  r: 4\n  init_lora_weights: pissa\n  target_modules: [all-linear]\n"
    )
    shutil.copytree(old, "best")
    shutil.move("best", old)  # the best of a run, which has its run.yaml outside
    (old / "best" / "run.yaml").unlink()
    for folder in ("old", "old/best"):
        run(needed, ON.replace("old", folder) + words)
    (fault,) = faults_of(lambda: run(needed, ON + words.replace("r 4", "r 5")))
    assert "--lora.r contradicts" in fault


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("{", "adapter_config.json can not be read"),
        ("[]", "no JSON object"),
        ({"peft_type": "LOHA"}, "got: peft_type LOHA"),
        ({}, "got: peft_type None"),
        (PREFIX, "prefix does not work with --batching_strategy packing"),
    ],
)
def test_adapters_that_can_not_be_gone_on_from(settings, expected, old, needed):
    adapter(settings)
    (fault,) = faults_of(lambda: run(needed, ON))
    assert expected in fault


def test_folders_that_are_none(old, needed):
    (fault,) = faults_of(lambda: run(needed, "--use_peft --from_peft_checkpoint older"))
    assert "older: does not exist" in fault
    (old / "adapter_model.safetensors").unlink()
    (fault,) = faults_of(lambda: run(needed, ON))
    assert "holds no weights" in fault
    (fault,) = faults_of(lambda: run(needed, "--from_peft_checkpoint old"))
    assert "without --use_peft" in fault


@pytest.mark.parametrize("output", ["old", "run"])
def test_the_result_does_not_go_where_the_adapter_is(output, old, needed):
    """Nor into the run folder whose best it is: that one would be replaced."""
    Path("run").mkdir()
    checkpoint = old if output == "old" else old.rename("run/best")
    words = ON.replace("old", str(checkpoint)) + "--overwrite_output_dir"
    (fault,) = faults_of(lambda: run([*needed[:-1], output], words))
    assert "this is the folder of --from_peft_checkpoint" in fault


def test_virtual_tokens_take_positions(needed):
    assert virtual_tokens(run(needed, "--use_peft")) == 0
    padded = "--use_peft --batching_strategy padding --peft_method "
    assert virtual_tokens(run(needed, padded + "prompt --prompt.num_virtual_tokens 9")) == 9
    assert virtual_tokens(run(needed, padded + "prefix")) == 30
    adapter(PREFIX)
    config = run(needed, ON + "--batching_strategy padding")
    assert (method_of(config), virtual_tokens(config)) == ("prefix", 7)


def test_no_torch_is_imported(old, needed):
    code = (
        "import sys; from ftrecipes.config.parse import parse_words; parse_words(sys.argv[1:]); "
        "assert not {'torch', 'peft', 'yaml'} & set(sys.modules)"
    )
    words = [*needed, *ON.split(), "--lora.r", "8"]
    subprocess.run([sys.executable, "-c", code, *words], check=True)
