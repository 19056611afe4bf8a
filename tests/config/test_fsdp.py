"""Flags of --enable_fsdp: the predecessor's names, what is refused with it, and what needs it."""

import json
from pathlib import Path

import pytest

from ftrecipes.config.parse import parse_words
from ftrecipes.config.schema import RunConfig
from ftrecipes.config.sections import FsdpConfig
from tests.config.faults import faults_of


def parsed(needed: list[str], words: str) -> RunConfig:
    return parse_words([*needed, *words.split()]).config


# --- names and words
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", FsdpConfig()),
        ("--fsdp_config.sharding_strategy SHARD_GRAD_OP", FsdpConfig("SHARD_GRAD_OP")),
        ("--sharding_strategy no_shard", FsdpConfig("NO_SHARD")),
        ("--fsdp_config.hsdp", FsdpConfig("HYBRID_SHARD")),
        ("--hsdp True --sharding_strategy HYBRID_SHARD", FsdpConfig("HYBRID_SHARD")),
        ("--hsdp false --fsdp.sharding_strategy NO_SHARD", FsdpConfig("NO_SHARD")),
        (
            "--hsdp --sharding_group_size 4 --fsdp_config.replica_group_size 2",
            FsdpConfig("HYBRID_SHARD", 4, 2),
        ),
        ("--fsdp_config.fsdp_cpu_offload", FsdpConfig(cpu_offload=True)),
        ("--fsdp_config.wrap_classes A,B", FsdpConfig(wrap_classes=["A", "B"])),
        (
            "--fsdp.load_from rank0 --fsdp.timeout_seconds 60",
            FsdpConfig(load_from="rank0", timeout_seconds=60),
        ),
    ],
)
def test_the_section_by_old_and_new_names(words, expected, needed):
    config = parsed(needed, f"--enable_fsdp {words}")
    assert config.fsdp == expected
    assert (config.train.enable_fsdp, config.train.low_cpu_fsdp) == (True, True)


@pytest.mark.parametrize(
    ("words", "method"),
    [
        ("", "auto"),
        ("--activation_checkpointing full", "full"),
        ("--activation_checkpointing", "full"),
        ("--activation_checkpointing.method None", "none"),
        ("--activation_checkpointing off", "none"),
        ("--activation_checkpointing AUTO", "auto"),
        ("--fsdp_config.fsdp_activation_checkpointing True", "full"),
        ("--fsdp_activation_checkpointing false", "none"),
    ],
)
@pytest.mark.parametrize("switch", ["", "--enable_fsdp "])
def test_words_of_activation_checkpointing(words, method, switch, needed):
    assert parsed(needed, switch + words).activation_checkpointing.method == method


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "--activation_checkpointing 3",
            "expected: one of full, selective, none, auto, true, false",
        ),
        ("--hsdp maybe", "expected: one of true, false"),
        ("--hsdp --fsdp.sharding_strategy FULL_SHARD", "contradicts --hsdp, which says HYBRID"),
        ("--fsdp.sharding_strategy HYBRID_SHARD_ZERO2", "did you mean HYBRID_SHARD?"),
        ("--fsdp.sharding_group_size -1", "0 or more"),
        ("--fsdp.replica_group_size -1", "0 or more"),
        ("--fsdp.timeout_seconds 9", "10 or more"),
        ("--fsdp.sharding_group_size 2", "--fsdp.sharding_strategy is FULL_SHARD"),
        ("--sharding_strategy NO_SHARD --replica_group_size 2", "is NO_SHARD, not HYBRID_SHARD"),
        ("--fsdp.load_from rank0 --low_cpu_fsdp false", "each process reads the whole model"),
        ("--fsdp.wrap_classes LlamaDecoderLayer,model.layers", "got: model.layers\n"),
        ("--device mps", "do: use --device cuda, xpu or cpu"),
        ("--optimizer adamw_8bit", "--optimizer adamw_8bit does not work with --enable_fsdp"),
        ("--optimizer paged_adamw_8bit", "do: use --optimizer adamw"),
        ("--new_tokens <a>,<b>", "--new_tokens <a>,<b> does not work with --enable_fsdp"),
        ("--resize_embeddings", "--resize_embeddings true does not work with --enable_fsdp"),
        ("--use_peft --quantization 8bit", "do: use --quantization 4bit"),
        ("--use_peft --peft_method prompt --batching_strategy padding", "use --peft_method lora"),
        ("--use_peft --peft_method prefix --batching_strategy padding", "use --peft_method lora"),
        ("--use_peft --peft_method llama_adapter", "do: use --peft_method lora or ia3"),
        ("--use_peft --lora.init_lora_weights pissa", "it is computed from whole weights"),
        ("--use_peft --lora.init_lora_weights olora", "it is computed from whole weights"),
        ("--use_peft --lora.use_dora", "do: leave it out; --lora.use_rslora works"),
        ("--use_peft --lora.modules_to_save lm_head", "--lora.target_modules may name"),
    ],
)
def test_what_does_not_work_with_fsdp(words, expected, needed):
    (fault,) = faults_of(lambda: parsed(needed, f"--enable_fsdp {words}"))
    assert expected in fault


@pytest.mark.parametrize(
    "words",
    [
        "--use_peft --peft_method ia3",
        "--use_peft --lora.init_lora_weights orthogonal --lora.use_rslora",
        "--optimizer anyprecision --pure_bf16",
        "--use_fp16 --use_peft",
        "--freeze_layers",
        "--low_cpu_fsdp false",
        "--use_peft --quantization 4bit",
    ],
)
def test_what_works_with_fsdp(words, needed):
    assert parse_words([*needed, "--enable_fsdp", *words.split()]).warnings == ()


def test_all_refusals_come_together(needed):
    words = "--use_peft --quantization 8bit --optimizer adamw_8bit --lora.use_dora --new_tokens <a>"
    faults = faults_of(lambda: parsed(needed, f"--enable_fsdp {words}"))
    assert len(faults) == 4
    assert all("does not work with --enable_fsdp" in fault for fault in faults)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"peft_type": "LORA", "use_dora": True}, "use_dora: True"),
        ({"peft_type": "LORA", "modules_to_save": ["lm_head"]}, "modules_to_save: ['lm_head']"),
        ({"peft_type": "LORA", "trainable_token_indices": [3]}, "trainable_token_indices: [3]"),
        ({"peft_type": "LORA", "init_lora_weights": "pissa_niter_4"}, "init_lora_weights: pissa"),
        ({"peft_type": "PREFIX_TUNING"}, "--peft_method prefix does not work"),
        ({"peft_type": "LORA", "init_lora_weights": True, "use_dora": False}, None),
        ({"peft_type": "LORA", "init_lora_weights": "eva"}, None),
        ({"peft_type": "IA3"}, None),
    ],
)
def test_an_adapter_that_is_trained_on(settings, found, needed):
    Path("adapter").mkdir()
    Path("adapter/adapter_model.safetensors").touch()
    Path("adapter/adapter_config.json").write_text(json.dumps(settings))
    words = "--enable_fsdp --use_peft --from_peft_checkpoint adapter --batching_strategy padding"
    if found is None:
        parsed(needed, words)
        return
    (fault,) = faults_of(lambda: parsed(needed, words))
    assert found in fault


# --- without it
def test_settings_of_fsdp_need_it(needed):
    words = "--fsdp.cpu_offload --fsdp.timeout_seconds 600 --low_cpu_fsdp"
    (fault,) = faults_of(lambda: parsed(needed, words))
    names = "--low_cpu_fsdp, --fsdp.cpu_offload, --fsdp.timeout_seconds"
    assert fault.startswith(f"{names}: would have no effect: without --enable_fsdp")


def test_prefix_tuning_is_not_computed_again(needed):
    words = "--use_peft --peft_method prefix --batching_strategy padding --activation_checkpointing"
    (fault,) = faults_of(lambda: parsed(needed, words))
    assert "--activation_checkpointing full does not work with --peft_method prefix" in fault


def test_the_predecessors_command_word_for_word(needed):
    words = """--enable_fsdp --use_peft --peft_method lora --gradient_accumulation_steps 2
        --low_cpu_fsdp --quantization int4 --mixed_precision False --max_train_step 5
        --max_eval_step 5"""
    config = parsed(needed, words)
    assert (config.train.enable_fsdp, config.quantization.method) == (True, "4bit")
    start = ["--model_name", "owner/model", "--output_dir", "out", *words.split()]
    (fault,) = faults_of(lambda: parse_words(start))
    assert fault.startswith("--dataset: required")
    assert "--dataset samsum_dataset, on the hub knkarthick/samsum" in fault
