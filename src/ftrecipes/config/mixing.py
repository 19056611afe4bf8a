"""The data sets of a run: `--dataset` names one, or lists several with what each has for itself."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ftrecipes.config.schema import RunConfig

NAME, WEIGHT, MAX_ROWS = "name", "weight", "max_rows"
OWN = (
    "format",
    "columns",
    "train_on",
    "train_file",
    "train_split",
    "val_split",
    "val_file",
)
"""Settings of the section `data` that a set may have for itself."""
FILES = ("train_file", "val_file")


@dataclass(frozen=True)
class DataSet:
    """One of several sets. Unset is what the flags of the section `data` say for all."""

    name: str
    """What `--dataset` takes: a file, a folder, a glob, a hub id or a named set."""
    weight: float | None = None
    """Share of the rows that are drawn, over the sum of all weights; None = each row once."""
    max_rows: int | None = None
    """At most so many training rows of it are used; None = all."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """Those of OWN that it says."""


def is_mix(config: RunConfig) -> bool:
    """Whether the data sets are listed; one that is may have settings of its own too."""
    return not isinstance(config.train.dataset, str)


def sets_of(config: RunConfig) -> tuple[DataSet, ...]:
    """The sets in order; of a run without a list the one that there is."""
    if not is_mix(config):
        return (DataSet(config.train.dataset),)
    return tuple(
        DataSet(
            name=entry[NAME],
            weight=entry.get(WEIGHT),
            max_rows=entry.get(MAX_ROWS),
            own={key: entry[key] for key in OWN if key in entry},
        )
        for entry in config.train.dataset
    )


def config_of(config: RunConfig, one: DataSet) -> RunConfig:
    """The settings of a run on this set alone."""
    train = replace(config.train, dataset=one.name)
    return replace(config, train=train, data=replace(config.data, **one.own))


def dataset_words(config: RunConfig) -> str:
    """`--dataset` as one may type it."""
    if not is_mix(config):
        return config.train.dataset
    sets = sets_of(config)
    plain = all(not one.own and one.max_rows is None for one in sets)
    if not plain or any(mark in one.name for one in sets for mark in ",:"):
        return json.dumps(config.train.dataset)
    return ",".join(
        one.name if one.weight is None else f"{one.name}:{one.weight!r}" for one in sets
    )
