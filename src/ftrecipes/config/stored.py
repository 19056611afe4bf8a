"""A base model whose files hold quantized weights: by what method, and what that forbids."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ftrecipes.config.faults import Fault
from ftrecipes.config.flags import asked, value_of
from ftrecipes.config.schema import RunConfig
from ftrecipes.config.sections import QuantizationConfig

BITSANDBYTES = "bitsandbytes"
# transformers turns these back into plain weights while it reads them.
DEQUANTIZED = ("fp8", "mxfp4")
# bitsandbytes' own name of what a field of ours says, and its default
_FIELDS = {
    "quant_type": ("bnb_4bit_quant_type", "fp4"),
    "use_double_quant": ("bnb_4bit_use_double_quant", False),
    "quant_storage": ("bnb_4bit_quant_storage", "uint8"),
}


@dataclass(frozen=True)
class Stored:
    """How the weights of a model are stored: `method` as its config names it.

    `quantization` is what --quantization and its fields would have to be for such weights; for a
    method of DEQUANTIZED they are plain weights once they have been read.
    """

    method: str
    quantization: QuantizationConfig


def stored_quantization(settings: Mapping) -> Stored | None:
    """What the content of a config.json says; None for weights that are not quantized."""
    found = settings.get("quantization_config")
    text = settings.get("text_config")
    if found is None and isinstance(text, Mapping):
        found = text.get("quantization_config")
    if found is None:
        return None
    found = found if isinstance(found, Mapping) else {"quant_method": str(found)}
    four, eight = bool(found.get("load_in_4bit")), bool(found.get("load_in_8bit"))
    if not four and not eight:
        return Stored(str(found.get("quant_method", "an unknown method")), QuantizationConfig())
    if eight and not four:
        return Stored(BITSANDBYTES, QuantizationConfig(method="8bit"))
    fields = {ours: found.get(theirs, default) for ours, (theirs, default) in _FIELDS.items()}
    return Stored(BITSANDBYTES, QuantizationConfig(method="4bit", **fields))


def stored_in(folder: str) -> Stored | None:
    """The same for a folder; None when it has no config.json that can be read."""
    try:
        settings = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return stored_quantization(settings) if isinstance(settings, dict) else None


def stored_faults(config: RunConfig, stored: Stored | None) -> Iterator[Fault]:
    """What the run asks for and this base can not do."""
    if stored is None:
        return
    name, method = config.train.model_name, config.quantization.method
    if stored.method not in (BITSANDBYTES, *DEQUANTIZED):
        yield Fault(
            f"--model_name {name}: its weights are quantized with a method that is not supported",
            got=stored.method,
            expected=f"plain weights, or {', '.join((BITSANDBYTES, *DEQUANTIZED))}",
            do="give the unquantized model; --quantization 4bit quantizes it while it is read",
            flags=("model_name",),
        )
    elif stored.method in DEQUANTIZED:
        if method != "none":
            yield Fault(
                f"--quantization {method}: {name} is already quantized ({stored.method}), and is "
                "dequantized while it is read",
                do="leave --quantization out, or give a model with plain weights: load this one "
                "once with transformers, and save it",
                flags=("quantization.method", "model_name"),
            )
    else:
        yield from _disagreements(config, stored.quantization)


def settled(config: RunConfig, stored: Stored | None) -> RunConfig:
    """`config` with the quantization that the base is stored in, where it is."""
    if stored is None or stored.quantization.method == "none":
        return config
    compute_dtype = config.quantization.compute_dtype
    return replace(config, quantization=replace(stored.quantization, compute_dtype=compute_dtype))


def _disagreements(config: RunConfig, stored: QuantizationConfig) -> Iterator[Fault]:
    name, method = config.train.model_name, config.quantization.method
    if not config.train.use_peft:
        yield Fault(
            f"--model_name {name}: its weights are quantized ({BITSANDBYTES} {stored.method}), and "
            "such weights can not be trained",
            do="add --use_peft to train an adapter on them, or give the unquantized model",
            flags=("model_name", "use_peft"),
        )
    if config.train.enable_fsdp and stored.method == "8bit" and method != "8bit":
        yield Fault(
            f"--model_name {name} with --enable_fsdp: its weights are stored in 8 bits, and such "
            "weights can not be sharded",
            do="give the unquantized model, with --quantization 4bit",
            flags=("model_name", "enable_fsdp"),
        )
    differing = ["method"] if method not in ("none", stored.method) else []
    if method == stored.method == "4bit":
        differing += [field for field in _FIELDS if asked(config, f"quantization.{field}")]
    for flag in (f"quantization.{field}" for field in differing):
        wanted, got = value_of(config, flag), value_of(RunConfig(quantization=stored), flag)
        if wanted != got:
            yield Fault(
                f"--{flag} {wanted} contradicts --model_name {name}, which is stored quantized",
                got=f"{got} in its config",
                do="leave the flag out, or give the unquantized model",
                flags=(flag, "model_name"),
            )
