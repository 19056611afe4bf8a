"""A whole run inside this process, on the CUDA device."""

from pathlib import Path

import pytest

from ftrecipes.finetuning import main
from tests import tiny_models
from tests.tiny_tokenizers import build_tokenizer

DEVICE = "cuda"


@pytest.fixture(scope="session")
def wide_model(tmp_path_factory) -> Path:
    """A tiny Llama whose layers hold whole blocks of 64 weights and heads of width 16."""
    folder = tmp_path_factory.mktemp("wide") / "model"
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_key_value_heads": 4}
    return tiny_models.save_folder("llama", folder, tokenizer=build_tokenizer("chatml"), **sizes)


@pytest.fixture
def finetune(wide_model, chat_file, tmp_path):
    """Train on the CUDA device into a folder of the given name; three steps of all rows."""

    def run(name: str = "out", **flags) -> Path:
        usual = {"model_name": wide_model, "dataset": chat_file, "output_dir": tmp_path / name}
        usual |= {"use_peft": True, "device": DEVICE, "num_epochs": 3, "lr": 2e-3}
        usual |= {"batching_strategy": "padding", "batch_size_training": 12, "warmup_steps": 0}
        flags = usual | flags
        main(**flags)
        return Path(flags["output_dir"])

    return run
