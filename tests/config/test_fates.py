"""Flags of the predecessor, and flags whose time has not come."""

from pathlib import Path

import pytest

from ftrecipes.config.check_paths import FILE_SETS
from ftrecipes.config.later import LATER_FLAGS, LATER_SECTIONS, LATER_VALUES
from ftrecipes.config.legacy import FATES
from ftrecipes.config.parse import Parsed, parse, parse_words
from tests.config.faults import faults_of


# --- names whose time has not come
@pytest.mark.parametrize(
    "words",
    [
        *(f"--{name} something" for name in LATER_FLAGS),
        *(f"--{section}.anything 1" for section in LATER_SECTIONS),
        *(f"--{name} {word}" for name, words in LATER_VALUES.items() for word in words),
        "--resume auto",
        "--compile",
    ],
)
def test_later_names_and_values_are_refused_with_not_yet(words, needed):
    (fault,) = faults_of(lambda: parse_words([*needed, "--use_peft", *words.split()]))
    assert "not yet in this version" in fault


def test_later_names_are_accepted_when_they_ask_for_nothing(needed):
    words = "--compile false --resume none --time_limit_minutes none"
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
    "fsdp_config.hsdp": "true",
    "custom_dataset.file": "rows.py",
    "output_dir": "out",
    "from_peft_checkpoint": "",
    **dict.fromkeys(["alpaca_dataset.data_path", "grammar_dataset.train_split"], "train.jsonl"),
    "grammar_dataset.test_split": "train.jsonl",
}
NEEDED_BY = {
    "fsdp_config": {"enable_fsdp": "true"},
    "gamma": {"scheduler": "step"},
    "flop_counter_start": {"flop_counter": "true"},
    "profiler_dir": {"use_profiler": "true"},
    "llama_adapter_config": {"peft_method": "llama_adapter"},
    "prefix_config": {"peft_method": "prefix", "batching_strategy": "padding"},
    "wandb_config": {"tracking.wandb": "true"},
    "freeze_layers": {"use_peft": "false"},
    "samsum_dataset": {"dataset": "samsum_dataset"},
    "num_freeze_layers": {"use_peft": "false", "freeze_layers": "true"},
}


def old_command(name: str, value: object) -> Parsed:
    """Parse one old flag, with what it needs around it."""
    flags: dict[str, object] = {"model_name": "m", "dataset": "train.jsonl", "output_dir": "out"}
    flags["use_peft"] = "true"
    if name.startswith("quantization_config"):
        flags["quantization"] = "4bit"
    if name.startswith("custom_dataset"):
        flags |= {"dataset": "custom_dataset", "custom_dataset.file": "rows.py"}
    dataset = name.partition(".")[0]
    if dataset in FILE_SETS:
        flags |= {"dataset": dataset}
        if FATES[name].to != "data.train_file":
            flags |= {"data.train_file": "train.jsonl"}
    flags |= NEEDED_BY.get(name.partition(".")[0], {})
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
    words += "--lora_config.task_type CAUSAL_LM --fsdp_config.fsdp_activation_checkpointing False "
    words += "--fsdp_config.hsdp False --fsdp_cpu_offload False --sharding_group_size 0"
    assert parse_words([*needed, *words.split()]).warnings == ()
