"""Files and folders that settings name, checked before anything heavy is imported.

os.path and not pathlib asks whether something exists: a name too long, or a folder that may not be
looked into, is then simply absent.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ftrecipes.config.check_files import absent, data_files
from ftrecipes.config.data_files import DATA_SUFFIXES, find_data_files
from ftrecipes.config.faults import Fault
from ftrecipes.config.flags import value_of
from ftrecipes.config.mixing import FILES, sets_of
from ftrecipes.config.prepared_folder import is_prepared
from ftrecipes.config.run_files import BEST, RUN_RECORD, TRAINED, WRITTEN
from ftrecipes.config.schema import GenerateConfig, RunConfig

CUSTOM = "custom_dataset"
FILE_SETS = ("alpaca_dataset", "grammar_dataset")
NAMED_SETS = ("samsum_dataset", *FILE_SETS)
LONGEST_NAME = 255  # bytes, on the usual file systems
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
PROMPT_SUFFIXES = (".txt", ".jsonl")
MODEL_FILES = ("adapter_config.json", "config.json")


def check_paths(config: RunConfig | GenerateConfig) -> list[Fault]:
    """Faults of the paths in `config`: missing, of the wrong kind, or in the way."""
    if isinstance(config, GenerateConfig):
        return [*_model("model_name", config.model_name), *_adapter(config)]
    train = config.train
    return [
        *_model("model_name", train.model_name),
        *_model("tokenizer_name", train.tokenizer_name),
        *_training_data(config),
        *data_files("data.train_file", config.data.train_file),
        *data_files("data.val_file", config.data.val_file),
        *_custom_file(config),
        *_prompts(config.samples.prompts),
        *_output(config),
    ]


def is_path(text: str, suffixes: tuple[str, ...]) -> bool:
    """Whether `text` names a file or folder, there or not, and no hub id (`name`, `owner/name`)."""
    return (
        os.path.exists(text)
        or text.lower().endswith(suffixes)
        or text.startswith(("./", "../"))
        or not HUB_ID.fullmatch(text)
    )


def _model(name: str, value: str | None) -> Iterator[Fault]:
    if not value or not is_path(value, (".gguf",)):
        return
    expected = "a hub id (owner/name), or a folder or .gguf file that exists"
    if not os.path.exists(value):
        yield absent(name, value, expected)
    elif os.path.isfile(value) and not value.endswith(".gguf"):
        yield Fault(f"--{name} {value}: no model", got="a file", expected=expected, flags=(name,))


def _adapter(config: GenerateConfig) -> Iterator[Fault]:
    value = config.adapter
    if value is None:
        return
    found = [name for name in MODEL_FILES if os.path.isfile(os.path.join(value, name))]
    if not os.path.isdir(value):
        yield absent("adapter", value, "a folder")
    elif not found:
        what = f"--adapter {value}: this folder holds no adapter and no model"
        yield Fault(what, expected=f"{' or '.join(MODEL_FILES)} in it", flags=("adapter",))
    elif MODEL_FILES[0] not in found and config.model_name is not None:
        what = f"--model_name: would have no effect: {value} holds a whole model, not an adapter"
        yield Fault(what, do="leave one of the two out", flags=("adapter", "model_name"))


def _training_data(config: RunConfig) -> Iterator[Fault]:
    for one in sets_of(config):
        name = one.name
        if not name or name in (CUSTOM, *NAMED_SETS) or is_prepared(name):
            continue
        if is_path(name, DATA_SUFFIXES):
            yield from data_files("dataset", name)
        for key in FILES:
            yield from data_files("dataset", one.own.get(key))


def _custom_file(config: RunConfig) -> Iterator[Fault]:
    value = config.custom_dataset.file
    if value is None:
        return
    name = "custom_dataset.file"
    path, colon, function = value.rpartition(":")
    path = path if colon else value
    if not path.endswith(".py") or (colon and not function.isidentifier()):
        what = f"--{name} {value}: not a Python file"
        yield Fault(what, expected="file.py or file.py:function", flags=(name,))
    elif not os.path.isfile(path):
        yield absent(name, path, "a Python file")


def _prompts(value: str | None) -> Iterator[Fault]:
    if value is None:
        return
    kinds = ", ".join(PROMPT_SUFFIXES)
    name, expected = "samples.prompts", f"a file of one of the kinds {kinds}"
    if not os.path.exists(value):
        yield absent(name, value, expected)
    elif os.path.isdir(value) or not value.lower().endswith(PROMPT_SUFFIXES):
        got = "a folder" if os.path.isdir(value) else Path(value).suffix or "no suffix"
        what = f"--{name} {value}: not a file of prompts"
        yield Fault(what, got=got, expected=expected, flags=(name,))


def _output(config: RunConfig) -> Iterator[Fault]:
    value = config.train.output_dir
    if not value:
        return
    folder, label = Path(value), f"--output_dir {value}"
    parent = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    flags = ("output_dir",)
    expected = "a folder, or a name for a new one"
    if not os.path.isdir(parent):
        yield Fault(f"{label}: {parent} is a file", expected=expected, flags=flags)
    elif any(len(os.fsencode(part)) > LONGEST_NAME for part in folder.parts):
        yield Fault(f"{label}: a name in it is too long", expected=expected, flags=flags)
    elif any(path.is_symlink() for path in _absent_parts(folder)):
        yield Fault(f"{label}: a link that leads nowhere", expected=expected, flags=flags)
    elif not os.access(parent, os.W_OK | os.X_OK):
        do = "choose another folder"
        yield Fault(f"{label}: {parent} can not be written to", do=do, flags=flags)
    else:
        yield from _in_the_way(config, folder)


def _absent_parts(folder: Path) -> list[Path]:
    return [path for path in (folder, *folder.parents) if not os.path.exists(path)]


def _in_the_way(config: RunConfig, folder: Path) -> Iterator[Fault]:
    """What a run would replace in its output folder: the input of this run, or something older."""
    train, label = config.train, f"--output_dir {config.train.output_dir}"
    for name in ("model_name", "tokenizer_name", "from_peft_checkpoint"):
        value = value_of(config, name)
        if value and any(_same(str(path), value) for path in (folder, folder / BEST)):
            what = f"{label}: this is the folder of --{name}"
            yield Fault(what, do="choose another folder", flags=("output_dir", name))
    inputs = [
        ("data.train_file", config.data.train_file),
        ("data.val_file", config.data.val_file),
        ("data.chat_template", config.data.chat_template),
    ]
    for one in sets_of(config):
        inputs += [("dataset", file) for file in (one.name, *map(one.own.get, FILES))]
    for name, value in inputs:
        yield from _overwritten(name, value or "", folder)
    if train.overwrite_output_dir or not os.path.isdir(folder):
        return
    what, found = "holds an earlier result", _names(folder, TRAINED)
    if not found and not _is_run_folder(folder):
        what, found = "holds files that the run would replace", _names(folder, WRITTEN)
    if found:
        yield Fault(
            f"{label}: {what}",
            got=", ".join(found[:5]) + (f" and {len(found) - 5} more" if found[5:] else ""),
            do="choose another folder, or replace them with --overwrite_output_dir",
            flags=("output_dir", "overwrite_output_dir"),
        )


def _overwritten(name: str, value: str, folder: Path) -> Iterator[Fault]:
    """Data that the run itself would replace, or add its own files to."""
    label, flags, do = f"--output_dir {folder}", ("output_dir", name), "choose another folder"
    if _same(value, str(folder)):
        yield Fault(f"{label}: this is the folder of --{name}", do=do, flags=flags)
        return
    for file in find_data_files(value):
        if _same(str(file.parent), str(folder)) and _is_written(str(file)):
            what = f"{label}: the run would replace {file}, which is --{name}"
            yield Fault(what, do=do, flags=flags)


def _names(folder: Path, patterns: tuple[str, ...]) -> list[str]:
    return sorted({path.name for name in patterns for path in folder.glob(name) if _full(path)})


def _is_written(path: str) -> bool:
    return any(Path(path).match(name) for name in WRITTEN)


def _is_run_folder(folder: Path) -> bool:
    """Whether run.json there is one that a run of ours wrote."""
    try:
        content = json.loads((folder / RUN_RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "ftrecipes" in content.get("versions", {})


def _same(folder: str, other: str) -> bool:
    return os.path.isdir(folder) and os.path.isdir(other) and os.path.samefile(folder, other)


def _full(path: Path) -> bool:
    return path.is_dir() or path.stat().st_size > 0
