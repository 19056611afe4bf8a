"""An adapter to go on from: its settings and weights become the one adapter of a model."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import peft
import torch
from peft.utils import (
    get_peft_model_state_dict,
    load_peft_weights,
    set_peft_model_state_dict,
)
from torch import Tensor
from transformers import PreTrainedModel

from ftrecipes.config.adapter_folder import METHODS
from ftrecipes.config.errors import ModelError
from ftrecipes.model.module_names import canonical_name, is_whole, name_for_peft
from ftrecipes.runtime import log

# Initialisations that leave the base as it is, or that are repeated exactly
_REPEATABLE = (True, False, "true", "false", "gaussian", "orthogonal", "eva", "pissa", "olora")
# Variants of LoRA that need a forward, a loss or weights of their own beside the adapted layers
_VARIANTS = (
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "megatron_config",
    "monteclora_config",
    "velora_config",
)


def continued_config(folder: str, *, model_name: str, vocabulary: int) -> peft.PeftConfig:
    """The settings of the adapter in `folder`, for training on.

    `vocabulary`: ids that model and tokenizer know. Raises ModelError for what can not be
    trained on here.
    """
    settings = peft.PeftConfig.from_pretrained(folder)
    if settings.peft_type.value not in METHODS:
        raise ModelError(
            f"--from_peft_checkpoint {folder}: not a method that can be trained here.\n"
            f"  got: {settings.peft_type.value}\n  expected: one of {', '.join(METHODS)}\n"
            "  do: give another adapter"
        )
    settings.inference_mode = False
    if isinstance(settings, peft.LoraConfig):
        _check_lora(folder, settings, vocabulary)
    if isinstance(settings, peft.PrefixTuningConfig) and settings.prefix_projection:
        log.info("the prefix was saved without the network that made it, and goes on without it")
        settings.prefix_projection = False
    if _differ(settings.base_model_name_or_path, model_name):
        log.info(
            f"the adapter {folder} was trained on {settings.base_model_name_or_path}, and goes on "
            f"with {model_name}"
        )
    settings.base_model_name_or_path = None  # PEFT takes the model's own, and warns of another
    return settings


def check_new_tokens(
    folder: str,
    settings: peft.PeftConfig,
    new_token_ids: Sequence[int],
    *,
    model: PreTrainedModel,
) -> None:
    """Raise ModelError when tokens were added whose embedding rows the adapter does not train."""
    lacking = sorted(set(new_token_ids) - _token_rows(settings))
    names = {module: name for name, module in model.named_modules()}
    embedding = names[model.get_input_embeddings()]
    if lacking and not is_whole(embedding, settings.modules_to_save or []):
        raise ModelError(
            f"--from_peft_checkpoint {folder}: the adapter trains no embedding rows for all new "
            f"tokens.\n  got: new tokens with the ids {', '.join(map(str, lacking[:5]))}"
            f"{' and more' if lacking[5:] else ''}\n"
            "  do: leave out those of --new_tokens that the adapter was not trained with, and "
            "--resize_embeddings, or train a new adapter"
        )


def load_weights(model: peft.PeftModel, folder: str) -> None:
    """Read the adapter's weights into `model`. Raises ModelError unless each finds its place."""
    weights = load_peft_weights(folder, device="cpu")
    # PEFT 0.21 saves embeddings that were enlarged and trained whole under this name once more
    twice = {n for n in weights if n.replace(".modules_to_save.", ".") in weights.keys() - {n}}
    for name in twice | _base_weights(model, weights, folder):
        del weights[name]
    with warnings.catch_warnings():
        # a model without weights takes names and shapes only
        warnings.filterwarnings("ignore", ".*copying from a non-meta parameter")
        result = set_peft_model_state_dict(model, weights)
    if model.active_peft_config.is_prompt_learning:
        return  # PEFT is strict with these itself
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    missing = sorted(trained.intersection(result.missing_keys))
    if missing or result.unexpected_keys:
        raise ModelError(
            f"--from_peft_checkpoint {folder}: its weights are not those of its settings.\n"
            f"  missing: {', '.join(missing[:3]) or 'none'}\n"
            f"  without a place: {', '.join(result.unexpected_keys[:3]) or 'none'}\n"
            "  do: check that the folder is complete and that --model_name is its base model"
        )


def saved_values(model: peft.PeftModel, folder: str) -> Iterator[tuple[str, Tensor]]:
    """(canonical name, whole value on the CPU) of each parameter that is trained, from the file.

    For a model whose own values are not there: `load_weights` has found that all of them are in the
    file. Of LoRA and IA3 only; other methods keep parameters in other forms.
    """
    live = {name_for_peft(name): parameter for name, parameter in model.named_parameters()}
    names = {id(p): canonical_name(name) for name, p in live.items() if p.requires_grad}
    places = get_peft_model_state_dict(model, live, save_embedding_layers=False)
    weights = load_peft_weights(folder, device="cpu")
    for saved, parameter in places.items():
        if id(parameter) in names:
            yield names.pop(id(parameter)), weights[canonical_name(saved)]
    assert not names, f"trained and not saved: {sorted(names.values())}"


def _base_weights(model: peft.PeftModel, weights: Mapping[str, Tensor], folder: str) -> set[str]:
    """Names in the file of weights that belong to the base, as PEFT saves them in some cases.

    They are not saved again, so they may say nothing new. Raises ModelError when they do.
    """
    frozen = {
        name: parameter
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if name in weights and not parameter.requires_grad
    }
    other = [
        name
        for name, parameter in frozen.items()
        if "original_module" not in name  # of a module that is trained whole, and computes nothing
        and not _equal(weights[name], parameter)
    ]
    if other:
        raise ModelError(
            f"--from_peft_checkpoint {folder}: it holds weights of a base that is not --model_name "
            f"as it is.\n  got: other numbers or shapes of {', '.join(sorted(other)[:3])}\n"
            "  do: make one model of both with PEFT (merge_and_unload, save_pretrained), and train "
            "a new adapter on that"
        )
    return set(frozen)


def _equal(saved: Tensor, parameter: Tensor) -> bool:
    """Whether the numbers are the same in the parameter's dtype; on a sketch, the shapes."""
    if saved.shape != parameter.shape or parameter.is_meta:
        return saved.shape == parameter.shape
    return torch.equal(saved.to(parameter.device, parameter.dtype), parameter)


def _check_lora(folder: str, settings: peft.LoraConfig, vocabulary: int) -> None:
    if settings.init_lora_weights not in _REPEATABLE:
        raise ModelError(
            f"--from_peft_checkpoint {folder}: the adapter belongs to base weights that its "
            f"initialisation has changed.\n  got: init_lora_weights {settings.init_lora_weights}\n"
            "  do: convert it into plain LoRA first (peft.PeftModel.save_pretrained, "
            "path_initial_model_for_weight_conversion)"
        )
    variants = [name for name, value in settings.to_dict().items() if name in _VARIANTS and value]
    if variants:
        raise ModelError(
            f"--from_peft_checkpoint {folder}: a variant of LoRA that can not be trained here.\n"
            f"  got: {', '.join(variants)} in its settings\n  do: give another adapter"
        )
    rows = _token_rows(settings)
    if rows and max(rows) >= vocabulary:
        raise ModelError(
            f"--from_peft_checkpoint {folder}: the adapter trains embedding rows that model or "
            f"tokenizer do not have.\n  got: token id {max(rows)}\n"
            f"  expected: at most {vocabulary - 1}\n"
            f"  do: add --tokenizer_name {folder} --resize_embeddings"
        )


def _token_rows(settings: peft.PeftConfig) -> set[int]:
    if not isinstance(settings, peft.LoraConfig) or not settings.trainable_token_indices:
        return set()
    rows = settings.trainable_token_indices
    return {index for ids in (rows.values() if isinstance(rows, dict) else [rows]) for index in ids}


def _differ(base: str | None, model_name: str) -> bool:
    """Whether these name different models: by their paths where they are folders."""
    if base is None:
        return False
    return Path(base).expanduser().resolve() != Path(model_name).expanduser().resolve()
