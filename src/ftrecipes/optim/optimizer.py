"""The optimizer over whatever is trainable."""

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ftrecipes.config.errors import ConfigError, ModelError
from ftrecipes.config.schema import TrainConfig
from ftrecipes.optim.anyprecision import AnyPrecisionAdamW

BETAS = (0.9, 0.999)
EPSILON = 1e-8
# Device types for which bitsandbytes 0.50 has the update of 8-bit moments, and that of paged ones.
# On a CPU it falls back to moments that are not paged, with a warning.
DEVICES = {"adamw_8bit": ("cpu", "cuda", "xpu"), "paged_adamw_8bit": ("cuda",)}
# LoRA's factors are matrices at rank 1 too; norms may be matrices (a norm for each head), biases
# too (one for each expert), and so may be the logarithms of the decay in state-space models.
_MATRICES = re.compile(r"(^|\.)lora_(embedding_)?[AB](\.|$)")
_NO_MATRICES = re.compile(r"(bias|norm\w*\.weight|A_log)$", re.IGNORECASE)


def check_device(optimizer: str, device_type: str) -> None:
    """Raise ConfigError when `optimizer` does not run on that kind of device."""
    devices = DEVICES.get(optimizer)
    if devices is not None and device_type not in devices:
        raise ConfigError(
            f"--optimizer {optimizer} does not run on this device.\n"
            f"  got: {device_type}\n  expected: {', '.join(devices)}\n"
            "  do: use --optimizer adamw"
            + (", or adamw_8bit" if device_type in DEVICES["adamw_8bit"] else "")
        )


def build_optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]], config: TrainConfig
) -> torch.optim.Optimizer:
    """The optimizer of `config` over the parameters that require a gradient.

    All are AdamW (Loshchilov and Hutter, arXiv:1711.05101). The moments of torch's have the dtype
    of the parameter; those of bitsandbytes have 8 bits in blocks of 256 (Dettmers et al.,
    arXiv:2110.02861), 32 bits where a parameter has fewer than 4096 elements. Names are canonical.
    Raises ModelError when nothing is trainable.
    """
    trainable = [(name, value) for name, value in named_parameters if value.requires_grad]
    if not trainable:
        raise ModelError(
            "Nothing is trainable: every parameter is frozen.\n"
            "  expected: at least one parameter that takes a gradient\n"
            "  do: use --use_peft with target modules of this model, or train the whole model"
        )
    groups = decay_groups(trainable, config.weight_decay)
    settings = {"lr": config.lr, "betas": BETAS, "eps": EPSILON}
    settings["weight_decay"] = config.weight_decay
    if config.optimizer == "anyprecision":
        return AnyPrecisionAdamW(groups, **settings)
    if config.optimizer in DEVICES:
        from bitsandbytes.optim import AdamW8bit  # here, because few runs need it

        return AdamW8bit(groups, is_paged=config.optimizer == "paged_adamw_8bit", **settings)
    # fused: one kernel over all tensors; torch 2.13 has it for cpu, cuda, xpu and mps.
    return torch.optim.AdamW(groups, fused=True, **settings)


def decay_groups(
    named_parameters: list[tuple[str, nn.Parameter]], weight_decay: float
) -> list[dict[str, Any]]:
    """Parameter groups: what decays, and what does not (see `decays`); one when nothing decays."""
    if weight_decay == 0:
        return [{"params": named_parameters}]
    decayed = [(name, value) for name, value in named_parameters if decays(name, value)]
    spared = [(name, value) for name, value in named_parameters if not decays(name, value)]
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": spared, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Whether weight decay acts on a parameter: on matrices, embeddings and LoRA's factors.

    Not on biases, norms, and other factors and vectors (DoRA's magnitudes, IA3), whatever their
    shape: decay would pull a scale towards 0 where 1 is neutral.
    """
    if _MATRICES.search(name):
        return True
    return not _NO_MATRICES.search(name) and sum(size > 1 for size in parameter.shape) > 1
