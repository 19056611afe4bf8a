"""LoRA and its variants, as PEFT wants them told."""

import re
from collections.abc import Sequence

import peft
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ftrecipes.config.errors import ModelError
from ftrecipes.config.schema import LoraConfig
from ftrecipes.model.module_names import (
    END,
    NAME,
    beside_decoder,
    check_matches,
    is_odd_linear,
    is_whole,
    linear_names,
    names_or_pattern,
    rule_of,
)
from ftrecipes.model.packed import packed_sizes
from ftrecipes.model.units import find_blocks

ALL_LINEAR = "all-linear"
# Layers whose weight the model multiplies with itself, past any adapter: PEFT refuses the first two
# (peft/tuners/tuners_utils.py, _check_lora_target_modules_mamba), on the third one would not train.
_KERNELS = ("out_proj", "conv1d")
_READ_PAST_ADAPTERS = {
    "mamba": (*_KERNELS, "dt_proj"),
    "mamba2": _KERNELS,
    "falcon_mamba": (*_KERNELS, "dt_proj"),
    "falcon_h1": _KERNELS,
    "nemotron_h": _KERNELS,
    "jamba": ("dt_proj",),
}


def lora_config(
    model: PreTrainedModel, lora: LoraConfig, *, new_token_ids: Sequence[int] = ()
) -> peft.LoraConfig:
    """The settings for PEFT; the embedding rows of `new_token_ids` are trained with the adapters.

    Raises ModelError for names that match nothing, and for modules that can not be trained.
    """
    _check_names(model, lora)
    _check_trained_whole(model, lora.modules_to_save)
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
        trainable_token_indices=_token_rows(model, lora, new_token_ids),
    )


def _target_modules(model: PreTrainedModel, lora: LoraConfig) -> list[str] | str | None:
    """As PEFT wants it: with a choice of layers it takes the ends of names only."""
    if lora.target_modules == [ALL_LINEAR]:
        return linear_names(model) if lora.layers_to_transform else ALL_LINEAR
    return names_or_pattern(lora.target_modules)


def _exclude_modules(model: PreTrainedModel, lora: LoraConfig) -> list[str] | str | None:
    """As PEFT wants it; what all-linear would take and no adapter can serve is excluded too."""
    asked = names_or_pattern(lora.exclude_modules)
    unfit = [name for name, module in model.named_modules() if is_odd_linear(module)]
    read_past = _READ_PAST_ADAPTERS.get(model.config.model_type, ())
    unfit += [name for name, _ in model.named_modules() if name.rsplit(".", 1)[-1] in read_past]
    beside = beside_decoder(model)
    unfit += [name for name, _ in model.named_modules() if f"{name}.".startswith(beside)]
    if not unfit or lora.target_modules != [ALL_LINEAR]:
        return asked
    if isinstance(asked, str):
        return "|".join([f"(?:{asked})", *map(re.escape, unfit)])
    return [*(asked or []), *unfit]


def _token_rows(
    model: PreTrainedModel, lora: LoraConfig, ids: Sequence[int]
) -> dict[str, list[int]] | None:
    """Layers whose rows of `ids` are trained: the embedding, and a head with weights of its own.

    A tied head follows the embedding by itself. A layer that is trained whole needs no rows. Raises
    ModelError when only one of two tied layers is: it is then trained apart from the other.
    """
    if not ids:
        return None
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    names = {module: name for name, module in model.named_modules()}
    layers = [names[layer] for layer in (embedding, head) if layer is not None]
    rows = [name for name in layers if not is_whole(name, lora.modules_to_save)]
    if head is not None and head.weight is embedding.weight:
        if len(rows) == 1:
            raise ModelError(
                "--lora.modules_to_save: embedding and head of this model are one, and the new "
                f"tokens would not be trained in {rows[0]}.\n"
                f"  got: {', '.join(lora.modules_to_save)}\n"
                f"  do: name both there ({', '.join(layers)}), or neither"
            )
        rows = rows[:1]
    return {name: list(ids) for name in rows} or None


def _check_names(model: PreTrainedModel, lora: LoraConfig) -> None:
    modules = [name for name, _ in model.named_modules()]
    parameters = [name for name, _ in model.named_parameters()]
    # looked for only when asked about: some models have several kinds of blocks (BLT)
    blocks = find_blocks(model) if lora.layers_to_transform else []
    layers = [str(i) for i in range(len(blocks))]
    linear = [] if lora.target_modules == [ALL_LINEAR] else lora.target_modules
    asked = {
        "target_modules": (linear, modules, rule_of(linear)),
        "exclude_modules": (lora.exclude_modules, modules, rule_of(lora.exclude_modules)),
        "modules_to_save": (lora.modules_to_save, modules, NAME),
        "target_parameters": (lora.target_parameters, parameters, NAME),
        "rank_pattern": (list(lora.rank_pattern), modules, END),
        "alpha_pattern": (list(lora.alpha_pattern), modules, END),
        "layers_to_transform": ([str(i) for i in lora.layers_to_transform], layers, NAME),
    }
    check_matches(model, {f"lora.{field}": value for field, value in asked.items()})


def _check_trained_whole(model: PreTrainedModel, names: list[str]) -> None:
    """Raise ModelError when a module that is to be trained whole holds quantized weights."""
    packed = {
        entry for name in packed_sizes(model) for entry in names if f".{entry}." in f".{name}"
    }
    if packed:
        raise ModelError(
            f"--lora.modules_to_save {','.join(sorted(packed))}: its weights are quantized, and "
            "such weights can not be trained.\n"
            "  do: name it in --lora.target_modules instead, or leave --quantization out"
        )
