"""Tiny models with an adapter of any method, as the flags of a run make them."""

import torch
from peft import PeftModel

from ftrecipes.config.adapter_sections import (
    Ia3Config,
    LlamaAdapterConfig,
    PrefixConfig,
    PromptConfig,
)
from ftrecipes.config.precision import Precision
from ftrecipes.config.schema import LoraConfig, RunConfig, TrainConfig
from ftrecipes.model.adapters import add_adapters, trainable_parameters
from tests import tiny_models
from tests.model.loading import FLOAT32

VIRTUAL = 5
SECTIONS = {
    "lora": (LoraConfig, {"r": 4}),
    "ia3": (Ia3Config, {}),
    "prefix": (PrefixConfig, {"num_virtual_tokens": VIRTUAL}),
    "prompt": (PromptConfig, {"num_virtual_tokens": VIRTUAL}),
    "llama_adapter": (LlamaAdapterConfig, {"adapter_len": VIRTUAL}),
}


def method_config(method: str, *, folder: object = None, **settings) -> RunConfig:
    """A run's settings with the method and settings of its section."""
    section, usual = SECTIONS[method]
    train = TrainConfig(
        model_name="base",
        use_peft=True,
        peft_method=method,
        from_peft_checkpoint=None if folder is None else str(folder),
    )
    return RunConfig(train=train, **{method: section(**usual | settings)})


def adapt(
    method: str,
    family: str = "llama",
    *,
    precision: Precision = FLOAT32,
    tokenizer=None,
    **settings,
) -> PeftModel:
    """A tiny model of the family with a new adapter."""
    config = method_config(method, **settings)
    return add_adapters(tiny_models.build(family), config, precision, tokenizer=tokenizer)


def moved(model: PeftModel, *, by: float = 0.1, seed: int = 1) -> PeftModel:
    """The model with every trainable number moved, so that each part of an adapter has effect."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in trainable_parameters(model):
            parameter += by * torch.randn(parameter.shape, generator=generator)
    return model.eval()
