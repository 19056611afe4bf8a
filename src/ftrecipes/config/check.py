"""Ranges and combinations of settings, checked before anything heavy is imported."""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from ftrecipes.config.check_paths import CUSTOM, DATA_SUFFIXES, check_paths, is_path
from ftrecipes.config.faults import Fault, shown
from ftrecipes.config.flags import asked, flags_of, value_of
from ftrecipes.config.later import LATER_DATASETS
from ftrecipes.config.precision import precision_faults
from ftrecipes.config.schema import GenerateConfig, RunConfig

REQUIRED = {
    "model_name": "a hub id, a folder or a .gguf file",
    "dataset": "a file, a hub id or custom_dataset (samsum_dataset, the default of llama-recipes, "
    "is not yet in this version)",
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
    "weight_decay": 0,
    "warmup_steps": 0,
    "seed": 0,
    "lora.r": 1,
    "lora.lora_dropout": 0,
    "max_new_tokens": 1,
    "temperature": 0,
}
ABOVE_ZERO = ("lr", "gamma", "gradient_clipping_threshold", "lora.lora_alpha")
BELOW = {"lora.lora_dropout": 1, "seed": 2**32}
MOST = 10**9  # of a whole number that has no bound of its own here
AT_MOST = {"num_epochs": 10**5}  # each epoch is planned before the first step
# What PEFT reads as regular expressions: peft/tuners/tuners_utils.py, check_target_module_exists
PATTERNS = (
    "target_modules",
    "exclude_modules",
    "modules_to_save",
    "layers_pattern",
    "rank_pattern",
    "alpha_pattern",
)


def check(config: RunConfig, broken: Collection[str] = (), *, writes: bool = True) -> list[Fault]:
    """Faults of a run's settings; those about `broken` flags, which have a fault, are left out.

    With `writes` False nothing will be written, so that an earlier result is in nobody's way.
    """
    found = [
        *_missing(config, broken),
        *_ranges(config),
        *_adapter(config),
        *_patterns(config),
        *_quantization(config),
        *_loop(config),
        *_data(config),
        *precision_faults(config),
        *check_paths(config),
    ]
    broken = set(broken) | (set() if writes else {"overwrite_output_dir"})
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
            yield _out_of_range(name, value, f"{AT_LEAST[name]} or more")
        if name in ABOVE_ZERO and value <= 0:
            yield _out_of_range(name, value, "more than 0")
        if name in BELOW and value >= BELOW[name]:
            yield _out_of_range(name, value, f"less than {BELOW[name]}")
        elif isinstance(value, int) and name not in BELOW and value > AT_MOST.get(name, MOST):
            yield _out_of_range(name, value, f"{AT_MOST.get(name, MOST)} or less")


def _out_of_range(name: str, value: object, expected: str) -> Fault:
    return Fault(f"--{name}: out of range", got=shown(value), expected=expected, flags=(name,))


def _adapter(config: RunConfig) -> Iterator[Fault]:
    lora = config.lora
    if not config.train.use_peft:
        names = _asked(config, ("peft_method", *_section("lora")))
        if names:
            yield _idle(names, "without --use_peft every weight is trained", "use_peft")
        return
    if "all-linear" in lora.target_modules and len(lora.target_modules) > 1:
        yield Fault(
            "--lora.target_modules: all-linear stands alone",
            got=",".join(lora.target_modules),
            flags=("lora.target_modules",),
        )
    if not lora.target_modules and not lora.target_parameters:
        yield Fault(
            "--lora.target_modules: nothing would get an adapter",
            got="no names",
            expected="all-linear or names, here or in --lora.target_parameters",
            flags=("lora.target_modules", "lora.target_parameters"),
        )
    if lora.layers_pattern and not lora.layers_to_transform:
        yield _idle(["lora.layers_pattern"], "--lora.layers_to_transform is empty")
    # peft.tuners.lora.layer.ParamWrapper refuses these two
    for name, used in (("lora_dropout", lora.lora_dropout > 0), ("use_dora", lora.use_dora)):
        if lora.target_parameters and used:
            flags = ("lora.target_parameters", f"lora.{name}")
            what = f"--lora.target_parameters does not work with --lora.{name}"
            yield Fault(what, do=f"leave --lora.{name} out", flags=flags)
    for name in ("rank_pattern", "alpha_pattern"):
        low = [key for key, value in value_of(config, f"lora.{name}").items() if value <= 0]
        if low:
            yield _out_of_range(f"lora.{name}", ", ".join(low), "more than 0 for each")


def _patterns(config: RunConfig) -> Iterator[Fault]:
    """Names of modules may be regular expressions, and must then be valid ones."""
    for flag in (f"lora.{name}" for name in PATTERNS):
        for entry in value_of(config, flag):
            try:
                re.compile(entry)
            except (re.error, OverflowError, RecursionError) as error:
                what = f"--{flag}: no name and no regular expression"
                yield Fault(what, got=shown(entry), do=f"correct it: {error}", flags=(flag,))


def _quantization(config: RunConfig) -> Iterator[Fault]:
    method = config.quantization.method
    if method != "none" and not config.train.use_peft:
        yield Fault(
            f"--quantization {method} without --use_peft: quantized weights can not be trained",
            do="add --use_peft to train an adapter on them, or leave --quantization out",
            flags=("quantization.method", "use_peft"),
        )
    names = _asked(config, _section("quantization"), besides="quantization.method")
    if method != "4bit" and names:
        yield _idle(names, f"it is for --quantization 4bit, not {method}", "quantization.method")


def _loop(config: RunConfig) -> Iterator[Fault]:
    train = config.train
    if train.scheduler != "step" and asked(config, "gamma"):
        yield _idle(["gamma"], "it needs --scheduler step", "scheduler")
    if not train.gradient_clipping and asked(config, "gradient_clipping_threshold"):
        why = "--gradient_clipping is off"
        yield _idle(["gradient_clipping_threshold"], why, "gradient_clipping")


def _data(config: RunConfig) -> Iterator[Fault]:
    dataset = config.train.dataset
    splits = ("data.train_split", "data.val_split")
    if dataset == CUSTOM:
        names = _asked(config, (*splits, "data.val_file"))
        if names:
            yield _idle(names, "the custom data set makes both splits", "dataset")
        if config.custom_dataset.file is None:
            what, expected = "needs --custom_dataset.file", "a Python file, or file.py:function"
            flags = ("custom_dataset.file",)
            yield Fault(f"--dataset {CUSTOM}: {what}", expected=expected, flags=flags)
    else:
        options = [f"{CUSTOM}.{name}" for name in config.custom_dataset.options]
        names = [*_asked(config, _section(CUSTOM)), *options]
        if names:
            yield _idle(names, f"it needs --dataset {CUSTOM}", "dataset")
        names = _asked(config, splits)
        if names and is_path(dataset, DATA_SUFFIXES):
            yield _idle(names, f"the file {dataset} has no splits", "dataset")
        elif "data.val_split" in names and config.data.val_file is not None:
            yield _idle(["data.val_split"], "--data.val_file is read instead", "data.val_file")
    if config.train.batching_strategy != "padding" and asked(config, "data.shuffle"):
        yield _idle(["data.shuffle"], "it is for --batching_strategy padding", "batching_strategy")
    if dataset in LATER_DATASETS:
        yield Fault(
            f"--dataset {dataset}: named data sets are not yet in this version",
            do=f"shape such rows with a function of your own: --dataset {CUSTOM} (docs/data.md)",
            flags=("dataset",),
        )


def _section(prefix: str) -> list[str]:
    return [name for name in flags_of(RunConfig) if name.startswith(f"{prefix}.")]


def _asked(config: RunConfig, names: Iterable[str], *, besides: str = "") -> list[str]:
    return [name for name in names if name != besides and asked(config, name)]


def _idle(names: list[str], why: str, *because: str) -> Fault:
    """Settings that somebody asked for and that would do nothing."""
    flags = ", ".join(f"--{name}" for name in names)
    return Fault(f"{flags}: would have no effect: {why}", flags=(*names, *because))
