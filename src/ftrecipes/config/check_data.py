"""Where rows come from: combinations of settings for data."""

import os
from collections import Counter
from collections.abc import Iterator

from ftrecipes.config.chat_templates import BUILT_IN, TEMPLATE_SUFFIXES, is_template_file
from ftrecipes.config.check_paths import CUSTOM, FILE_SETS, NAMED_SETS, absent, is_path
from ftrecipes.config.data_files import DATA_SUFFIXES
from ftrecipes.config.faults import Fault, idle, shown
from ftrecipes.config.flags import asked, asked_in, asked_of
from ftrecipes.config.later import LATER_DATASETS
from ftrecipes.config.mixing import is_mix, sets_of
from ftrecipes.config.names import close
from ftrecipes.config.schema import RunConfig

SPLITS = ("data.train_split", "data.val_split")


def check_data(config: RunConfig) -> Iterator[Fault]:
    """Faults of the settings that say which rows are read; check_mix.py has those of several."""
    if all(one.name != CUSTOM for one in sets_of(config)):
        options = [f"{CUSTOM}.{name}" for name in config.custom_dataset.options]
        names = [*asked_in(config, CUSTOM), *options]
        if names:
            yield idle(names, f"it needs --dataset {CUSTOM}", "dataset")
    yield from _template(config.data.chat_template)
    if not is_mix(config):
        yield from check_set(config)
    if config.train.batching_strategy != "padding" and asked(config, "data.shuffle"):
        yield idle(["data.shuffle"], "it is for --batching_strategy padding", "batching_strategy")


def check_set(config: RunConfig) -> Iterator[Fault]:
    """Faults of the settings for the one data set of `config`."""
    if config.train.dataset == CUSTOM:
        names = asked_of(config, (*SPLITS, "data.val_file", "data.val_fraction"))
        if names:
            yield idle(names, "the custom data set makes both splits", "dataset")
        if config.custom_dataset.file is None:
            what, expected = "needs --custom_dataset.file", "a Python file, or file.py:function"
            flags = ("custom_dataset.file",)
            yield Fault(f"--dataset {CUSTOM}: {what}", expected=expected, flags=flags)
    yield from _columns(config)
    yield from _train_on(config)
    yield from _named(config)
    yield from _validation(config)


def _columns(config: RunConfig) -> Iterator[Fault]:
    for their, count in Counter(config.data.columns.values()).items():
        if count > 1:
            ours = ", ".join(our for our, name in config.data.columns.items() if name == their)
            what = f"--data.columns: one column in {count} places"
            flags = ("data.columns",)
            yield Fault(what, got=f"{their} as {ours}", expected="one for each", flags=flags)


def _template(value: str | None) -> Iterator[Fault]:
    name = "data.chat_template"
    if value is None or value in BUILT_IN:
        return
    if not is_template_file(value):
        near = close(value.lower(), BUILT_IN)
        yield Fault(
            f"--{name} {shown(value)}: no template of this name",
            expected=f"{', '.join(BUILT_IN)}, or a file ending in {TEMPLATE_SUFFIXES[0]}",
            do=f"did you mean {near}?" if near else "",
            flags=(name,),
        )
    elif not os.path.exists(value):
        yield absent(name, value, "a file with a Jinja template")
    elif not os.path.isfile(value):
        yield Fault(f"--{name} {value}: not a file", flags=(name,))


def _train_on(config: RunConfig) -> Iterator[Fault]:
    """Formats without roles; where the columns tell the format it is told with them."""
    name, data = "data.train_on", config.data
    if not asked(config, name):
        return
    if data.train_on == "completion" and data.format in ("chat", "sharegpt"):
        yield Fault(
            f"--{name} completion contradicts --data.format {data.format}: such rows have none",
            expected="assistant, last_assistant or all",
            flags=(name, "data.format"),
        )
    elif data.format == "tokens":
        yield idle([name], "labels say what of tokens is trained", "data.format")
    elif data.format == "text" and data.train_on != "all":
        yield idle([name], "all of a text is trained", "data.format")


def _named(config: RunConfig) -> Iterator[Fault]:
    dataset = config.train.dataset
    if dataset in FILE_SETS and config.data.train_file is None:
        what = f"--dataset {dataset}: needs --data.train_file"
        yield Fault(what, expected="the file with its rows", flags=("data.train_file",))
    elif dataset not in FILE_SETS and asked(config, "data.train_file"):
        why = f"it needs --dataset {' or '.join(FILE_SETS)}; other files are named by --dataset"
        yield idle(["data.train_file"], why, "dataset")
    shape = asked_of(config, ("data.format", "data.columns"))
    if dataset in NAMED_SETS and shape:
        yield idle(shape, f"{dataset} has a prompt and columns of its own", "dataset")
    if dataset in LATER_DATASETS:
        yield Fault(
            f"--dataset {dataset}: this named data set is not yet in this version",
            do=f"shape such rows with a function of your own: --dataset {CUSTOM} (docs/data.md)",
            flags=("dataset",),
        )


def _validation(config: RunConfig) -> Iterator[Fault]:
    dataset, data = config.train.dataset, config.data
    names = asked_of(config, SPLITS)
    is_local = dataset not in NAMED_SETS and is_path(dataset, DATA_SUFFIXES)
    if names and (dataset in FILE_SETS or is_local):
        yield idle(names, f"the rows of {dataset} have no splits", "dataset")
    elif "data.val_split" in names and data.val_file is not None:
        yield idle(["data.val_split"], "--data.val_file is read instead", "data.val_file")
    if data.val_fraction > 0:
        others = asked_of(config, ("data.val_file", "data.val_split"))
        if others:
            yield Fault(
                f"--data.val_fraction contradicts --{others[0]}: both say what to evaluate on",
                do="keep one",
                flags=("data.val_fraction", *others),
            )
