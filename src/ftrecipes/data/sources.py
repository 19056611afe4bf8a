"""Where the rows of a run come from: a local file, a hub data set, or a user's own function."""

from transformers import PreTrainedTokenizerBase

from ftrecipes.config.check_paths import CUSTOM, DATA_SUFFIXES, is_path
from ftrecipes.config.errors import DataError
from ftrecipes.config.schema import RunConfig
from ftrecipes.data.custom import load_custom
from ftrecipes.data.files import ENDINGS, read_file
from ftrecipes.data.rows import RawRows

VALIDATION_NAMES = ("validation", "val", "dev")


def load_split(config: RunConfig, tokenizer: PreTrainedTokenizerBase, split: str) -> RawRows | None:
    """The raw rows of `train` or `validation`; None when there is nothing to evaluate on.

    The tokenizer is for a custom data set's own use. Nothing is read for `validation` under
    `run_validation` false. Raises DataError naming the file and line, the hub id, or the line of a
    custom data set's code.
    """
    name, data = config.train.dataset, config.data
    is_train = split == "train"
    if not is_train and not config.train.run_validation:
        return None
    if name == CUSTOM:
        return load_custom(config.custom_dataset, tokenizer, is_train=is_train)
    if not is_train and data.val_file is not None:
        return read_file(data.val_file)
    if is_path(name, DATA_SUFFIXES):
        return read_file(name) if is_train else None
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
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise DataError(
            f"The hub data set {name!r} (split {split or 'for validation'}) can not be read.\n"
            f"  got: {type(error).__name__}: {error}\n"
            f"  do: check the id, the split and the network, or name a local file ({ENDINGS})"
        ) from error
    numbers = range(1, len(rows) + 1)
    return RawRows(rows, rows.column_names, f"{name} {split}", "row", numbers)
