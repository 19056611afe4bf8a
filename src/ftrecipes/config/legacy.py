"""Every flag of llama-recipes / llama-cookbook (October 2025) and what becomes of it here.

One table, which the parser obeys and docs/from-llama-recipes.md prints. A flag of a section was
accepted there without its prefix too; here as well, where that is not ambiguous. A second, short
one has what llm-foundry and transformers call activation checkpointing in their sections of FSDP.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from ftrecipes.config.entries import NONE_WORDS
from ftrecipes.config.values import FALSE_WORDS

AMBIGUOUS = ("num_virtual_tokens",)  # of prefix alone then, of prompt too now
SECTION_ALIASES = {
    "fsdp_config": "fsdp",
    "lora_config": "lora",
    "quantization_config": "quantization",
}


@dataclass(frozen=True)
class Fate:
    """What becomes of one flag.

    `default` is the predecessor's, as text. `to` is the flag that takes the value now (same,
    renamed). `why` explains. `neutral` is the value that asks for nothing (ignored, refused,
    later): it is accepted without a word.
    """

    kind: Literal["same", "renamed", "ignored", "refused", "later"]
    default: str
    to: str = ""
    why: str = ""
    neutral: str = ""

    def is_neutral(self, value: object) -> bool:
        """Whether `value` is the neutral word, another word for it, or nothing at all."""
        word = str(value).strip().lower()
        alike = FALSE_WORDS if self.neutral in FALSE_WORDS else (self.neutral,)
        return word in (*alike, "", *NONE_WORDS)


def _renamed(default: str, to: str, why: str = "") -> Fate:
    return Fate("renamed", default, to=to, why=why)


def _ignored(default: str, why: str, neutral: str = "") -> Fate:
    return Fate("ignored", default, why=why, neutral=neutral)


def _later(default: str, why: str, neutral: str = "") -> Fate:
    return Fate("later", default, why=why, neutral=neutral)


_SAME = {
    "model_name": ("PATH/to/Model", "required now"),
    "tokenizer_name": ("none", ""),
    "enable_fsdp": ("false", "with one process too"),
    "low_cpu_fsdp": ("false", "no process ever holds the whole model, the first neither"),
    "run_validation": ("true", "also before the first step"),
    "batch_size_training": ("4", ""),
    "batching_strategy": ("packing", "rows are never cut to fill a pack, and the tail is kept"),
    "context_length": ("4096", "obeyed with padding too, and never above the model's limit"),
    "gradient_accumulation_steps": ("1", "every token of a step weighs the same"),
    "gradient_clipping": ("false", ""),
    "gradient_clipping_threshold": ("1.0", ""),
    "num_epochs": ("3", ""),
    "max_train_step": ("0", "counts optimizer steps, not micro-batches"),
    "max_eval_step": ("0", ""),
    "lr": ("1e-4", ""),
    "weight_decay": ("0.0", "norms, biases and other vectors get none"),
    "gamma": ("0.85", "needs --scheduler step"),
    "seed": ("42", ""),
    "use_fp16": ("false", ""),
    "mixed_precision": ("true", "had no effect outside FSDP"),
    "val_batch_size": ("1", "has no influence on the loss"),
    "dataset": (
        "samsum_dataset",
        "required now: a file, a hub id, custom_dataset or a named set",
    ),
    "peft_method": ("lora", "also ia3 and prompt"),
    "use_peft": ("false", ""),
    "output_dir": ("PATH/to/save/PEFT/model", "required now, for full fine-tuning too"),
    "quantization": ("none", "4bit, int4, nf4, fp4, 8bit, int8 or none; True is refused"),
    "save_model": ("true", "the last weights, and beside them those of the best evaluation"),
    "from_peft_checkpoint": ("", "its own method, sizes and targets are taken"),
    "freeze_layers": ("false", "the embeddings too, unless tied to the head"),
    "num_freeze_layers": ("1", ""),
    "flop_counter": ("false", ""),
    "flop_counter_start": ("3", "an optimizer step"),
    "use_profiler": ("false", ""),
    "profiler_dir": ("PATH/to/save/profiler/results", "`profile` in the output folder"),
    "custom_dataset.file": ("getting-started/finetuning/datasets/custom_dataset.py", ""),
    "custom_dataset.train_split": ("train", ""),
    "custom_dataset.test_split": ("validation", ""),
    "custom_dataset.data_path": ("", ""),
}
_FOLDER = "everything is written to --output_dir"
_FILES = "the files are --data.train_file and --data.val_file"
_TOXIC_CHAT = "this data set; a custom function shapes such rows meanwhile: docs/data.md"
_TASK = Fate(
    "refused", "CAUSAL_LM", why="only causal language models are trained", neutral="causal_lm"
)
_SET_NAME = _ignored("its own name", "--dataset alone names the data")

FATES: Mapping[str, Fate] = MappingProxyType(
    {name: Fate("same", default, to=name, why=why) for name, (default, why) in _SAME.items()}
    | {
        "num_workers_dataloader": _ignored("1", "rows are tokenised before training starts"),
        "freeze_LLM_only": Fate(
            "refused", "false", why="image models are not trained", neutral="false"
        ),
        "one_gpu": _ignored("false", "it had no effect", "false"),
        "dist_checkpoint_root_folder": _ignored("PATH/to/save/FSDP/model", _FOLDER),
        "dist_checkpoint_folder": _ignored("fine-tuned", _FOLDER),
        "save_optimizer": _later("false", "checkpoints with optimizer states", "false"),
        "use_fast_kernels": _ignored("false", "fused attention is always used", "false"),
        "use_wandb": _renamed("false", "tracking.wandb"),
        "save_metrics": _ignored("false", "metrics.jsonl is always written", "false"),
        "fsdp_config.mixed_precision": _renamed("true", "mixed_precision"),
        "fsdp_config.use_fp16": _renamed("false", "use_fp16"),
        "fsdp_config.sharding_strategy": _renamed("FULL_SHARD", "fsdp.sharding_strategy"),
        "fsdp_config.hsdp": _renamed(
            "false", "fsdp.sharding_strategy", "true is HYBRID_SHARD, false says nothing"
        ),
        "fsdp_config.sharding_group_size": _renamed("0", "fsdp.sharding_group_size"),
        "fsdp_config.replica_group_size": _renamed("0", "fsdp.replica_group_size"),
        "fsdp_config.checkpoint_type": _ignored(
            "SHARDED_STATE_DICT", "weights are saved as safetensors in the Hugging Face layout"
        ),
        "fsdp_config.fsdp_activation_checkpointing": _renamed(
            "true",
            "activation_checkpointing.method",
            "true is full, false is none; unset, full with --enable_fsdp",
        ),
        "fsdp_config.fsdp_cpu_offload": _renamed("false", "fsdp.cpu_offload"),
        "fsdp_config.pure_bf16": _renamed("false", "pure_bf16"),
        "fsdp_config.optimizer": _renamed("AdamW", "optimizer", "an unknown name is refused"),
        "lora_config.r": _renamed("8", "lora.r"),
        "lora_config.lora_alpha": _renamed("32", "lora.lora_alpha"),
        "lora_config.target_modules": _renamed("q_proj,v_proj", "lora.target_modules"),
        "lora_config.bias": _renamed("none", "lora.bias", "had no effect"),
        "lora_config.task_type": _TASK,
        "lora_config.lora_dropout": _renamed("0.05", "lora.lora_dropout"),
        "lora_config.inference_mode": Fate(
            "refused", "false", why="an adapter is built to be trained", neutral="false"
        ),
        "llama_adapter_config.adapter_len": _renamed("10", "llama_adapter.adapter_len"),
        "llama_adapter_config.adapter_layers": _renamed("30", "llama_adapter.adapter_layers"),
        "llama_adapter_config.task_type": _TASK,
        "prefix_config.num_virtual_tokens": _renamed("30", "prefix.num_virtual_tokens"),
        "prefix_config.task_type": _TASK,
        "quantization_config.quant_type": _renamed("fp4", "quantization.quant_type"),
        "quantization_config.compute_dtype": _renamed("bfloat16", "quantization.compute_dtype"),
        "quantization_config.use_double_quant": _renamed("false", "quantization.use_double_quant"),
        "quantization_config.quant_storage": _renamed("bfloat16", "quantization.quant_storage"),
        "wandb_config.project": _renamed("llama_cookbook", "tracking.project"),
        "samsum_dataset.train_split": _renamed("train", "data.train_split"),
        "samsum_dataset.test_split": _renamed("validation", "data.val_split"),
        "grammar_dataset.train_split": _renamed(
            "grammar_dataset/gtrain_10k.csv", "data.train_file"
        ),
        "grammar_dataset.test_split": _renamed(
            "grammar_dataset/grammar_validation.csv", "data.val_file"
        ),
        "alpaca_dataset.train_split": _ignored("train", _FILES, "train"),
        "alpaca_dataset.test_split": _ignored("val", _FILES, "val"),
        "alpaca_dataset.data_path": _renamed("alpaca_data.json", "data.train_file"),
        "llamaguard_toxicchat_dataset.train_split": _later("train", _TOXIC_CHAT, "train"),
        "llamaguard_toxicchat_dataset.test_split": _later("test", _TOXIC_CHAT, "test"),
    }
    | {
        f"wandb_config.{name}": _renamed("none", f"tracking.{name}")
        for name in ("entity", "job_type", "tags", "group", "notes", "mode")
    }
    | {
        f"{dataset}.dataset": _SET_NAME
        for dataset in (
            "samsum_dataset",
            "grammar_dataset",
            "alpaca_dataset",
            "custom_dataset",
            "llamaguard_toxicchat_dataset",
        )
    }
)

REENTRANT = "only the non-reentrant kind is used: it keeps random states and takes any arguments"
CHECKPOINTING = {
    "activation_checkpointing": _renamed("", "activation_checkpointing.method"),
    "fsdp_activation_checkpointing": _renamed("", "activation_checkpointing.method"),
    "activation_checkpointing_target": _renamed("", "activation_checkpointing.target"),
    "activation_checkpointing_offload": _renamed("", "activation_checkpointing.offload"),
    "activation_cpu_offload": _renamed("", "activation_checkpointing.offload"),
    **dict.fromkeys(
        ("activation_checkpointing_reentrant", "gradient_checkpointing_kwargs.use_reentrant"),
        Fate("refused", "", why=REENTRANT, neutral="false"),
    ),
    "gradient_checkpointing_kwargs": _ignored("", REENTRANT),
}
OTHERS: Mapping[str, Fate] = MappingProxyType(
    {
        prefix + name: fate
        for name, fate in CHECKPOINTING.items()
        for prefix in ("", "fsdp.", "fsdp_config.")
        if prefix + name not in ("activation_checkpointing", *FATES)
    }
)


def fate_of(name: str) -> Fate | None:
    """The fate of `name` as the predecessor spelled it, or typed without its section.

    None when it had no such flag, or when flags of several sections share the bare name.
    """
    if name in FATES or name in OTHERS:
        return FATES.get(name) or OTHERS[name]
    if name in AMBIGUOUS:
        return None
    fates = {fate for full, fate in FATES.items() if full.partition(".")[2] == name}
    return fates.pop() if len(fates) == 1 else None
