"""Unknown names point to the one that was meant, and all faults come together."""

import re

import pytest

from ftrecipes.config.flags import flags_of
from ftrecipes.config.later import LATER_FLAGS, LATER_SECTIONS
from ftrecipes.config.legacy import FATES
from ftrecipes.config.meanings import MEANINGS, SETTLED
from ftrecipes.config.parse import check_argv, parse_words
from ftrecipes.config.schema import GenerateConfig, RunConfig
from ftrecipes.config.source import SHORTHANDS
from tests.config.faults import faults_of


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
        ("load_in_4bit", "quantization 4bit"),
        ("load_in_8bit", "quantization 8bit"),
        ("adapter", "use_peft"),
        ("eval_strategy", "eval_every_steps"),
        ("lora_target_linear", "lora.target_modules all-linear"),
        ("quant_config.quant_type", "quantization.quant_type"),
        ("bnb_4bit_quant_type", "quantization.quant_type"),
        ("lr_scheduler_type", "scheduler"),
        ("warmup", "warmup_steps"),
        ("enable_fspd", "enable_fsdp"),
        ("use_fsdp", "enable_fsdp"),
        ("fsdp", "enable_fsdp"),
        ("fsdp_confg", "fsdp_config"),
        ("fsdp.strategy", "fsdp.sharding_strategy"),
        ("fsdp_transformer_layer_cls_to_wrap", "fsdp.wrap_classes"),
        ("fsdp_config.transformer_layer_cls_to_wrap", "fsdp.wrap_classes"),
        ("fsdp_cpu_ram_efficient_loading", "low_cpu_fsdp"),
        ("fsdp_offload_params", "fsdp.cpu_offload"),
        ("ddp_timeout", "fsdp.timeout_seconds"),
        ("grad_checkpointing", "activation_checkpointing full"),
        ("confg", "config"),
        ("test_split", "custom_dataset.test_split"),
    ],
)
def test_unknown_flags_name_the_one_that_was_meant(name, meant, needed):
    (fault,) = faults_of(lambda: parse_words([*needed, f"--{name}", "1"]))
    assert f"did you mean --{meant}?" in fault
    assert fault.startswith(f"--{name.replace('-', '_')}: no such flag\n  got: 1")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("save_steps", "checkpoints during training"),
        ("save_strategy", "checkpoints during training"),
        ("resume_from_checkpoint", "going on from a checkpoint"),
        ("torch_compile", "compiled blocks"),
    ],
)
def test_another_tools_word_for_what_is_not_yet_there_says_so(name, why, needed):
    (fault,) = faults_of(lambda: parse_words([*needed, f"--{name}", "1"]))
    assert fault.startswith(f"--{name}: not yet in this version: {why}")
    assert "did you mean" not in fault


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("logging_steps", "every step is in metrics.jsonl"),
        ("flash_attention", "chosen by a probe"),
        ("attn_implementation", "chosen by a probe"),
        ("deepspeed", "--enable_fsdp shards weights"),
        ("dataloader_num_workers", "rows are tokenised before training starts"),
        ("fsdp_use_orig_params", "FSDP2, which has no such setting"),
        ("grad_checkpointing=false", ""),
        ("one_gpus", "it had no effect"),
        ("load_in_4bit=false", ""),
    ],
)
def test_what_needs_no_flag_is_to_be_left_out(name, why, needed):
    (fault,) = faults_of(lambda: parse_words([*needed, f"--{name}"]))
    assert fault.startswith(f"--{name.partition('=')[0]}: no such flag")
    assert "do: leave it out" in fault
    assert why in fault
    assert "did you mean" not in fault


def test_a_misspelt_name_of_what_is_not_yet_there_says_so(needed):
    (fault,) = faults_of(lambda: parse_words([*needed, "--time_limit_minuts"]))
    assert "--time_limit_minutes is meant? It is not yet in this version: stopping" in fault


def test_words_of_other_tools_point_to_names_that_exist():
    known = {*flags_of(RunConfig), *flags_of(GenerateConfig), *LATER_FLAGS, *LATER_SECTIONS, *FATES}
    known |= set(SHORTHANDS)
    assert {flag.partition(" ")[0] for flag in MEANINGS} <= known
    assert len(MEANINGS) > 30
    words = " ".join([*MEANINGS.values(), *SETTLED.values()]).split()
    assert set(flags_of(RunConfig)).isdisjoint(words)


@pytest.mark.parametrize("name", [*MEANINGS.values(), *SETTLED.values(), *LATER_FLAGS, *FATES])
def test_no_hint_names_what_is_refused_itself(name, needed):
    """For each word of another tool, and for each name of ours with a slip in it."""
    for word in (name.split()[0], name.split()[0] + "s"):
        faults = check_argv([*needed, "--use_peft", f"--{word}", "1", "stray"])
        for hint in re.findall(r"did you mean --([\w.]+)", "\n".join(faults)):
            assert hint in {*flags_of(RunConfig), *SHORTHANDS, "fsdp_config"}


def test_a_far_fetched_name_gets_no_neighbour(needed):
    (fault,) = faults_of(lambda: parse_words([*needed, "--nonsense", "1"]))
    assert fault.splitlines()[-1] == "  do: --help lists all"


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
