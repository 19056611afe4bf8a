"""`--dataset custom_dataset`: rows from a function in the user's own file.

The contract is llama-recipes': `fn(dataset_config, tokenizer, split)` returns rows (any sequence or
iterable) in any of our formats, see formats.py. None instead of validation rows means that there
are none. A `get_data_collator(tokenizer)` beside it may finish rows: it is called once a row when
the rows are loaded, not once a batch, because batches are made from rows of known length before the
first step.
"""

import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
from transformers import PreTrainedTokenizerBase

from ftrecipes.config.check_paths import CUSTOM
from ftrecipes.config.errors import DataError
from ftrecipes.config.schema import CustomDatasetConfig
from ftrecipes.data.rows import RawRows, collect_rows

DEFAULT_FUNCTION = "get_custom_dataset"
COLLATOR = "get_data_collator"
COLLATED = {"input_ids", "attention_mask", "labels", "position_ids"}


def load_custom(
    section: CustomDatasetConfig, tokenizer: PreTrainedTokenizerBase, *, is_train: bool
) -> RawRows | None:
    """The rows that the user's function returns; None when it has none for validation.

    Raises DataError with file, line and message of whatever goes wrong in the user's code.
    """
    path, function_name = _split_name(section.file)
    module = _import_file(path)
    function = _member(module, function_name, path=path)
    if function is None:
        raise DataError(
            f"{path} has no function {function_name!r}.\n"
            f"  got: {', '.join(_functions(module)) or 'no function'}\n"
            "  do: name it with --custom_dataset.file FILE.py:FUNCTION"
        )
    split = section.train_split if is_train else section.test_split
    with _user_code(path, f"{function_name}(..., split={split!r})"):
        rows = function(_settings(section), tokenizer, split)
        rows = None if rows is None else _as_list(rows)
    if rows is None and is_train:
        raise DataError(f"{path}: {function_name} returned no rows for split {split!r} (None).")
    if rows is None:
        return None
    collator = _member(module, COLLATOR, path=path)
    if collator is not None:
        with _user_code(path, COLLATOR):
            collate = collator(tokenizer)
            rows = [_collate_one(collate, row, path=path) for row in rows]
    return collect_rows(rows, name=f"{path.name} {split}")


def _split_name(file: str | None) -> tuple[Path, str]:
    """`folder/rows.py:make` -> the file and the function's name."""
    if not file:
        raise DataError("--dataset custom_dataset needs --custom_dataset.file FILE.py:FUNCTION.")
    path, colon, name = file.rpartition(":")
    if not colon or not path.endswith(".py"):
        path, name = file, DEFAULT_FUNCTION
    found = Path(path).expanduser()
    if not found.is_file():
        raise DataError(f"{found}: there is no such file.\n  do: check --custom_dataset.file")
    return found, name


def _import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"custom_dataset_{path.stem}", path)
    if spec is None:
        raise DataError(f"{path}: not a Python file (.py); see --custom_dataset.file.")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickle look a class's module up there.
    sys.modules[spec.name] = module
    with _user_code(path, "import"):
        spec.loader.exec_module(module)
    return module


def _functions(module: ModuleType) -> list[str]:
    """Names of the functions that the file itself defines."""
    members = vars(module).items()
    return [name for name, value in members if _is_own(value, module) and name[0] != "_"]


def _is_own(value: object, module: ModuleType) -> bool:
    return callable(value) and value.__module__ == module.__name__


def _member(module: ModuleType, name: str, *, path: Path) -> Callable | None:
    member = vars(module).get(name)
    if member is not None and not callable(member):
        raise DataError(f"{path}: {name} is no function.")
    return member


def _settings(section: CustomDatasetConfig) -> SimpleNamespace:
    """This section as the user's function sees it: fields and unlisted options as attributes."""
    fields = asdict(section)
    options = fields.pop("options")
    return SimpleNamespace(dataset=CUSTOM, **fields, **options)


def _as_list(rows: object) -> list[Mapping]:
    if isinstance(rows, str | Mapping):
        raise TypeError(f"returned {type(rows).__name__}; expected a list or other rows in order")
    if isinstance(rows, Iterable):
        return list(rows)
    # A torch Dataset has a length and items, and no end of its own.
    return [rows[index] for index in range(len(rows))]


def _collate_one(collate: Callable, row: Mapping, *, path: Path) -> dict[str, np.ndarray]:
    """What the collator makes of one row, without the batch dimension."""
    batch = collate([row])
    extra = sorted(set(batch) - COLLATED)
    if extra:
        raise DataError(
            f"{path}: the collator of {COLLATOR} returns {', '.join(extra)}.\n"
            f"  expected: only {', '.join(sorted(COLLATED))}\n"
            "  why: rows are collated one at a time when they are loaded, and batches made later"
        )
    arrays = {key: np.asarray(value) for key, value in batch.items()}
    for key, array in arrays.items():
        if len(array) != 1:
            raise DataError(
                f"{path}: the collator of {COLLATOR} returns {len(array)} rows of {key} for one.\n"
                "  expected: one row for each row\n"
                "  do: split or leave out rows in the function that returns them"
            )
    finished = {key: array[0] for key, array in arrays.items()}
    positions = finished.pop("position_ids", None)
    if positions is not None:
        kept = positions[finished.get("attention_mask", np.ones_like(positions)) != 0]
        if not np.array_equal(kept, np.arange(len(kept))):
            raise DataError(f"{path}: the collator's position_ids do not count from 0.")
    return finished


@contextmanager
def _user_code(path: Path, what: str) -> Iterator[None]:
    """Turn any exception of the user's code into a DataError with its place and message.

    SystemExit too: a script that ends itself (argparse does) would end the run as if it were done.
    """
    # As the import system names the module's file, and before the code goes to another folder.
    file = os.path.abspath(path)
    try:
        yield
    except (DataError, KeyboardInterrupt):
        raise
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == file]
        if isinstance(error, SyntaxError) and error.filename == file:
            lines.append(error.lineno)
        place = f"{path} line {lines[-1]}" if lines else str(path)
        raise DataError(
            f"{place}: {_message(error)}\n"
            f"  in: {what} of the custom data set\n"
            "  do: correct it; the function is called as fn(dataset_config, tokenizer, split)"
        ) from error


def _message(error: BaseException) -> str:
    """Type and text of an exception, even of one that can not be shown as text."""
    lines = traceback.format_exception_only(error)
    # A syntax error begins with the place, which is indented.
    return next(line for line in lines if not line.startswith(" ")).rstrip("\n")
