"""The names of what a run writes, for the checks before it and for the publishing after it."""

from pathlib import Path

WEIGHTS = (
    "adapter_model*.safetensors",
    "adapter_model.bin",
    "model*.safetensors",
    "pytorch_model*.bin",
)
BEST = "best"  # a folder: the result as it was at the lowest evaluation loss
BEST_ASIDE = ".earlier.best"  # an earlier best while the new one moves in
# What a loader picks up; of an earlier run, what the new one does not replace has to go.
RESULT = (
    *WEIGHTS,
    BEST,
    BEST_ASIDE,
    "adapter_config.json",
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)
RUN_RECORD = "run.json"
SETTINGS = "run.yaml"
RECORD = (RUN_RECORD, SETTINGS, "metrics.jsonl", "error.txt")
CARD = "README.md"
STAGING = ".saving."  # and some letters: a result before it is published
LIVE = ".running"  # the record of a run that will replace an earlier result
ASIDE = ".earlier"  # an earlier result while the new one moves in
LOCK = ".lock"
# What says that a run of ours got somewhere; without it a folder of ours may be used again.
TRAINED = (*WEIGHTS, BEST, "metrics.jsonl", "checkpoint-*", f"{STAGING}*")
WRITTEN = (*RESULT, *RECORD, CARD, f"{STAGING}*", LIVE, ASIDE)
# Folders of tools. Each run adds names of its own to them, so that no earlier one is replaced.
WANDB = "wandb"  # wandb chooses this name
TENSORBOARD = "tensorboard"
PROFILE = "profile"


def settings_file(folder: Path) -> Path:
    """run.yaml of the run that wrote the weights in `folder`: its best stands inside its folder."""
    return (folder.parent if folder.name == BEST else folder) / SETTINGS


def run_folder(record_folder: Path) -> Path:
    """The run folder whose record is written to `record_folder`: the same, or the one around it."""
    return record_folder.parent if record_folder.name == LIVE else record_folder
