"""What every run needs."""

from pathlib import Path

import pytest


@pytest.fixture
def needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The flags that every run needs, in a folder where the file exists."""
    monkeypatch.chdir(tmp_path)
    Path("train.jsonl").write_text("{}\n")
    return ["--model_name", "owner/model", "--dataset", "train.jsonl", "--output_dir", "out"]
