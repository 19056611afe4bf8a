"""Fixtures that several rooms share: small model folders and data files, all made here."""

import json
import logging
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from tests import tiny_models
from tests.tiny_tokenizers import build_tokenizer

TOPICS = ("rain", "bread", "iron", "music", "salt", "wool", "glass", "tea")


@pytest.fixture(autouse=True)
def cache_home(tmp_path_factory, monkeypatch) -> Path:
    """The user's cache folder during a test; empty, and never that of who runs the tests."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture(autouse=True)
def _log_as_it_was():
    """A command starts the log for its process; its stream ends with the test."""
    logger = logging.getLogger("ftrecipes")
    before = logger.handlers[:], logger.propagate, logger.level
    yield
    logger.handlers[:], logger.propagate = before[:2]
    logger.setLevel(before[2])


@pytest.fixture(scope="session", autouse=True)
def _record_machine(record_testsuite_property):
    """Put device and versions into a report (--junitxml), for benchmarks/gpu_marks.py."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    packages = ("torch", "transformers", "peft", "bitsandbytes")
    record_testsuite_property("device", device)
    record_testsuite_property("versions", ", ".join(f"{name} {version(name)}" for name in packages))


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    """A tiny random Llama with a ChatML tokenizer, as save_pretrained writes them."""
    folder = tmp_path_factory.mktemp("models") / "tiny llama"
    return tiny_models.save_folder("llama", folder, tokenizer=build_tokenizer("chatml"))


@pytest.fixture(scope="session")
def chat_file(tmp_path_factory) -> Path:
    """Twelve short dialogs, one JSON object a line."""
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"Tell me about {topic}, part {part}."},
                {"role": "assistant", "content": f"{topic} is {topic} " * (part + 1)},
            ]
        }
        for part in range(2)
        for topic in TOPICS[:6]
    ]
    return write_lines(tmp_path_factory.mktemp("data") / "train.jsonl", rows)


@pytest.fixture(scope="session")
def val_file(tmp_path_factory) -> Path:
    """Five instructions with answers of different lengths."""
    rows = [
        {"instruction": f"Describe {topic}.", "input": "", "output": f"It is {topic}. " * length}
        for length, topic in enumerate(TOPICS[3:], start=1)
    ]
    return write_lines(tmp_path_factory.mktemp("data") / "validation.jsonl", rows)


def write_lines(path: Path, rows: list[dict]) -> Path:
    """Write rows as JSON Lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
