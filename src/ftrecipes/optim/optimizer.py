"""The optimizer over whatever is trainable."""

from collections.abc import Iterable

import torch
from torch import nn

from ftrecipes.config.errors import ModelError
from ftrecipes.config.schema import TrainConfig


def build_optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]], config: TrainConfig
) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter, arXiv:1711.05101) over the parameters that require a gradient.

    Its moments have the dtype of the parameter. `config.weight_decay` acts on every one of them,
    norms and biases included, as in llama-recipes. Raises ModelError when nothing is trainable.
    """
    trainable = [(name, value) for name, value in named_parameters if value.requires_grad]
    if not trainable:
        raise ModelError(
            "Nothing is trainable: every parameter is frozen.\n"
            "  expected: at least one parameter that takes a gradient\n"
            "  do: use --use_peft with target modules of this model, or train the whole model"
        )
    # fused: one kernel over all tensors; torch 2.13 has it for cpu, cuda, xpu and mps.
    return torch.optim.AdamW(
        trainable,
        lr=config.lr,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=config.weight_decay,
        fused=True,
    )
