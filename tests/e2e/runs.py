"""Rows for a run, and what its folder says afterwards."""

import json
from pathlib import Path

WEIGHTS = "adapter_model.safetensors"


def chat(question: str, answer: str) -> dict:
    return {
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
    }


def lines(folder: Path, kind: str) -> list[dict]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [row for row in rows if row["kind"] == kind]


def status(folder: Path) -> str:
    return json.loads((folder / "run.json").read_text())["status"]
