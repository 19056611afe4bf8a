"""Where rows come from: combinations of settings for data."""

from collections.abc import Iterator

from ftrecipes.config.check_paths import CUSTOM, DATA_SUFFIXES, is_path
from ftrecipes.config.faults import Fault, idle
from ftrecipes.config.flags import asked, asked_in, asked_of
from ftrecipes.config.later import LATER_DATASETS
from ftrecipes.config.schema import RunConfig


def check_data(config: RunConfig) -> Iterator[Fault]:
    """Faults of the settings that say which rows are read."""
    dataset = config.train.dataset
    splits = ("data.train_split", "data.val_split")
    if dataset == CUSTOM:
        names = asked_of(config, (*splits, "data.val_file"))
        if names:
            yield idle(names, "the custom data set makes both splits", "dataset")
        if config.custom_dataset.file is None:
            what, expected = "needs --custom_dataset.file", "a Python file, or file.py:function"
            flags = ("custom_dataset.file",)
            yield Fault(f"--dataset {CUSTOM}: {what}", expected=expected, flags=flags)
    else:
        options = [f"{CUSTOM}.{name}" for name in config.custom_dataset.options]
        names = [*asked_in(config, CUSTOM), *options]
        if names:
            yield idle(names, f"it needs --dataset {CUSTOM}", "dataset")
        names = asked_of(config, splits)
        if names and is_path(dataset, DATA_SUFFIXES):
            yield idle(names, f"the file {dataset} has no splits", "dataset")
        elif "data.val_split" in names and config.data.val_file is not None:
            yield idle(["data.val_split"], "--data.val_file is read instead", "data.val_file")
    if config.train.batching_strategy != "padding" and asked(config, "data.shuffle"):
        yield idle(["data.shuffle"], "it is for --batching_strategy padding", "batching_strategy")
    if dataset in LATER_DATASETS:
        yield Fault(
            f"--dataset {dataset}: named data sets are not yet in this version",
            do=f"shape such rows with a function of your own: --dataset {CUSTOM} (docs/data.md)",
            flags=("dataset",),
        )
