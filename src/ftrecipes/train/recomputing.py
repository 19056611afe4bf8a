"""What of a model is computed again in the backward, as the settings ask."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from peft import PeftModel
from torch import nn
from torch.utils.checkpoint import noop_context_fn

from ftrecipes.config.errors import ModelError
from ftrecipes.config.recomputing import is_asked, method_in
from ftrecipes.config.schema import RunConfig
from ftrecipes.model.experts import leave_recomputing_to
from ftrecipes.model.units import find_blocks
from ftrecipes.parallel.offload import HostStash
from ftrecipes.parallel.op_counts import OpCounts
from ftrecipes.parallel.operators import KeptOps
from ftrecipes.parallel.recompute import Contexts, other_kind, recompute, refuse_two_kinds
from ftrecipes.parallel.selective import counting, keeping_ops
from ftrecipes.parallel.targets import Selected, in_words, select
from ftrecipes.parallel.wrap import blocks_of, lora_aware_wrap_policy
from ftrecipes.runtime import log


def checkpointed(config: RunConfig, model: nn.Module) -> tuple[Selected, ...]:
    """The modules of a model, with its adapters, that are computed again; empty = none.

    Its weights need not be there. Raises ConfigError for a target that this model does not have,
    for an operator that torch does not have, and where something else recomputes already; and
    ModelError where it was asked for and the model can not: XLM would fill its cache twice.
    """
    if method_in(config) == "none":
        return ()
    if not model.supports_gradient_checkpointing:
        if is_asked(config):
            raise ModelError(
                f"--activation_checkpointing {method_in(config)}: the blocks of this model "
                f"({type(model).__name__}) can not be computed twice, as transformers knows it.\n"
                "  do: use --activation_checkpointing none"
            )
        return ()
    refuse_two_kinds(model)
    settings = config.activation_checkpointing
    KeptOps(settings.save_ops)  # raises for operators that there are none of
    blocks = _of_decoder(model, blocks_of(lora_aware_wrap_policy(model, config.fsdp.wrap_classes)))
    return select(model, blocks, settings.target, every_n=settings.every_n)


def _of_decoder(model: nn.Module, blocks: list[nn.Module]) -> list[nn.Module]:
    """Without blocks that see or hear: no row of text reaches them, and block 0 is not theirs."""
    try:
        listed = find_blocks(model.get_base_model() if isinstance(model, PeftModel) else model)
    except ModelError:  # its config counts otherwise: BLT, HRM, LongCat
        return blocks
    decoder = {module for block in listed for module in block.modules()}
    return [block for block in blocks if block in decoder] or blocks


def recompute_as_asked(config: RunConfig, model: nn.Module, device: torch.device) -> None:
    """Let these modules compute their activations again, and say which they are.

    After adapters are added and before the model is cut into shares; `device` is where it computes.
    Each rank for itself. Raises as `checkpointed`.
    """
    selected = checkpointed(config, model)
    if selected:
        modules = [one.module for one in selected]
        counts = OpCounts() if config.activation_checkpointing.count_ops else None
        recompute(
            *(model, modules),
            contexts=_contexts(config, counts),
            keeping=_keeping(config, device),
            counts=counts,
        )
        leave_recomputing_to(modules)
        log.info(f"checkpointed: {in_words(selected)}{_how(config)}")
    elif (kind := other_kind(model)) is not None:
        log.info(f"checkpointed by transformers itself: {type(model).__name__} with {kind}")
    elif is_asked(config):
        log.info("checkpointed: nothing, as --activation_checkpointing.target {} asks")


def _contexts(config: RunConfig, counts: OpCounts | None) -> Contexts:
    if method_in(config) == "selective":
        return keeping_ops(config.activation_checkpointing.save_ops, counts)
    return noop_context_fn if counts is None else counting(counts)


def _keeping(config: RunConfig, device: torch.device) -> Callable[[], AbstractContextManager]:
    return HostStash(device).keeping if config.activation_checkpointing.offload else nullcontext


def _how(config: RunConfig) -> str:
    settings = config.activation_checkpointing
    parts = ["selective"] if method_in(config) == "selective" else []
    parts += [f"save_ops {','.join(settings.save_ops)}"] if settings.save_ops else []
    parts += ["inputs in the memory of the host"] if settings.offload else []
    return "".join(f"; {part}" for part in parts)
