"""What is trained: adapters on a frozen base, or every parameter."""

import re
from collections.abc import Iterator

import peft
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ftrecipes.config.errors import ModelError
from ftrecipes.config.precision import Precision
from ftrecipes.config.schema import LoraConfig
from ftrecipes.model.quantize import is_packed, numel

ALL_LINEAR = "all-linear"
_WRAPPERS = re.compile(r"(_checkpoint_wrapped_module|_orig_mod|_fsdp_wrapped_module)\.")
_PLAIN_NAME = re.compile(r"[\w.-]+")
# How PEFT reads the names it is given; what it does not find so, it leaves out in silence.
_NAME = r"(?:.*\.)?{}"  # the name itself, or its end after a dot
_END = r"(?:.*\.)?(?:{})"  # a pattern of the same
_WHOLE = "{}"  # a pattern of the whole name


def add_adapters(
    model: PreTrainedModel, lora: LoraConfig, precision: Precision
) -> peft.PeftModelForCausalLM:
    """The model with LoRA adapters, trainable in `precision.trainable`, on a frozen base.

    B starts at zero, so that the first forward is the base model's. Raises ModelError for names
    that match nothing, and for what PEFT refuses.
    """
    _check_names(model, lora)
    _check_trained_whole(model, lora.modules_to_save)
    linear = ", ".join(_linear_names(model))  # PEFT may fail halfway through the modules
    try:
        adapted = peft.get_peft_model(model, _peft_config(model, lora))
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        raise ModelError(
            f"The adapters can not be added to {type(model).__name__}.\n  got: {error}\n"
            f"  do: change the --lora flags; linear layers here: {linear}"
        ) from error
    _store_trainable(adapted, precision)
    return adapted


def _peft_config(model: PreTrainedModel, lora: LoraConfig) -> peft.LoraConfig:
    return peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.r,
        lora_alpha=int(lora.lora_alpha) if lora.lora_alpha.is_integer() else lora.lora_alpha,
        lora_dropout=lora.lora_dropout,
        target_modules=_target_modules(model, lora),
        exclude_modules=_exclude_modules(model, lora),
        target_parameters=lora.target_parameters or None,
        bias=lora.bias,
        modules_to_save=lora.modules_to_save or None,
        use_rslora=lora.use_rslora,
        use_dora=lora.use_dora,
        init_lora_weights=True if lora.init_lora_weights == "true" else lora.init_lora_weights,
        layers_to_transform=lora.layers_to_transform or None,
        layers_pattern=lora.layers_pattern or None,
        # copies: PEFT adds entries of its own for some mixtures of experts
        rank_pattern=dict(lora.rank_pattern),
        alpha_pattern=dict(lora.alpha_pattern),
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )


def rehearse_adapters(sketch: PreTrainedModel, lora: LoraConfig, precision: Precision) -> None:
    """Raise what `add_adapters` would raise, on a model without weights (see `sketch_model`)."""
    with torch.device("meta"):
        add_adapters(sketch, lora, precision)


def train_everything(model: PreTrainedModel, precision: Precision) -> PreTrainedModel:
    """The model with every parameter trainable, in `precision.trainable`."""
    model.requires_grad_(True)
    _store_trainable(model, precision)
    return model


def trainable_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """(canonical name, parameter) of all that is trained."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield canonical_name(name), parameter


def canonical_name(name: str) -> str:
    """A parameter's name without what checkpointing, compiling and sharding put into it."""
    return _WRAPPERS.sub("", name)


def trained_share(model: nn.Module) -> str:
    """How many of the parameters are trained, for the log; packed weights count in full."""
    trained = sum(parameter.numel() for _, parameter in trainable_parameters(model))
    total = sum(numel(parameter) for parameter in model.parameters())
    return f"{trained:,} of {total:,} parameters are trained ({trained / total:.2%})"


def _store_trainable(model: nn.Module, precision: Precision) -> None:
    dtype = getattr(torch, precision.trainable)
    for _, parameter in trainable_parameters(model):
        parameter.data = parameter.data.to(dtype)


def _target_modules(model: PreTrainedModel, lora: LoraConfig) -> list[str] | str | None:
    """As PEFT wants it: with a choice of layers it takes the ends of names only."""
    if lora.target_modules == [ALL_LINEAR]:
        return _linear_names(model) if lora.layers_to_transform else ALL_LINEAR
    return _names_or_pattern(lora.target_modules)


def _exclude_modules(model: PreTrainedModel, lora: LoraConfig) -> list[str] | str | None:
    """As PEFT wants it; routers that all-linear would take are excluded too."""
    asked = _names_or_pattern(lora.exclude_modules)
    routers = [name for name, module in model.named_modules() if _is_router(module)]
    if not routers or lora.target_modules != [ALL_LINEAR]:
        return asked
    if isinstance(asked, str):
        return "|".join([f"(?:{asked})", *map(re.escape, routers)])
    return [*(asked or []), *routers]


def _names_or_pattern(entries: list[str]) -> list[str] | str | None:
    """A single entry that is no plain name is a regular expression for whole module names."""
    if len(entries) == 1 and not _PLAIN_NAME.fullmatch(entries[0]):
        return entries[0]
    return entries or None


def _check_names(model: PreTrainedModel, lora: LoraConfig) -> None:
    """Raise ModelError listing every name that matches nothing, and what there is instead."""
    modules = [name for name, _ in model.named_modules()]
    parameters = [name for name, _ in model.named_parameters()]
    layers = [str(i) for i in range(model.config.get_text_config().num_hidden_layers)]
    linear = [] if lora.target_modules == [ALL_LINEAR] else lora.target_modules
    asked = {
        "target_modules": (linear, modules, _rule_of(linear)),
        "exclude_modules": (lora.exclude_modules, modules, _rule_of(lora.exclude_modules)),
        "modules_to_save": (lora.modules_to_save, modules, _NAME),
        "target_parameters": (lora.target_parameters, parameters, _NAME),
        "rank_pattern": (list(lora.rank_pattern), modules, _END),
        "alpha_pattern": (list(lora.alpha_pattern), modules, _END),
        "layers_to_transform": ([str(i) for i in lora.layers_to_transform], layers, _NAME),
    }
    unmatched = [
        f"--lora.{flag} {entry}"
        for flag, (entries, names, rule) in asked.items()
        for entry in entries
        if not any(_compile(entry, rule).fullmatch(name) for name in names)
    ]
    if unmatched:
        raise ModelError(
            f"These names match nothing in {type(model).__name__}:\n  got: {', '.join(unmatched)}\n"
            f"  expected: {ALL_LINEAR}, or names of its modules; its linear layers are "
            f"{', '.join(_linear_names(model))}\n  do: correct or leave out these names; a pattern "
            "stands alone, matches whole names (.*q_proj), and is no name of modules_to_save"
        )


def _check_trained_whole(model: PreTrainedModel, names: list[str]) -> None:
    """Raise ModelError when a module that is to be trained whole holds quantized weights."""
    packed = {
        entry
        for name, parameter in model.named_parameters()
        for entry in names
        if f".{entry}." in f".{name}" and is_packed(parameter)
    }
    if packed:
        raise ModelError(
            f"--lora.modules_to_save {','.join(sorted(packed))}: its weights are quantized, and "
            "such weights can not be trained.\n"
            "  do: name it in --lora.target_modules instead, or leave --quantization out"
        )


def _rule_of(entries: list[str]) -> str:
    return _WHOLE if isinstance(_names_or_pattern(entries), str) else _NAME


def _compile(entry: str, rule: str) -> re.Pattern:
    """What the entry matches under the rule. Raises ModelError when it is no pattern."""
    try:
        return re.compile(rule.format(re.escape(entry) if rule == _NAME else entry))
    except re.error as error:
        raise ModelError(
            f"--lora: {entry} is not a regular expression.\n  got: {error}\n  do: correct it"
        ) from error


def _linear_names(model: PreTrainedModel) -> list[str]:
    """Last parts of the names of all linear layers but the head."""
    head = model.get_output_embeddings()
    return sorted(
        {
            name.rsplit(".", 1)[-1]
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear | Conv1D)
            and module is not head
            and not _is_router(module)
        }
    )


def _is_router(module: nn.Module) -> bool:
    """Whether it chooses experts: as a linear layer (Llama 4) it still returns a tuple of results.

    PEFT's wrapper adds to one result.
    """
    return isinstance(module, nn.Linear) and type(module).__name__.endswith("Router")
