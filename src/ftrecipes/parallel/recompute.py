"""Activation checkpointing of whole blocks: computed again in the backward instead of kept."""

from collections.abc import Iterable

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    CheckpointWrapper,
    checkpoint_wrapper,
)
from transformers import PreTrainedModel

from ftrecipes.config.errors import ModelError


def recompute(model: nn.Module, blocks: Iterable[nn.Module]) -> None:
    """Put a wrapper in every place of each block, so that only its inputs outlive its forward.

    Call it after adapters are added and before units are looked for: a unit is gathered outside of
    its wrapper. The backward draws the same random numbers as the forward, and forwards must be
    told to use no cache, which a second one would fill twice. Each rank for itself. Raises
    ModelError where transformers' own gradient checkpointing is on, with which every block would
    be computed three times.
    """
    own = [m for m in model.modules() if isinstance(m, PreTrainedModel)]
    if any(part.is_activation_checkpointing for part in own):
        raise ModelError(
            f"{type(model).__name__} has transformers' own gradient checkpointing on.\n"
            "  expected: one kind of it, or every block is computed three times\n"
            "  do: call activation_checkpointing_disable() on the model, or use "
            "--activation_checkpointing none"
        )
    wrappers = {
        block: checkpoint_wrapper(
            block, checkpoint_impl=CheckpointImpl.NO_REENTRANT, preserve_rng_state=True
        )
        for block in blocks
    }
    places = [  # a block that is used at several depths has several
        (path, wrappers[module])
        for path, module in model.named_modules(remove_duplicate=False)
        if module in wrappers
    ]
    for path, wrapper in places:
        model.set_submodule(path, wrapper)


def without_wrapper(module: nn.Module) -> nn.Module:
    """The block inside a wrapper of `recompute`; any other module itself."""
    return module._checkpoint_wrapped_module if isinstance(module, CheckpointWrapper) else module
