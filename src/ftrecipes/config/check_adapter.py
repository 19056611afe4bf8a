"""What an adapter method can not be combined with, and the adapter that a run goes on from."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ftrecipes.config.adapter_folder import (
    CONFIG,
    METHODS,
    PROMPT_LEARNING,
    WEIGHTS,
    method_of,
    read_adapter,
)
from ftrecipes.config.errors import ConfigError
from ftrecipes.config.faults import Fault, shown
from ftrecipes.config.flags import asked, asked_in, flags_of, value_of
from ftrecipes.config.run_files import settings_file
from ftrecipes.config.schema import RunConfig
from ftrecipes.config.source import Source

REWRITING = ("pissa", "olora")  # initialisations that take the update out of the base weights
CHECKPOINT = "from_peft_checkpoint"
# Our field -> the name in adapter_config.json, where it differs.
THEIR_NAMES = {"prompt.init_text": "prompt_tuning_init_text"}


def check_adapter(config: RunConfig) -> Iterator[Fault]:
    """Faults of a run with an adapter: its method with other settings, and where it goes on."""
    if not config.train.use_peft:
        return
    if config.train.from_peft_checkpoint is not None:
        yield from _continued(config, config.train.from_peft_checkpoint)
    elif config.train.peft_method == "lora":
        yield from _rewriting(config)
    yield from _method(config)


def _method(config: RunConfig) -> Iterator[Fault]:
    """What only some methods can do."""
    train, method = config.train, method_of(config)
    if method in PROMPT_LEARNING and train.batching_strategy == "packing":
        yield Fault(
            f"--peft_method {method} does not work with --batching_strategy packing: each row "
            "needs virtual tokens of its own before it",
            do="add --batching_strategy padding",
            flags=("peft_method", "batching_strategy"),
        )
    if method != "lora" and (train.new_tokens or train.resize_embeddings):
        name = "new_tokens" if train.new_tokens else "resize_embeddings"
        yield Fault(
            f"--{name} does not work with --peft_method {method}: PEFT trains and saves single "
            "embedding rows with LoRA only",
            do=f"use --peft_method lora, or leave --{name} out",
            flags=("peft_method", name),
        )


def _rewriting(config: RunConfig) -> Iterator[Fault]:
    """PiSSA and OLoRA change the base weights themselves."""
    init = config.lora.init_lora_weights
    if init not in REWRITING:
        return
    label = f"--lora.init_lora_weights {init}"
    if config.quantization.method != "none":
        yield Fault(
            f"{label} does not work with --quantization: it rewrites the base weights",
            do="leave one of the two out",
            flags=("lora.init_lora_weights", "quantization.method"),
        )
    if config.lora.target_parameters:
        yield Fault(
            f"{label} does not work with --lora.target_parameters: PEFT rewrites modules only",
            do="leave one of the two out",
            flags=("lora.init_lora_weights", "lora.target_parameters"),
        )


def _continued(config: RunConfig, folder: str) -> Iterator[Fault]:
    """The folder of an adapter, and settings that say other than the adapter does."""
    label = f"--{CHECKPOINT} {shown(folder)}"
    if not os.path.isdir(folder):
        yield Fault(f"{label}: does not exist", expected="an adapter's folder", flags=(CHECKPOINT,))
        return
    if not any(os.path.isfile(os.path.join(folder, name)) for name in WEIGHTS):
        what = f"{label}: this folder holds no weights of an adapter"
        yield Fault(what, expected=" or ".join(WEIGHTS), flags=(CHECKPOINT,))
    try:
        adapter = read_adapter(folder)
    except (OSError, ValueError, RecursionError) as error:
        what = f"{label}: {CONFIG} can not be read"
        yield Fault(what, got=str(error), expected="a folder of an adapter", flags=(CHECKPOINT,))
        return
    method = METHODS.get(str(adapter.get("peft_type")))
    if method is None:
        yield Fault(
            f"{label}: not a method that can be trained here",
            got=f"peft_type {shown(adapter.get('peft_type'))} in {CONFIG}",
            expected=f"one of {', '.join(METHODS)}",
            flags=(CHECKPOINT,),
        )
        return
    yield from _conflicts(config, folder, adapter, method)


def _conflicts(
    config: RunConfig, folder: str, adapter: dict[str, Any], method: str
) -> Iterator[Fault]:
    """Settings that somebody asked for although the adapter says otherwise."""
    if asked(config, "peft_method") and config.train.peft_method != method:
        yield _conflict("peft_method", config.train.peft_method, method, folder)
    for other in set(METHODS.values()) - {method}:
        for name in asked_in(config, other):
            yield _conflict(name, value_of(config, name), f"its method is {method}", folder)
    names = asked_in(config, method)
    earlier = _earlier_settings(folder) if names else {}
    for name in names:
        value, field = value_of(config, name), flags_of(RunConfig)[name].field
        theirs = adapter.get(THEIR_NAMES.get(name, field))
        # The run that trained the adapter may have said it in other words, such as all-linear.
        if _plain(value) != _plain(theirs) and earlier.get(name) != value:
            yield _conflict(name, value, theirs, folder)


def _conflict(name: str, value: object, theirs: object, folder: str) -> Fault:
    return Fault(
        f"--{name} contradicts --{CHECKPOINT}",
        got=shown(value),
        expected=f"{shown(theirs)}, as {os.path.join(folder, CONFIG)} says",
        do=f"leave --{name} out: an adapter keeps its method, sizes and targets",
        flags=(name, CHECKPOINT),
    )


def _earlier_settings(folder: str) -> dict[str, Any]:
    """What the run that made the adapter was asked, if run.yaml is there and sound."""
    path = settings_file(Path(folder))
    if not path.is_file():
        return {}
    # PyYAML is imported only for a run that reads a file.
    from ftrecipes.config.files import read_settings

    source = Source(RunConfig, file=str(path))
    try:
        source.take_all(read_settings(str(path)))
    except ConfigError:
        return {}
    return source.values


def _plain(value: Any) -> object:
    """A value in one form for both sides: order and emptiness of lists tell nothing."""
    if value is None or value == [] or value == {}:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):  # one pattern stands there as it is
        return _plain(value[0]) if len(value) == 1 else frozenset(map(str, value))
    if isinstance(value, str):
        return value.lower() if value.lower() in ("true", "false") else value
    return value
