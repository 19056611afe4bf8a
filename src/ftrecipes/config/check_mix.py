"""Several data sets: their weights, and what settings for all of them and for one mean together."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from ftrecipes.config.check_data import check_set
from ftrecipes.config.check_paths import CUSTOM, FILE_SETS
from ftrecipes.config.data_files import find_data_files
from ftrecipes.config.faults import Fault, idle, shown
from ftrecipes.config.flags import asked
from ftrecipes.config.mixing import OWN, DataSet, config_of, is_mix, sets_of
from ftrecipes.config.schema import RunConfig
from ftrecipes.config.sections import DataConfig

EVALUATED = ("val_file", "val_split")
"""What of a set says which rows are evaluated."""


def check_mix(config: RunConfig) -> Iterator[Fault]:
    """Faults of a list of data sets."""
    if not is_mix(config):
        return
    sets = sets_of(config)
    yield from _weights(sets)
    yield from _caps(sets)
    yield from _twice(config, sets)
    found = [list(check_set(_alone(config, one))) for one in sets]
    for one, faults in zip(sets, found, strict=True):
        yield from (_of_set(one, fault) for fault in faults)
    for key in OWN:
        yield from _for_all(config, sets, found, key=key)
    yield from _validation(config, sets)


def _weights(sets: Sequence[DataSet]) -> Iterator[Fault]:
    flags = ("dataset",)
    without = [one.name for one in sets if one.weight is None]
    if without and len(without) < len(sets):
        yield Fault(
            "--dataset: some sets have a weight and some have none",
            got=f"none: {', '.join(without)}",
            expected="a weight for each set (a.jsonl:0.7,b.jsonl:0.3), or for none, which trains "
            "each row once",
            flags=flags,
        )
    if len(sets) == 1 and not without:
        what = f"--dataset: the weight of {sets[0].name} would have no effect: it is the only set"
        yield Fault(what, flags=flags)
    for one in sets:
        if one.weight is not None and one.weight <= 0:
            yield Fault(
                f"--dataset: weight of {one.name}: out of range",
                got=f"{one.weight:g}",
                expected="more than 0",
                do="leave a set that is not wanted out",
                flags=flags,
            )


def _caps(sets: Sequence[DataSet]) -> Iterator[Fault]:
    for one in sets:
        if one.max_rows is not None and one.max_rows < 1:
            what, got = f"--dataset: max_rows of {one.name}: out of range", str(one.max_rows)
            yield Fault(what, got=got, expected="1 or more", flags=("dataset",))


def _twice(config: RunConfig, sets: Sequence[DataSet]) -> Iterator[Fault]:
    """Two sets with the same rows would be no shares of what their weights say."""
    parts = [_parts(config_of(config, one)) for one in sets]
    for (one, its), (other, others) in combinations(zip(sets, parts, strict=True), 2):
        shared = sorted(its & others)
        if shared:
            what = f"--dataset: {one.name} is given twice"
            if one.name != other.name:
                what = f"--dataset: {one.name} and {other.name} have rows in common"
            do = "name what is meant once, with the sum of the weights"
            yield Fault(what, got=shared[0], do=do, flags=("dataset",))


def _parts(config: RunConfig) -> set[str]:
    """What a set is read from: its files, or its name and split."""
    name, data = config.train.dataset, config.data
    name = (data.train_file or name) if name in FILE_SETS else name
    files = {os.path.realpath(file) for file in find_data_files(name)}
    return files or {name if name == CUSTOM else f"{name}, split {data.train_split}"}


def _alone(config: RunConfig, one: DataSet) -> RunConfig:
    """A run on this set with its own settings alone."""
    data = DataConfig(train_file=config.data.train_file if one.name in FILE_SETS else None)
    return config_of(replace(config, data=data, origins={}), one)


def _of_set(one: DataSet, fault: Fault) -> Fault:
    """The fault of a set, named as a part of the list."""
    if fault.what.startswith("--dataset"):
        return fault
    what = f"--dataset: {one.name}: {fault.what.replace('--data.', '')}"
    return replace(fault, what=what, flags=("dataset",))


def _for_all(
    config: RunConfig, sets: Sequence[DataSet], found: Sequence[list[Fault]], *, key: str
) -> Iterator[Fault]:
    """A setting for all sets that does nothing for any of them."""
    flag = f"data.{key}"
    if key == "val_file" or not asked(config, flag):
        return
    told = []
    for one, faults in zip(sets, found, strict=True):
        if key in one.own:
            continue
        alone = _alone(config, one)
        value = vars(config.data)[key]
        common = replace(alone, data=replace(alone.data, **{key: value}), origins={flag: "--"})
        new = [fault for fault in check_set(common) if flag in fault.flags and fault not in faults]
        if not new:
            return
        told += new
    if told:
        yield told[0]
    else:
        yield idle([flag], "each set has its own", "dataset")


def _validation(config: RunConfig, sets: Sequence[DataSet]) -> Iterator[Fault]:
    data = config.data
    given = [name for name in ("val_fraction", "val_file") if asked(config, f"data.{name}")]
    for name in given:
        for one in sets:
            own = [key for key in EVALUATED if key in one.own]
            if own:
                yield Fault(
                    f"--data.{name} contradicts {own[0]} of {shown(one.name)}: both say what to "
                    "evaluate on",
                    do="keep one",
                    flags=(f"data.{name}", "dataset"),
                )
    if data.val_fraction > 0 and (data.val_file is not None or asked(config, "data.val_split")):
        other = "data.val_split" if data.val_file is None else "data.val_file"
        yield Fault(
            f"--data.val_fraction contradicts --{other}: both say what to evaluate on",
            do="keep one",
            flags=("data.val_fraction", other),
        )
    elif data.val_file is not None and asked(config, "data.val_split"):
        yield idle(["data.val_split"], "--data.val_file is read instead", "data.val_file")
    if data.val_fraction > 0 and any(one.name == CUSTOM for one in sets):
        yield idle(["data.val_fraction"], "the custom data set makes both splits", "dataset")
