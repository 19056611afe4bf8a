"""Files and folders that settings name, checked before anything heavy is imported.

os.path and not pathlib asks whether something exists: a name too long, or a folder that may not be
looked into, is then simply absent.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from ftrecipes.config.faults import Fault, shown
from ftrecipes.config.names import close
from ftrecipes.config.schema import GenerateConfig, RunConfig

CUSTOM = "custom_dataset"
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
DATA_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
MODEL_FILES = ("adapter_config.json", "config.json")
WEIGHTS = (
    "adapter_model*.safetensors",
    "adapter_model.bin",
    "model*.safetensors",
    "pytorch_model*.bin",
)
RESULTS = (*WEIGHTS, "metrics.jsonl", "checkpoint-*")


def check_paths(config: RunConfig | GenerateConfig) -> list[Fault]:
    """Faults of the paths in `config`: missing, of the wrong kind, or in the way."""
    if isinstance(config, GenerateConfig):
        return [*_model("model_name", config.model_name), *_adapter(config)]
    train = config.train
    return [
        *_model("model_name", train.model_name),
        *_model("tokenizer_name", train.tokenizer_name),
        *_training_data(config),
        *_data_file("data.val_file", config.data.val_file),
        *_custom_file(config),
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
        yield _absent(name, value, expected)
    elif os.path.isfile(value) and not value.endswith(".gguf"):
        yield Fault(f"--{name} {value}: no model", got="a file", expected=expected, flags=(name,))


def _adapter(config: GenerateConfig) -> Iterator[Fault]:
    value = config.adapter
    if value is None:
        return
    found = [name for name in MODEL_FILES if os.path.isfile(os.path.join(value, name))]
    if not os.path.isdir(value):
        yield _absent("adapter", value, "a folder")
    elif not found:
        what = f"--adapter {value}: this folder holds no adapter and no model"
        yield Fault(what, expected=f"{' or '.join(MODEL_FILES)} in it", flags=("adapter",))
    elif MODEL_FILES[0] not in found and config.model_name is not None:
        what = f"--model_name: would have no effect: {value} holds a whole model, not an adapter"
        yield Fault(what, do="leave one of the two out", flags=("adapter", "model_name"))


def _training_data(config: RunConfig) -> Iterator[Fault]:
    dataset = config.train.dataset
    if dataset and dataset != CUSTOM and is_path(dataset, DATA_SUFFIXES):
        yield from _data_file("dataset", dataset)


def _data_file(name: str, value: str | None) -> Iterator[Fault]:
    if value is None:
        return
    kinds = ", ".join(DATA_SUFFIXES)
    if not os.path.exists(value):
        yield _absent(name, value, f"a file of one of the kinds {kinds}")
    elif os.path.isdir(value):
        near = sorted(path.name for path in Path(value).iterdir() if path.suffix in DATA_SUFFIXES)
        yield Fault(
            f"--{name} {value}: a folder, and folders are not yet read",
            expected=f"a file of one of the kinds {kinds}",
            do=f"name one file: {', '.join(near[:5])}" if near else "",
            flags=(name,),
        )
    elif not value.lower().endswith(DATA_SUFFIXES):
        got = Path(value).suffix or "no suffix"
        what = f"--{name} {value}: not a kind of file that is read"
        yield Fault(what, got=got, expected=f"one of {kinds}", flags=(name,))


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
        yield _absent(name, path, "a Python file")


def _output(config: RunConfig) -> Iterator[Fault]:
    value = config.train.output_dir
    if not value:
        return
    folder, label = Path(value), f"--output_dir {value}"
    parent = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    flags = ("output_dir",)
    if not os.path.isdir(parent):
        expected = "a folder, or a name for a new one"
        yield Fault(f"{label}: {parent} is a file", expected=expected, flags=flags)
    elif not os.access(parent, os.W_OK | os.X_OK):
        do = "choose another folder"
        yield Fault(f"{label}: {parent} can not be written to", do=do, flags=flags)
    elif _same(value, config.train.model_name):
        do = "choose another folder"
        what = f"{label}: this is the folder of --model_name"
        yield Fault(what, do=do, flags=(*flags, "model_name"))
    elif parent == folder and not config.train.overwrite_output_dir:
        found = sorted({path.name for name in RESULTS for path in folder.glob(name) if _full(path)})
        if found:
            yield Fault(
                f"{label}: holds an earlier result",
                got=", ".join(found[:5]),
                do="choose another folder, or replace it with --overwrite_output_dir",
                flags=(*flags, "overwrite_output_dir"),
            )


def _same(folder: str, other: str) -> bool:
    return os.path.isdir(folder) and os.path.isdir(other) and os.path.samefile(folder, other)


def _full(path: Path) -> bool:
    return path.is_dir() or path.stat().st_size > 0


def _absent(name: str, value: str, expected: str) -> Fault:
    """A path that does not exist, with the most alike name in its folder."""
    folder = Path(value).absolute().parent
    do = ""
    if not os.path.isdir(folder):
        do = f"there is no folder {folder} either"
    elif os.access(folder, os.R_OK):
        near = close(Path(value).name, os.listdir(folder))
        do = f"did you mean {Path(value).parent / near}?" if near else ""
    what = f"--{name} {shown(value)}: does not exist"
    return Fault(what, expected=expected, do=do, flags=(name,))
