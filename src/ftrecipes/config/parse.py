"""Flags, typed or in a file, become a configuration; all faults are reported together."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ftrecipes.config import argv
from ftrecipes.config.check import check, check_generate
from ftrecipes.config.errors import ConfigError
from ftrecipes.config.faults import Fault, shown
from ftrecipes.config.flags import FLAT_SECTION, build, flags_of, value_of
from ftrecipes.config.fsdp_file import read_fsdp_file
from ftrecipes.config.schema import RunConfig
from ftrecipes.config.source import FSDP_FILE, Source


@dataclass(frozen=True)
class Parsed:
    """A configuration, and what the person should be told about it (for the log, as warnings)."""

    config: Any
    warnings: tuple[str, ...]


def check_argv(words: Sequence[str], *, into: type = RunConfig) -> list[str]:
    """Faults of a command line whose shape fire would bend; empty when fire may have it.

    When the shape is wrong, the faults of its flags are in the list as well, so that all are told
    at once.
    """
    found = argv.split(words, flags_of(into))
    return _parse(found.flags, faults=found.faults, into=into)[1] if found.faults else []


def parse_words(words: Sequence[str], *, into: type = RunConfig, writes: bool = True) -> Parsed:
    """Parse a command line without fire. Raises ConfigError with every fault.

    `writes` tells whether a run will follow, which an earlier result in `output_dir` forbids.
    """
    found = argv.split(words, flags_of(into))
    return _complete(*_parse(found.flags, faults=found.faults, into=into, writes=writes))


def parse(
    flags: Mapping[str, object], *, stray: Sequence[str] = (), into: type = RunConfig
) -> Parsed:
    """Make an `into` of `flags`: names without dashes, values as text or as Python values.

    `config` among them names a YAML file, and `fsdp_config` a JSON file; the flags override both.
    `stray` are words that belong to no flag. Raises ConfigError with every fault found in flags,
    files and their combination.
    """
    faults = [Fault(f"{shown(word)}: belongs to no flag") for word in stray]
    return _complete(*_parse(flags, faults=faults, into=into))


def to_mapping(config: RunConfig) -> dict[str, Any]:
    """`config` as plain nested values: as YAML, `--config` reads an equal configuration from it."""
    result: dict[str, Any] = {}
    for name, flag in flags_of(type(config)).items():
        place = result if flag.section == FLAT_SECTION else result.setdefault(flag.section, {})
        place[flag.field] = value_of(config, name)
    result["custom_dataset"] |= config.custom_dataset.options
    return result


def _complete(parsed: Parsed, faults: list[str]) -> Parsed:
    if faults:
        raise ConfigError(faults)
    return parsed


def _parse(
    flags: Mapping[str, object], *, faults: Sequence[Fault], into: type, writes: bool = True
) -> tuple[Parsed, list[str]]:
    found = list(faults)
    typed = Source(into)
    typed.take_all({name: value for name, value in flags.items() if name != "config"})
    sources = [typed]
    if "config" in flags:
        path = os.path.expanduser(str(flags["config"]))
        if issubclass(into, RunConfig):
            sources.insert(0, _read_file(path))
        else:
            found.append(_no_file(path))
    sources = _with_fsdp_file(sources)
    config = _build(into, sources)
    found += [fault for source in sources for fault in source.faults]
    broken = {name for fault in found for name in fault.flags}
    if issubclass(into, RunConfig):
        found += check(config, broken, writes=writes)
    else:
        found += check_generate(config, broken)
    warnings = tuple(line for source in sources for line in source.warnings)
    return Parsed(config, warnings), [fault.text for fault in found]


def _read_file(path: str) -> Source:
    # PyYAML is imported only for a run that reads a file.
    from ftrecipes.config.files import read_settings

    source = Source(RunConfig, file=path)
    try:
        source.take_all(read_settings(path))
    except ConfigError as error:
        every = tuple(flags_of(RunConfig))
        source.faults += [Fault(text, flags=every) for text in error.faults]
    return source


def _with_fsdp_file(sources: list[Source]) -> list[Source]:
    """The sources, and before the last that names a file of FSDP's settings what that file says."""
    naming = [at for at, source in enumerate(sources) if source.fsdp_file is not None]
    for at in naming[:-1]:
        sources[at].origins.pop(FSDP_FILE, None)
    if not naming or not sources[naming[-1]].fsdp_file:
        return sources
    last = naming[-1]
    return [*sources[:last], read_fsdp_file(sources[last].fsdp_file), *sources[last:]]


def _no_file(path: str) -> Fault:
    """`generate` finds the settings of a run in its folder."""
    folder = os.path.dirname(path) or "."
    do = f"name the run's folder: --adapter {folder}"
    return Fault("--config: generate reads no file of settings", do=do, flags=("adapter",))


def _build(into: type, sources: list[Source]) -> Any:
    """The configuration that the sources add up to; a later source wins."""
    values, options, origins = {}, {}, dict.fromkeys(flags_of(into), "default")
    for source in sources:
        values |= source.values
        options |= source.options
        origins |= source.origins
    if not issubclass(into, RunConfig):
        return build(into, values)
    config = build(into, values, origins=origins)
    return replace(config, custom_dataset=replace(config.custom_dataset, options=options))
