"""PiSSA and OLoRA: initialisations that take the update out of the base weights.

The base becomes W - s B0 A0, and the adapter starts at B0 A0 (s is its scale). On the unchanged
base the trained model is W + s (B A - B0 A0), which is plain LoRA of twice the rank:
A' = [A; A0], B' = [B, -B0] (PiSSA, arXiv:2404.02948; OLoRA, arXiv:2406.01775). So it is saved, and
whoever has the base can load it. B0 and A0 stay with the model until then, as float32 buffers of
the adapters' layers.
"""

import copy
import math
from collections.abc import Iterator, Mapping

import peft
import torch
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from ftrecipes.config.errors import ModelError
from ftrecipes.model.module_names import canonical_name
from ftrecipes.runtime import log

_ADAPTER = "default"
_A0, _B0 = "initial_lora_A", "initial_lora_B"
_REWRITING = ("pissa", "olora")


def is_rewriting(settings: peft.PeftConfig) -> bool:
    """Whether an adapter with these settings changes the base weights as it is added."""
    return isinstance(settings, peft.LoraConfig) and settings.init_lora_weights in _REWRITING


def rewriting_adapter(model: PreTrainedModel, settings: peft.LoraConfig) -> peft.PeftModel:
    """The model with an adapter that starts so, and with what the base lost for it.

    PEFT itself would round B0 and A0 to the dtype of the base, after the base has lost them
    unrounded: it starts here as plain LoRA, and each layer is initialised in float32. Raises
    ModelError for layers that can not be initialised so, before any is.
    """
    init, settings.init_lora_weights = settings.init_lora_weights, True
    adapted = peft.get_peft_model(model, settings)
    settings.init_lora_weights = init
    layers = list(_lora_layers(adapted))
    for name, layer in layers:
        _check_layer(name, layer, init)
    for _, layer in layers:
        _rewrite(layer, init)
    dtypes = {layer.get_base_layer().weight.dtype for _, layer in layers} - {torch.float32}
    if dtypes and adapted.device.type != "meta":
        rounded = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        log.warning(
            f"{init} rewrites base weights in {rounded} and rounds them; the saved adapter is for "
            "the unrounded base, so that its outputs differ by that rounding from those in "
            "training. --dtype float32 makes them equal"
        )
    return adapted


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
    """`tensors` (name in the file -> live tensor) of the adapter on the unchanged base.

    What the initialisation touched is float32, so that B0 A0 is what the base lost.
    """
    plain = dict(tensors)
    for name, initial in initial_tensors(model).items():
        live = tensors[name].to(torch.float32)
        is_a = name.endswith("lora_A.weight")
        plain[name] = torch.cat([live, initial if is_a else -initial], dim=0 if is_a else 1)
    return plain


def trained_halves(
    model: peft.PeftModel, saved: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(saved tensors without what the base lost, that alone), to compare them with live ones."""
    trained, lost = dict(saved), {}
    for name in initial_tensors(model).keys() & saved.keys():
        is_a = name.endswith("lora_A.weight")
        first, second = saved[name].tensor_split(2, dim=0 if is_a else 1)
        trained[name] = first.contiguous()
        lost[name] = second.contiguous() if is_a else -second
    return trained, lost


def initial_tensors(model: peft.PeftModel) -> dict[str, Tensor]:
    """What the base lost: name in the file of the trained factor -> its initial value, float32."""
    found = {}
    for name, layer in _lora_layers(model):
        buffers = dict(layer.named_buffers(recurse=False))
        for buffer, factor in ((_A0, "lora_A"), (_B0, "lora_B")):
            if buffer in buffers:
                found[f"{name}.{factor}.weight"] = buffers[buffer]
    return found


def _lora_layers(model: peft.PeftModel) -> Iterator[tuple[str, LoraLayer]]:
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            yield canonical_name(name), module


def _check_layer(name: str, layer: LoraLayer, init: str) -> None:
    label = f"--lora.init_lora_weights {init}"
    if type(layer) is not LoraLinear:
        raise ModelError(
            f"{label}: only linear layers can start so.\n  got: {name}, of "
            f"{type(layer.get_base_layer()).__name__}\n"
            "  do: name others in --lora.target_modules (all-linear takes experts and their router "
            "in some models), or choose another initialisation"
        )
    smallest = min(layer.in_features, layer.out_features)
    if layer.r[_ADAPTER] > smallest:
        raise ModelError(
            f"{label}: the rank is larger than a layer.\n"
            f"  got: r = {layer.r[_ADAPTER]}, and {name} is {layer.out_features} x "
            f"{layer.in_features}\n  expected: at most {smallest}\n  do: lower --lora.r"
        )


def _rewrite(layer: LoraLinear, init: str) -> None:
    """Initialise one layer in float32, and keep A0 and B0 with it.

    Its weight becomes one of its own: embeddings that a head shared it with lose nothing.
    """
    base = layer.get_base_layer()
    dtype, turned = base.weight.dtype, layer.fan_in_fan_out
    base.weight = nn.Parameter(base.weight.to(torch.float32, copy=True), requires_grad=False)
    if init == "pissa":
        layer.pissa_init(_ADAPTER, init)
    else:
        # PEFT 0.21 decomposes the weight of a Conv1D without turning it over
        base.weight.data = base.weight.data.T if turned else base.weight.data
        layer.olora_init(_ADAPTER)
        base.weight.data = base.weight.data.T.contiguous() if turned else base.weight.data
    base.weight.data = base.weight.data.to(dtype)
    for buffer, factors in ((_A0, layer.lora_A), (_B0, layer.lora_B)):
        initial = factors[_ADAPTER].weight.detach().clone()
        layer.register_buffer(buffer, initial, persistent=False)
