r"""A custom data set: scientific abstracts and their summaries in three lines.

    pip install --no-deps aclsum==0.1.2
    ftrecipes finetune --model_name HuggingFaceTB/SmolLM2-135M-Instruct --use_peft \
        --dataset custom_dataset --custom_dataset.file recipes/datasets/aclsum.py --output_dir out

ACLSum (MIT licence) holds 250 papers of computational linguistics with what was hard, what was done
and what came out, written by experts. The data is read from the installed package, or from the
folder or wheel that `--custom_dataset.data_path` names.

To bring your own data, keep the function's name and arguments and return a list of rows. A row is
{"messages": [...]} as here, or {"instruction": ..., "input": ..., "output": ...}, or finished
{"input_ids": [...], "labels": [...]} with -100 where nothing is learned. The tokenizer is there for
the last kind only: messages are written with the model's own chat template later.
"""

import importlib.util
import json
import zipfile
from pathlib import Path

FILES = {"train": "train.jsonl", "validation": "val.jsonl", "test": "test.jsonl"}
REQUEST = "Summarize this abstract: what was the challenge, the approach, and the outcome?"
ASPECTS = ("challenge", "approach", "outcome")


def get_custom_dataset(dataset_config, tokenizer, split):
    """The rows of a split: 100 for training, 50 for validation, 100 for test."""
    file = find_folder(dataset_config.data_path) / FILES[split]
    with file.open(encoding="utf-8") as lines:
        papers = [json.loads(line) for line in lines]
    return [{"messages": to_messages(paper)} for paper in papers]


def to_messages(paper):
    """One question and its answer."""
    abstract = " ".join(paper["sentences"]["abstract"])
    summary = [f"{name.capitalize()}: {paper['summary'][name].strip()}" for name in ASPECTS]
    return [
        {"role": "user", "content": f"{REQUEST}\n\n{abstract}"},
        {"role": "assistant", "content": "\n".join(summary)},
    ]


def find_folder(data_path):
    """Where the .jsonl files lie: in a wheel, in a given folder, or in the installed package."""
    if data_path.endswith(".whl"):
        return zipfile.Path(data_path) / "aclsum" / "dataset"
    if data_path:
        return Path(data_path)
    package = importlib.util.find_spec("aclsum")  # finds it without running its code
    if package is None:
        raise FileNotFoundError(
            "the package aclsum is not installed: pip install --no-deps aclsum==0.1.2, "
            "or name its wheel or data folder with --custom_dataset.data_path"
        )
    return Path(package.origin).parent / "dataset"
