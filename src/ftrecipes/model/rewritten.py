"""PiSSA and OLoRA: initialisations that take the update out of the base weights.

The base becomes W - s B0 A0, and the adapter starts at B0 A0 (s is its scale). On the unchanged
base the trained model is W + s (B A - B0 A0), which is plain LoRA of twice the rank:
A' = [A; A0], B' = [B, -B0]. So it is saved (arXiv:2404.02948, appendix on sharing), and whoever has
the base can load it. B0 and A0 stay with the model until then, as buffers of the adapters' layers.
"""

import copy
import math
from collections.abc import Iterator, Mapping

import peft
import torch
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora import LoraLayer
from torch import Tensor

from ftrecipes.config.errors import ModelError
from ftrecipes.runtime import log

_ADAPTER = "default"
_A0, _B0 = "initial_lora_A", "initial_lora_B"
_REWRITING = ("pissa", "olora")


def is_rewriting(settings: peft.PeftConfig) -> bool:
    """Whether an adapter with these settings changes the base weights as it is added."""
    return isinstance(settings, peft.LoraConfig) and settings.init_lora_weights in _REWRITING


def keep_initial(model: peft.PeftModel) -> None:
    """Keep what the initialisation took out of the base weights; nothing without such a one.

    Call it before anything is trained or loaded into the adapter. Raises ModelError for layers that
    PEFT can not initialise so.
    """
    settings = model.peft_config[_ADAPTER]
    if not is_rewriting(settings):
        return
    rounded = set()
    for name, layer in _lora_layers(model):
        _check_layer(name, layer, settings)
        weight = layer.get_base_layer().weight
        if weight.dtype != torch.float32 and weight.device.type != "meta":
            rounded.add(str(weight.dtype).removeprefix("torch."))
        for buffer, factors in ((_A0, layer.lora_A), (_B0, layer.lora_B)):
            initial = factors[_ADAPTER].weight.detach().clone()
            layer.register_buffer(buffer, initial, persistent=False)
    if rounded:
        log.warning(
            f"{settings.init_lora_weights} rewrites base weights in {', '.join(rounded)} and "
            "rounds them; the saved adapter is for the unrounded base, so that its outputs differ "
            "by that rounding from those in training. --dtype float32 makes them equal"
        )


def plain_settings(settings: peft.PeftConfig) -> peft.PeftConfig:
    """The settings of the adapter on the unchanged base."""
    if not is_rewriting(settings):
        return settings
    # the scale is alpha / r, or alpha / sqrt(r): it has to stay as it is at twice the rank
    factor = math.sqrt(2) if settings.use_rslora else 2
    plain = copy.deepcopy(settings)
    plain.init_lora_weights = True
    plain.r, plain.lora_alpha = 2 * settings.r, factor * settings.lora_alpha
    plain.rank_pattern = {name: 2 * r for name, r in settings.rank_pattern.items()}
    plain.alpha_pattern = {name: factor * a for name, a in settings.alpha_pattern.items()}
    return plain


def plain_tensors(model: peft.PeftModel, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`tensors` (name in the file -> live tensor) of the adapter on the unchanged base."""
    plain = dict(tensors)
    for name, initial in initial_tensors(model).items():
        if name.endswith("lora_A.weight"):
            plain[name] = torch.cat([tensors[name], initial.to(tensors[name].dtype)], dim=0)
        else:
            plain[name] = torch.cat([tensors[name], -initial.to(tensors[name].dtype)], dim=1)
    return plain


def trained_halves(
    model: peft.PeftModel, saved: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(saved tensors without what the base lost, that alone), to compare them with live ones."""
    trained, lost = dict(saved), {}
    for name in initial_tensors(model).keys() & saved.keys():
        is_a = name.endswith("lora_A.weight")
        axis = 0 if is_a else 1
        rank = saved[name].shape[axis] // 2
        trained[name], rest = (
            part.contiguous()
            for part in saved[name].split([rank, saved[name].shape[axis] - rank], axis)
        )
        lost[name] = rest if is_a else -rest
    return trained, lost


def initial_tensors(model: peft.PeftModel) -> dict[str, Tensor]:
    """What the base lost: name in the file of the trained factor -> its initial value."""
    found = {}
    for name, layer in _lora_layers(model):
        for buffer, factor in ((_A0, "lora_A"), (_B0, "lora_B")):
            buffers = dict(layer.named_buffers(recurse=False))
            if buffer in buffers:
                found[f"{name}.{factor}.weight"] = buffers[buffer]
    return found


def _lora_layers(model: peft.PeftModel) -> Iterator[tuple[str, LoraLayer]]:
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            yield name, module


def _check_layer(name: str, layer: LoraLayer, settings: peft.LoraConfig) -> None:
    """Raise ModelError where PEFT initialises in another way or goes wrong."""
    init, label = (
        settings.init_lora_weights,
        f"--lora.init_lora_weights {settings.init_lora_weights}",
    )
    if not isinstance(layer, LoraLinear):
        raise ModelError(
            f"{label}: only linear layers can start so.\n  got: {name}, of "
            f"{type(layer.get_base_layer()).__name__}\n"
            "  do: leave it out of --lora.target_modules, or choose another initialisation"
        )
    if init == "olora" and layer.fan_in_fan_out:
        # PEFT 0.21 decomposes the weight of a Conv1D without turning it over
        raise ModelError(
            f"{label}: PEFT can not do it for transposed layers (Conv1D), as GPT-2 has.\n"
            f"  got: {name}\n  do: use --lora.init_lora_weights pissa"
        )
    smallest = min(layer.in_features, layer.out_features)
    if layer.r[_ADAPTER] > smallest:
        raise ModelError(
            f"{label}: the rank is larger than a layer.\n"
            f"  got: r = {layer.r[_ADAPTER]}, and {name} is {layer.out_features} x "
            f"{layer.in_features}\n  expected: at most {smallest}\n  do: lower --lora.r"
        )
