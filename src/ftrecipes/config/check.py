"""Ranges and combinations of settings, checked before anything heavy is imported."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from ftrecipes.config.check_data import check_data
from ftrecipes.config.check_fsdp import check_fsdp
from ftrecipes.config.check_mix import check_mix
from ftrecipes.config.check_paths import check_paths
from ftrecipes.config.check_preview import check_preview
from ftrecipes.config.check_recomputing import check_recomputing
from ftrecipes.config.check_tracking import check_tracking
from ftrecipes.config.check_tuning import check_tuning
from ftrecipes.config.faults import Fault, idle, out_of_range
from ftrecipes.config.flags import asked, asked_in, asked_of, flags_of, value_of
from ftrecipes.config.precision import precision_faults
from ftrecipes.config.prepared_folder import check_prepared
from ftrecipes.config.schema import GenerateConfig, PrepareConfig, PreviewConfig, RunConfig

REQUIRED = {
    "model_name": "a hub id, a folder or a .gguf file",
    "dataset": "a file, a folder, a hub id, custom_dataset, or a named set (the default of "
    "llama-recipes was --dataset samsum_dataset, on the hub knkarthick/samsum)",
    "output_dir": "a folder for the result",
}
AT_LEAST = {
    "batch_size_training": 1,
    "val_batch_size": 1,
    "context_length": 2,
    "gradient_accumulation_steps": 1,
    "num_epochs": 1,
    "max_train_step": 0,
    "eval_every_steps": 0,
    "max_eval_step": 0,
    "early_stopping_patience": 0,
    "num_freeze_layers": 1,
    "profiler_start": 1,
    "profiler_steps": 1,
    "flop_counter_start": 1,
    "weight_decay": 0,
    "warmup_steps": 0,
    "seed": 0,
    "lora.r": 1,
    "lora.lora_dropout": 0,
    "prefix.num_virtual_tokens": 1,
    "prompt.num_virtual_tokens": 1,
    "llama_adapter.adapter_len": 1,
    "llama_adapter.adapter_layers": 1,
    "data.val_fraction": 0,
    "samples.max_new_tokens": 1,
    "samples.every_steps": 0,
    "fsdp.sharding_group_size": 0,
    "fsdp.replica_group_size": 0,
    "fsdp.timeout_seconds": 10,
    "activation_checkpointing.every_n": 0,
    "rows": 0,
    "max_new_tokens": 1,
    "temperature": 0,
}
ABOVE_ZERO = ("lr", "gamma", "gradient_clipping_threshold", "lora.lora_alpha")
BELOW = {"lora.lora_dropout": 1, "data.val_fraction": 1, "seed": 2**32}
# Flags that mean something only with another one.
SWITCHES = {
    "use_profiler": ("profiler_dir", "profiler_start", "profiler_steps"),
    "flop_counter": ("flop_counter_start",),
    "freeze_layers": ("num_freeze_layers",),
    "run_validation": ("early_stopping_patience",),
}
MOST = 10**9  # of a whole number that has no bound of its own here
AT_MOST = {"num_epochs": 10**5}  # each epoch is planned before the first step


def check(config: RunConfig, broken: Collection[str] = (), *, writes: bool = True) -> list[Fault]:
    """Faults of a run's settings; those about `broken` flags, which have a fault, are left out.

    With `writes` False nothing will be written, so that an earlier result is in nobody's way.
    Preview and prepare need no folder for a result at all.
    """
    broken = set(broken) | (set() if writes else {"overwrite_output_dir"})
    if isinstance(config, PreviewConfig | PrepareConfig):
        broken.add("output_dir")
    found = [
        *_missing(config, broken),
        *_ranges(config),
        *check_tuning(config),
        *check_fsdp(config),
        *check_recomputing(config),
        *_loop(config),
        *check_data(config),
        *check_mix(config),
        *check_tracking(config),
        *precision_faults(config),
        *check_paths(config),
        *check_prepared(config),
        *(check_preview(config) if isinstance(config, PreviewConfig) else ()),
    ]
    kept = [fault for fault in found if broken.isdisjoint(fault.flags)]
    return [replace(fault, what=fault.what + _files(config, fault)) for fault in kept]


def check_generate(config: GenerateConfig, broken: Collection[str] = ()) -> list[Fault]:
    """The same for `ftrecipes generate`."""
    found = list(_ranges(config))
    if not config.prompt:
        found.append(Fault("--prompt is missing", expected="the user's message", flags=("prompt",)))
    if config.adapter is None and config.model_name is None:
        what = "--adapter and --model_name are missing"
        expected = "a run folder, or a base model"
        found.append(Fault(what, expected=expected, flags=("adapter", "model_name")))
    if config.plain and config.system is not None:
        why = "--plain has no place for it"
        found.append(idle(["system"], why, "plain"))
    found += check_paths(config)
    return [fault for fault in found if set(fault.flags).isdisjoint(broken)]


def _missing(config: RunConfig, broken: Collection[str]) -> Iterator[Fault]:
    missing = [name for name in REQUIRED if not value_of(config, name) and name not in broken]
    if missing:
        yield Fault(
            f"{', '.join(f'--{name}' for name in missing)}: required",
            got="nothing",
            expected="; ".join(f"--{name}: {REQUIRED[name]}" for name in missing),
        )


def _files(config: RunConfig, fault: Fault) -> str:
    """Where the settings of a fault stand, as far as they were not typed."""
    origins = {config.origins.get(name, "default") for name in fault.flags} - {"default"}
    files = sorted(origin for origin in origins if not origin.startswith("--"))
    return f" (see {', '.join(files)})" if files else ""


def _ranges(config: RunConfig | GenerateConfig) -> Iterator[Fault]:
    for name in flags_of(type(config)):
        value = value_of(config, name)
        if value is None:
            continue
        if name in AT_LEAST and value < AT_LEAST[name]:
            yield out_of_range(name, value, f"{AT_LEAST[name]} or more")
        if name in ABOVE_ZERO and value <= 0:
            yield out_of_range(name, value, "more than 0")
        if name in BELOW and value >= BELOW[name]:
            yield out_of_range(name, value, f"less than {BELOW[name]}")
        elif isinstance(value, int) and name not in BELOW and value > AT_MOST.get(name, MOST):
            yield out_of_range(name, value, f"{AT_MOST.get(name, MOST)} or less")


def _loop(config: RunConfig) -> Iterator[Fault]:
    train = config.train
    if train.scheduler != "step" and asked(config, "gamma"):
        yield idle(["gamma"], "it needs --scheduler step", "scheduler")
    if not train.gradient_clipping and asked(config, "gradient_clipping_threshold"):
        why = "--gradient_clipping is off"
        yield idle(["gradient_clipping_threshold"], why, "gradient_clipping")
    for switch, names in SWITCHES.items():
        names = asked_of(config, names)
        if names and not value_of(config, switch):
            yield idle(names, f"it needs --{switch}", switch)
    names = asked_in(config, "samples", besides="samples.prompts")
    if names and config.samples.prompts is None:
        yield idle(names, "it needs --samples.prompts", "samples.prompts")
    if asked(config, "saving.best") and config.saving.best:
        for name in ("save_model", "run_validation"):
            if not value_of(config, name):
                yield idle(["saving.best"], f"--{name} is off", name)
    if train.optimizer == "anyprecision" and not train.pure_bf16:
        yield Fault(
            "--optimizer anyprecision without --pure_bf16: the trained weights are then kept in "
            "another type, and it stores everything in bfloat16",
            do="add --pure_bf16, or use --optimizer adamw",
            flags=("optimizer", "pure_bf16"),
        )
    if train.optimizer == "paged_adamw_8bit" and train.device not in ("auto", "cuda"):
        yield Fault(
            f"--optimizer paged_adamw_8bit on --device {train.device}: it needs CUDA",
            do="use --optimizer adamw_8bit or adamw",
            flags=("optimizer", "device"),
        )
