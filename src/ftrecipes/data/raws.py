"""The raw rows of a run's splits: those of one data set, or of several joined."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from transformers import PreTrainedTokenizerBase

from ftrecipes.config.errors import DataError
from ftrecipes.config.mixing import DataSet, config_of, is_mix, sets_of
from ftrecipes.config.prepared_folder import is_prepared
from ftrecipes.config.schema import RunConfig
from ftrecipes.data.paths import read_paths
from ftrecipes.data.rows import RawRows
from ftrecipes.data.sets import cap_rows, join_raws, name_apart
from ftrecipes.data.sources import load_split
from ftrecipes.runtime import log

FRACTION_SEED = 42
"""Its own, so that the same data give the same validation rows whatever `--seed` is."""


def load_raws(
    config: RunConfig, tokenizer: PreTrainedTokenizerBase, *, faults: list[DataError]
) -> dict[str, RawRows]:
    """The raw rows of each split that there is, by name; what goes wrong is added to `faults`.

    Each of several data sets is read as if it were alone, and has its own rows to evaluate on.
    """
    if not is_mix(config) and is_prepared(config.train.dataset):
        raise DataError(
            f"--dataset {config.train.dataset}: prepared rows are tokens, without what was read.\n"
            "  do: name the data set that they were made of (`dataset` in prepared.json)"
        )
    if is_mix(config):
        found = _load_sets(config, tokenizer, faults=faults)
    else:
        found = _load(config, tokenizer, DataSet(config.train.dataset), faults=faults)
    if len(found) == 2:
        _warn_of_same(found["train"], found["validation"])
    return found


def cut_fraction(raw: RawRows, fraction: float) -> tuple[RawRows, RawRows]:
    """Training and validation rows: `fraction` of `raw`, rounded down, is for validation.

    Which rows depends on their number and `fraction` alone; both parts keep the order. Raises
    DataError when that is not one row.
    """
    count = _share(raw, fraction)
    if count == 0 and len(raw):
        raise DataError(
            f"--data.val_fraction {fraction} of the {len(raw)} rows of {raw.name} is not one row.\n"
            "  expected: one row or more to evaluate on\n"
            "  do: take a larger share, or leave it out"
        )
    # MT19937's legacy stream is frozen by NumPy (NEP 19).
    is_drawn = np.zeros(len(raw), dtype=bool)
    is_drawn[np.random.RandomState(FRACTION_SEED).permutation(len(raw))[:count]] = True
    parts = []
    for part in ("train", "validation"):
        chosen = np.flatnonzero(is_drawn == (part != "train")).tolist()
        fingerprint = raw.fingerprint and f"{raw.fingerprint} {part} {fraction}"
        parts.append(raw.pick(chosen, fingerprint=fingerprint))
    return parts[0], parts[1]


def _share(raw: RawRows, fraction: float) -> int:
    return int(len(raw) * fraction + 1e-9)


def _load(
    config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    one: DataSet,
    *,
    faults: list[DataError],
    may_be_small: bool = False,
) -> dict[str, RawRows]:
    """The splits of one set; one that `may_be_small` gives no row where a fraction of it is none.

    Its cap comes first, and then the fraction.
    """
    fraction = config.data.val_fraction
    raws: dict[str, RawRows | None] = {}
    for split in ("train",) if fraction else ("train", "validation"):
        try:
            raws[split] = load_split(config, tokenizer, split)
        except DataError as fault:
            faults.append(fault)
    if "train" in raws:
        raws["train"] = cap_rows(raws["train"], one.max_rows)
    if fraction and "train" in raws and (_share(raws["train"], fraction) or not may_be_small):
        try:
            raws["train"], cut = cut_fraction(raws["train"], fraction)
            raws["validation"] = cut if config.train.run_validation else None
        except DataError as fault:
            faults.append(fault)
    return {split: raw for split, raw in raws.items() if raw is not None}


def _load_sets(
    config: RunConfig, tokenizer: PreTrainedTokenizerBase, *, faults: list[DataError]
) -> dict[str, RawRows]:
    val_file, evaluates = config.data.val_file, config.train.run_validation
    common = config
    if val_file is not None:  # it stands for the validation rows of all sets
        train = replace(config.train, run_validation=False)
        common = replace(config, train=train, data=replace(config.data, val_file=None))
    sets = sets_of(config)
    own = [
        _load(config_of(common, one), tokenizer, one, faults=faults, may_be_small=True)
        for one in sets
    ]
    own, found = name_apart(sets, _evaluated_once(own)), {}
    for split in ("train", "validation"):
        having = [(one, raws[split]) for one, raws in zip(sets, own, strict=True) if split in raws]
        if having:
            found[split] = join_raws(having)
    if val_file is not None and evaluates:
        try:
            found["validation"] = read_paths(val_file)
        except DataError as fault:
            faults.append(fault)
    elif "validation" in found:
        without = [one.name for one, raws in zip(sets, own, strict=True) if len(raws) == 1]
        if without:
            log.info(f"there are no rows to evaluate on of {', '.join(without)}")
    elif config.data.val_fraction and evaluates and not faults:
        faults.append(
            DataError(
                f"--data.val_fraction {config.data.val_fraction} is not one row of any data set.\n"
                "  do: take a larger share, or leave it out"
            )
        )
    return found


def _evaluated_once(own: Sequence[Mapping[str, RawRows]]) -> list[dict[str, RawRows]]:
    """Without validation rows that an earlier set has: two parts of a hub data set share them."""
    seen, kept = set(), []
    for raws in own:
        validation = raws.get("validation")
        key = validation and (validation.name, validation.fingerprint)
        repeats = key in seen
        kept.append({split: raw for split, raw in raws.items() if split == "train" or not repeats})
        seen |= {key} if validation else set()
    return kept


def _warn_of_same(train: RawRows, validation: RawRows) -> None:
    """Rows that are read for both splits. A fingerprint tells the content."""
    trained = {part.fingerprint for part in _wholes(train)} - {None}
    for part in _wholes(validation):
        if part.fingerprint in trained:
            log.warning(
                f"the validation rows ({part.name}) are the training rows: evaluation "
                "will not tell how the model does on others (--data.val_fraction sets some aside)"
            )


def _wholes(raw: RawRows) -> list[RawRows]:
    return [part.raw for part in raw.parts] or [raw]
