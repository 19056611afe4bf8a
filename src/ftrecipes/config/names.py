"""Which flag was meant: by the words that other tools use for it, then by likeness in spelling."""

import difflib
from collections.abc import Iterable

LIKELY = 0.72
MEANINGS = {
    "activation_checkpointing": "gradient_checkpointing",
    "batch_size_training": "batch_size bs train_batch_size micro_batch_size mbs micro_batch "
    "per_device_batch_size per_device_train_batch_size per_gpu_train_batch_size",
    "batching_strategy": "packing sample_packing group_by_length",
    "compile": "torch_compile",
    "context_length": "max_length max_len max_seq_length max_seq_len seq_len seq_length "
    "sequence_len sequence_length cutoff_len block_size model_max_length max_tokens",
    "data.val_file": "validation_file val_data val_data_path eval_file eval_dataset val_dataset "
    "test_file data.validation_file data.eval_file",
    "dataset": "data dataset_name dataset_path data_file train_file train_data train_dataset "
    "data_files data.file data.path",
    "device": "device_map accelerator",
    "dtype": "torch_dtype model_dtype precision",
    "eval_every_steps": "eval_steps eval_interval eval_every evaluation_steps val_check_interval",
    "gradient_accumulation_steps": "gradient_accumulation grad_accum grad_accumulation_steps "
    "accumulation_steps accumulate_grad_batches gas",
    "gradient_clipping_threshold": "max_grad_norm grad_clip clip_grad_norm gradient_clip_val",
    "lora.lora_alpha": "alpha lora_scaling",
    "lora.lora_dropout": "dropout adapter_dropout",
    "lora.r": "rank lora_r lora_rank lora_dim",
    "lora.target_modules": "lora_target lora_target_modules lora_modules targets",
    "lr": "learning_rate learningrate peak_lr max_lr",
    "max_new_tokens": "max_tokens max_length num_tokens",
    "max_train_step": "max_steps max_step num_steps train_steps max_iters max_train_steps",
    "mixed_precision": "bf16 amp",
    "model_name": "model model_name_or_path model_path base_model model_id "
    "pretrained_model_name_or_path checkpoint",
    "num_epochs": "epochs epoch n_epochs num_train_epochs max_epochs",
    "optimizer": "optim optimizer_name",
    "output_dir": "output out out_dir output_path save_dir save_path",
    "overwrite_output_dir": "overwrite force",
    "quantization": "quantize bits load_in_4bit load_in_8bit quantization_bit qlora",
    "quantization.compute_dtype": "bnb_4bit_compute_dtype",
    "quantization.quant_type": "bnb_4bit_quant_type",
    "quantization.use_double_quant": "double_quant bnb_4bit_use_double_quant double_quantization",
    "run_validation": "eval do_eval evaluate validation",
    "saving": "save_steps save_strategy save_every",
    "scheduler": "lr_scheduler lr_scheduler_type lr_schedule schedule",
    "seed": "random_seed data_seed manual_seed",
    "tokenizer_name": "tokenizer tokenizer_path tokenizer_name_or_path",
    "tracking": "report_to wandb",
    "use_fp16": "fp16",
    "use_peft": "peft use_lora lora_enable enable_lora",
    "val_batch_size": "eval_batch_size per_device_eval_batch_size batch_size_validation",
    "warmup_steps": "warmup num_warmup_steps warmup_ratio warmup_iters lr_warmup_steps",
}


def nearest(name: str, known: Iterable[str]) -> tuple[str, bool]:
    """The flag among `known` that `name` was most likely meant to be, and whether that is likely.

    In this order: another tool's word for it, the same field in the right section, like spelling.
    """
    known = list(known)
    name = name.lower()
    field = name.rpartition(".")[2]
    for word in (name, field):
        for flag, words in MEANINGS.items():
            if flag in known and word in words.split():
                return flag, True
    same_field = [flag for flag in known if flag.rpartition(".")[2] == field]
    if same_field:
        return max(same_field, key=lambda flag: _likeness(name, flag)), True
    best = max(known, key=lambda flag: _likeness(name, flag))
    return best, _likeness(name, best) >= LIKELY


def close(word: str, choices: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """The choice that `word` is a misspelling of, if one is alike enough (of at most 1)."""
    return next(iter(difflib.get_close_matches(word, choices, n=1, cutoff=likeness)), None)


def _likeness(name: str, flag: str) -> float:
    """Between 0 and 1: of the whole names, or of the fields alone when one has no section."""
    whole = difflib.SequenceMatcher(a=name, b=flag).ratio()
    if ("." in name) == ("." in flag):
        return whole
    fields = name.rpartition(".")[2], flag.rpartition(".")[2]
    return max(whole, 0.95 * difflib.SequenceMatcher(a=fields[0], b=fields[1]).ratio())
