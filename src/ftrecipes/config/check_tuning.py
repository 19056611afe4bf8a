"""What is trained: combinations of settings for adapters, freezing and quantized bases."""

import re
from collections.abc import Iterator

from ftrecipes.config.check_adapter import check_adapter
from ftrecipes.config.faults import Fault, idle, out_of_range, shown
from ftrecipes.config.flags import asked_in, asked_of, value_of
from ftrecipes.config.schema import RunConfig
from ftrecipes.config.stored import stored_faults, stored_in

# What PEFT reads as regular expressions: peft/tuners/tuners_utils.py, check_target_module_exists
PATTERNS = (
    "target_modules",
    "exclude_modules",
    "modules_to_save",
    "layers_pattern",
    "rank_pattern",
    "alpha_pattern",
)
METHODS = ("lora", "ia3", "prefix", "prompt", "llama_adapter")


def check_tuning(config: RunConfig) -> Iterator[Fault]:
    """Faults of the settings that say what is trained on which base."""
    yield from _adapter(config)
    yield from _patterns(config)
    yield from _quantization(config)
    yield from check_adapter(config)
    yield from stored_faults(config, stored_in(config.train.model_name))
    yield from _frozen(config)
    yield from _new_tokens(config)


def _adapter(config: RunConfig) -> Iterator[Fault]:
    """Settings that need another method, or none; those of LoRA among themselves."""
    train = config.train
    if not train.use_peft:
        names = asked_of(config, ["peft_method"])
        names += ["from_peft_checkpoint"] if train.from_peft_checkpoint else []
        names += [name for method in METHODS for name in asked_in(config, method)]
        if names:
            yield idle(names, "without --use_peft every weight is trained", "use_peft")
        return
    for method in METHODS:
        names = asked_in(config, method)
        if names and method != train.peft_method and train.from_peft_checkpoint is None:
            yield idle(names, f"--peft_method is {train.peft_method}", "peft_method")
    if train.peft_method == "lora":
        yield from _lora(config)


def _lora(config: RunConfig) -> Iterator[Fault]:
    lora = config.lora
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
        yield idle(["lora.layers_pattern"], "--lora.layers_to_transform is empty")
    # peft.tuners.lora.layer.ParamWrapper refuses these two
    for name, used in (("lora_dropout", lora.lora_dropout > 0), ("use_dora", lora.use_dora)):
        if lora.target_parameters and used:
            flags = ("lora.target_parameters", f"lora.{name}")
            what = f"--lora.target_parameters does not work with --lora.{name}"
            yield Fault(what, do=f"leave --lora.{name} out", flags=flags)
    for name in ("rank_pattern", "alpha_pattern"):
        low = [key for key, value in value_of(config, f"lora.{name}").items() if value <= 0]
        if low:
            yield out_of_range(f"lora.{name}", ", ".join(low), "more than 0 for each")


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
    names = asked_in(config, "quantization", besides="quantization.method")
    if method != "4bit" and names:
        yield idle(names, f"it is for --quantization 4bit, not {method}", "quantization.method")


def _frozen(config: RunConfig) -> Iterator[Fault]:
    if config.train.freeze_layers and config.train.use_peft:
        yield Fault(
            "--freeze_layers: would have no effect: with --use_peft the whole base is frozen",
            do="leave it out; --lora.layers_to_transform chooses the blocks that get adapters",
            flags=("freeze_layers", "use_peft"),
        )


def _new_tokens(config: RunConfig) -> Iterator[Fault]:
    tokens = config.train.new_tokens
    blank = [token for token in tokens if not token.strip()]
    twice = sorted({token for token in tokens if tokens.count(token) > 1})
    if blank or twice:
        yield Fault(
            "--new_tokens: each is one text, not blank, named once",
            got=", ".join([*map(shown, blank), *(f"{shown(token)} twice" for token in twice)]),
            flags=("new_tokens",),
        )
