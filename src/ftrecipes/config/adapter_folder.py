"""An adapter folder to go on from, as far as its small files tell: no torch, no weights."""

import json
import os
from collections.abc import Mapping
from typing import Any

from ftrecipes.config.schema import RunConfig

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
METHODS = {  # PEFT's word -> ours
    "LORA": "lora",
    "IA3": "ia3",
    "PREFIX_TUNING": "prefix",
    "PROMPT_TUNING": "prompt",
    "ADAPTION_PROMPT": "llama_adapter",
}
PROMPT_LEARNING = ("prefix", "prompt")


def read_adapter(folder: str) -> dict[str, Any]:
    """adapter_config.json of the folder. Raises OSError or ValueError when it is none."""
    with open(os.path.join(folder, CONFIG), encoding="utf-8") as file:
        settings = json.load(file)
    if not isinstance(settings, dict):
        raise ValueError("no JSON object")
    return settings


def method_of(config: RunConfig) -> str:
    """The method that the run trains: that of the adapter it goes on from, or --peft_method."""
    return METHODS.get(str(continued_settings(config).get("peft_type")), config.train.peft_method)


def virtual_tokens(config: RunConfig) -> int:
    """Positions before each row that the method takes for itself."""
    method = method_of(config)
    if not config.train.use_peft or method not in PROMPT_LEARNING:
        return 0
    asked = {"prefix": config.prefix, "prompt": config.prompt}[method].num_virtual_tokens
    return int(continued_settings(config).get("num_virtual_tokens", asked))


def continued_settings(config: RunConfig) -> Mapping[str, Any]:
    """Settings of the adapter that the run goes on from; empty without a readable one."""
    folder = config.train.from_peft_checkpoint
    if folder is None:
        return {}
    try:
        return read_adapter(folder)
    except (OSError, ValueError, RecursionError):
        return {}  # check_adapter says so
