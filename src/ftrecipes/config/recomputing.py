"""Which kind of activation checkpointing a run's settings ask for."""

from typing import Literal

from ftrecipes.config.schema import RunConfig


def method_in(config: RunConfig) -> Literal["none", "full", "selective"]:
    """What `--activation_checkpointing` comes to, with `auto` and transformers' word resolved."""
    method = config.activation_checkpointing.method
    if method != "auto":
        return method
    return "full" if is_asked(config) or config.train.enable_fsdp else "none"


def is_asked(config: RunConfig) -> bool:
    """Whether the person asked for it, where with `auto` `enable_fsdp` alone brings it too."""
    section = config.activation_checkpointing
    if section.method != "auto":
        return section.method != "none"
    refined = section.target is not None or section.every_n != 0 or section.offload
    return refined or config.train.gradient_checkpointing
