"""The words that other tools use: for flags of ours, and for what is settled here without a flag.

Other tools: TRL and transformers.TrainingArguments, axolotl, LLaMA-Factory, Lightning.
"""

# Flag, or flag and value -> other words for it. A flag whose time has not come is one as well.
MEANINGS = {
    "activation_checkpointing": "activation_checkpoint "
    "activation_checkpoint.mode recompute_granularity recompute_method",
    "activation_checkpointing full": "grad_checkpointing use_gradient_checkpointing "
    "gradient_checkpoint recompute enable_activation_checkpointing",
    "activation_checkpointing none": "disable_gradient_checkpointing",
    "activation_checkpointing selective": "selective_ac selective_ac_option "
    "selective_activation_checkpointing activation_checkpoint.selective_ac_option",
    "activation_checkpointing.every_n": "every_n_layers checkpoint_every_n recompute_num_layers "
    "activation_checkpointing.every activation_checkpointing.every_n_layers",
    "activation_checkpointing.offload": "activation_offloading offload_activations "
    "enable_activation_offloading activation_checkpointing.cpu_offload "
    "activation_checkpointing.offload_params",
    "activation_checkpointing.save_ops": "activation_checkpointing.ops op_sac_save_list "
    "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns",
    "activation_checkpointing.target": "recompute_modules activation_checkpointing.targets "
    "activation_checkpointing.modules activation_checkpointing.blocks "
    "activation_checkpointing.layers activation_checkpointing.wrap_classes",
    "adapter": "adapter_name_or_path adapter_path lora_path peft_model",
    "batch_size_training": "batch_size bs train_batch_size micro_batch_size mbs micro_batch "
    "per_device_batch_size per_device_train_batch_size per_gpu_train_batch_size",
    "batching_strategy": "packing sample_packing neat_packing group_by_length",
    "compile": "torch_compile",
    "context_length": "max_length max_len max_seq_length max_seq_len seq_len seq_length "
    "sequence_len sequence_length cutoff_len block_size model_max_length max_tokens",
    "data.chat_template": "template chat_template_path chat_template_jinja conversation_template",
    "data.columns": "dataset_text_field text_field text_column prompt_column response_column "
    "field_messages message_property_mappings",
    "data.format": "dataset_format data_format dataset_type formatting",
    "data.train_on": "roles_to_train assistant_only_loss completion_only_loss "
    "train_on_responses_only",
    "data.train_on all": "train_on_inputs train_on_prompt",
    "data.train_on last_assistant": "mask_history train_on_last_message_only",
    "data.train_split": "dataset_train_split split",
    "data.truncation": "truncation truncation_side truncation_mode excess_length_strategy",
    "data.val_file": "validation_file val_data val_data_path eval_file eval_dataset val_dataset "
    "test_file data.validation_file data.eval_file test_datasets",
    "data.val_fraction": "val_set_size val_size validation_size validation_split_percentage "
    "test_size",
    "data.val_split": "dataset_test_split eval_split validation_split",
    "dataset": "data dataset_name dataset_path data_file train_file train_data train_dataset "
    "data_files data.file data.path datasets dataset_mixer dataset_mixture",
    "device": "device_map accelerator",
    "dtype": "torch_dtype model_dtype precision",
    "early_stopping_patience": "early_stopping early_stop patience",
    "eval_every_steps": "eval_steps eval_interval eval_every evaluation_steps val_check_interval "
    "eval_strategy evaluation_strategy evals_per_epoch eval_freq",
    "from_peft_checkpoint": "adapter_name_or_path adapter_path lora_model_dir lora_path peft_model",
    "enable_fsdp": "fsdp use_fsdp fsdp2 ddp use_ddp distributed",
    "fsdp.cpu_offload": "offload_params fsdp_offload_params offload",
    "fsdp.sharding_strategy": "reshard_after_forward fsdp_reshard_after_forward "
    "fsdp_sharding_strategy data_parallel_shard_degree data_parallel_replicate_degree",
    "fsdp.timeout_seconds": "ddp_timeout dist_timeout nccl_timeout timeout",
    "fsdp.wrap_classes": "fsdp_transformer_layer_cls_to_wrap transformer_layer_cls_to_wrap "
    "fsdp_transformer_cls_to_wrap fsdp_auto_wrap_policy auto_wrap_policy custom_sharded_layers",
    "gradient_accumulation_steps": "gradient_accumulation grad_accum grad_accumulation_steps "
    "accumulation_steps accumulate_grad_batches gas",
    "gradient_clipping_threshold": "max_grad_norm grad_clip clip_grad_norm gradient_clip_val",
    "lora.lora_alpha": "alpha lora_scaling",
    "lora.lora_dropout": "dropout adapter_dropout",
    "lora.modules_to_save": "additional_target",
    "lora.r": "rank lora_r lora_rank lora_dim",
    "lora.target_modules": "lora_target lora_target_modules lora_modules targets",
    "lora.target_modules all-linear": "lora_target_linear",
    "low_cpu_fsdp": "cpu_ram_efficient_loading fsdp_cpu_ram_efficient_loading low_cpu_mem_usage",
    "lr": "learning_rate learningrate peak_lr max_lr",
    "max_new_tokens": "max_tokens max_length num_tokens",
    "max_train_step": "max_steps max_step num_steps train_steps max_iters max_train_steps",
    "mixed_precision": "bf16 amp",
    "model_name": "model model_name_or_path model_path base_model model_id "
    "pretrained_model_name_or_path checkpoint",
    "new_tokens": "add_tokens additional_special_tokens added_tokens new_special_tokens",
    "num_epochs": "epochs epoch n_epochs num_train_epochs max_epochs",
    "num_workers_dataloader": "dataloader_num_workers num_workers preprocessing_num_workers "
    "dataset_num_proc num_proc dataset_processes",
    "optimizer": "optim optimizer_name",
    "output_dir": "output out out_dir output_path save_dir save_path",
    "overwrite_output_dir": "overwrite force",
    "quantization": "quantize bits quantization_bit",
    "quantization 4bit": "load_in_4bit use_4bit qlora",
    "quantization 8bit": "load_in_8bit use_8bit",
    "quantization.compute_dtype": "bnb_4bit_compute_dtype",
    "quantization.quant_storage": "bnb_4bit_quant_storage",
    "quantization.quant_type": "bnb_4bit_quant_type",
    "quantization.use_double_quant": "double_quant bnb_4bit_use_double_quant double_quantization "
    "use_bnb_nested_quant",
    "resize_embeddings": "resize_token_embeddings resize_vocab resize_embedding_layer",
    "resume": "resume_from_checkpoint resume_from auto_resume_from_checkpoints",
    "run_validation": "eval do_eval evaluate validation",
    "saving": "save_steps save_strategy save_every saves_per_epoch save_interval save_freq "
    "save_total_limit save_only_model checkpointing_steps",
    "saving.best": "load_best_model_at_end metric_for_best_model save_best",
    "samples.prompts": "eval_prompts sample_prompts",
    "scheduler": "lr_scheduler lr_scheduler_type lr_schedule schedule",
    "seed": "random_seed data_seed manual_seed",
    "time_limit_minutes": "max_time time_limit",
    "tokenizer_name": "tokenizer tokenizer_path tokenizer_name_or_path",
    "tracking": "report_to mlflow logger loggers",
    "tracking.entity": "wandb_entity",
    "tracking.mode": "wandb_mode",
    "tracking.project": "wandb_project",
    "tracking.run_name": "run_name wandb_name wandb_run_name",
    "tracking.tensorboard": "tensorboard use_tensorboard",
    "tracking.wandb": "wandb",
    "use_fp16": "fp16",
    "use_profiler": "profile profiler",
    "use_peft": "peft use_lora lora_enable enable_lora adapter finetuning_type",
    "val_batch_size": "eval_batch_size per_device_eval_batch_size batch_size_validation",
    "warmup_steps": "warmup num_warmup_steps warmup_ratio warmup_iters lr_warmup_steps",
}
# How it is settled in a run -> words for it.
SETTLED = {
    "weights of several sets stand in --dataset (a.jsonl:0.7,b.jsonl:0.3)": "interleave_probs "
    "mix_strategy dataset_weights dataset_probabilities sampling_probabilities",
    "every step is in metrics.jsonl": "logging_steps logging_strategy logging_first_step "
    "logging_dir log_interval log_every log_every_n_steps log_freq",
    "attention is chosen by a probe of the model": "flash_attention flash_attn flash_attention_2 "
    "use_flash_attention use_flash_attention_2 use_flash_attn attn_implementation sdp_attention "
    "xformers_attention eager_attention",
    "DeepSpeed is not used; --enable_fsdp shards weights, gradients and optimizer": "deepspeed "
    "deepspeed_config zero_stage",
    "sharding is that of FSDP2, which has no such setting": "fsdp_version fsdp_backward_prefetch "
    "fsdp_forward_prefetch fsdp_limit_all_gathers fsdp_sync_module_states fsdp_use_orig_params "
    "fsdp_min_num_params fsdp_state_dict_type ddp_find_unused_parameters",
    "only the non-reentrant kind of activation checkpointing is used": "use_reentrant "
    "gradient_checkpointing_use_reentrant use_reentrant_gc",
    "AdamW has betas 0.9 and 0.999 and epsilon 1e-8": "adam_beta1 adam_beta2 adam_epsilon",
    "nothing is uploaded; the result is in --output_dir": "push_to_hub hub_model_id hub_strategy "
    "hub_private_repo hub_token",
}
