"""Files of rows of several kinds, and runs over them."""

import json
from pathlib import Path

from ftrecipes.config.schema import CustomDatasetConfig, RunConfig, TrainConfig
from ftrecipes.config.sections import DataConfig
from tests.tiny_tokenizers import build_tokenizer

TOKENIZER = build_tokenizer("chatml")
KINDS = {
    "alpaca": lambda n: {"instruction": f"question {n}", "output": f"answer {n}"},
    "text": lambda n: {"text": f"text number {n}"},
    "body": lambda n: {"body": f"text number {n}"},
    "chat": lambda n: {
        "messages": [
            {"role": "user", "content": f"ask {n}"},
            {"role": "assistant", "content": f"first {n}"},
            {"role": "user", "content": "and"},
            {"role": "assistant", "content": f"last {n}"},
        ]
    },
}

FORMATS = ("alpaca", "text", "chat")


def write_rows(path: Path, kind: str, count: int) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(KINDS[kind](n)) + "\n" for n in range(count)))
    return str(path)


def config(*sets, run_validation=True, custom=None, **data) -> RunConfig:
    named = [{"name": one} if isinstance(one, str) else one for one in sets]
    return RunConfig(
        train=TrainConfig(dataset=named, run_validation=run_validation),
        data=DataConfig(**data),
        custom_dataset=CustomDatasetConfig(file=custom),
    )
