"""A whole run inside this process."""

from pathlib import Path

import pytest

from ftrecipes.finetuning import main


@pytest.fixture
def finetune(model_folder, chat_file, tmp_path):
    """Run the recipe on the CPU into `out`, with one epoch of an adapter unless asked otherwise."""

    def run(**flags) -> Path:
        usual = {"model_name": model_folder, "dataset": chat_file, "output_dir": tmp_path / "out"}
        usual |= {"use_peft": True, "num_epochs": 1, "device": "cpu"}
        flags = usual | flags
        main(**flags)
        return Path(flags["output_dir"])

    return run
