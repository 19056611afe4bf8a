"""Where the rows of a run come from: local files, a hub data set, or a user's own function."""

import hashlib
from collections.abc import Iterable

from transformers import PreTrainedTokenizerBase

from ftrecipes.config.check_paths import CUSTOM, FILE_SETS, NAMED_SETS, is_path
from ftrecipes.config.data_files import DATA_KINDS, DATA_SUFFIXES
from ftrecipes.config.errors import DataError
from ftrecipes.config.schema import RunConfig
from ftrecipes.data.custom import load_custom
from ftrecipes.data.named import SAMSUM, SAMSUM_ID, name_rows
from ftrecipes.data.paths import read_paths
from ftrecipes.data.row_names import number_rows
from ftrecipes.data.rows import RawRows

VALIDATION_NAMES = ("validation", "val", "dev")


def load_split(config: RunConfig, tokenizer: PreTrainedTokenizerBase, split: str) -> RawRows | None:
    """The raw rows of `train` or `validation`; None when there is nothing to evaluate on.

    The tokenizer is for a custom data set's own use. Nothing is read for `validation` under
    `run_validation` false. Raises DataError naming the file and line, the hub id, or the line of a
    custom data set's code.
    """
    name, is_train = config.train.dataset, split == "train"
    if not is_train and not config.train.run_validation:
        return None
    if name == CUSTOM:
        return load_custom(config.custom_dataset, tokenizer, is_train=is_train)
    raw = _load(config, is_train=is_train)
    return name_rows(name, raw) if raw is not None and name in NAMED_SETS else raw


def _load(config: RunConfig, *, is_train: bool) -> RawRows | None:
    name, data = config.train.dataset, config.data
    if not is_train and data.val_file is not None:
        return read_paths(data.val_file)
    if name in FILE_SETS:
        return read_paths(data.train_file) if is_train else None
    if name != SAMSUM and is_path(name, DATA_SUFFIXES):
        return read_paths(name) if is_train else None
    name = SAMSUM_ID if name == SAMSUM else name
    return load_hub(name, data.train_split if is_train else data.val_split)


def load_hub(name: str, split: str | None) -> RawRows | None:
    """A split of a hub data set; without a name, the first that is for validation, or None."""
    import datasets  # takes a second, and local files do without it

    try:
        if split is None:
            found = datasets.get_dataset_split_names(name)
            split = next((known for known in VALIDATION_NAMES if known in found), None)
            if split is None:
                return None
        rows = datasets.load_dataset(name, split=split)
        fingerprint = _fingerprint(split, (file["filename"] for file in rows.cache_files))
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise DataError(
            f"The hub data set {name!r} (split {split or 'for validation'}) can not be read.\n"
            f"  got: {type(error).__name__}: {error}\n"
            "  do: check the id, the split and the network, or name a local file "
            f"({DATA_KINDS})"
        ) from error
    name = f"{name} {split}"
    sources = number_rows(name, "row", range(1, len(rows) + 1))
    return RawRows(rows, rows.column_names, name, sources, fingerprint=fingerprint)


def _fingerprint(split: str, files: Iterable[str]) -> str | None:
    """Content hash of the Arrow files that the library made of the split, if it has any."""
    hashes = []
    for path in files:
        with open(path, "rb") as file:
            hashes.append(hashlib.file_digest(file, "sha256").hexdigest())
    return " ".join([split, *hashes]) if hashes else None
