"""Folders of tiny models and how the tests load them."""

from pathlib import Path

import torch

from ftrecipes.config.precision import Precision
from ftrecipes.config.schema import QuantizationConfig, RunConfig
from ftrecipes.model.load import load_model
from ftrecipes.model.resolve import resolve_source

FLOAT32 = Precision("float32", "float32", "float32", "float32", False, False)


def load(
    folder: Path, quantization: QuantizationConfig | None = None, precision: Precision = FLOAT32
) -> torch.nn.Module:
    """The model in the folder or .gguf file, on the CPU."""
    source = resolve_source(str(folder), None, trust_remote_code=False)
    config = RunConfig(quantization=quantization or QuantizationConfig())
    return load_model(source, config, precision, torch.device("cpu"))
