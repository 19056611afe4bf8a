"""The flags of a configuration class, read off its dataclass fields."""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

FLAT_SECTION = "train"


@dataclass(frozen=True)
class Flag:
    """One field: `name` is what follows the two dashes, `section` the part of the configuration."""

    name: str
    section: str
    field: str
    type: Any
    default: Any


@cache
def flags_of(config_class: type) -> Mapping[str, Flag]:
    """Canonical name -> flag, in the order of the fields. A section prefixes all but `train`."""
    found: dict[str, Flag] = {}
    for part in _settable(config_class):
        if not is_dataclass(part.type):
            found[part.name] = Flag(part.name, "", part.name, part.type, _default(part))
            continue
        prefix = "" if part.name == FLAT_SECTION else f"{part.name}."
        for item in _settable(part.type):
            name = prefix + item.name
            found[name] = Flag(name, part.name, item.name, item.type, _default(item))
    return MappingProxyType(found)


def build(config_class: type, values: Mapping[str, Any], **rest: Any) -> Any:
    """A `config_class` with `values` (canonical name -> value); what is not named is the default.

    `rest` are its fields that are neither flag nor section.
    """
    flags = flags_of(config_class)
    sections = {part.name: part.type for part in fields(config_class) if is_dataclass(part.type)}
    chosen: dict[str, dict[str, Any]] = {name: {} for name in ("", *sections)}
    for name, value in values.items():
        chosen[flags[name].section][flags[name].field] = value
    parts = {name: section(**chosen[name]) for name, section in sections.items()}
    return config_class(**chosen[""], **parts, **rest)


def value_of(config: Any, name: str) -> Any:
    """The value of the flag `name` in `config`."""
    flag = flags_of(type(config))[name]
    return getattr(getattr(config, flag.section) if flag.section else config, flag.field)


def asked(config: Any, name: str) -> bool:
    """Whether somebody asked for this value: it was typed, or a file or caller changed it.

    A run.yaml holds every value, so that one that equals the default there asks for nothing.
    """
    typed = config.origins.get(name, "").startswith("--")
    return typed or value_of(config, name) != flags_of(type(config))[name].default


def asked_of(config: Any, names: Iterable[str], *, besides: str = "") -> list[str]:
    """Those of `names` that somebody asked for, `besides` left out."""
    return [name for name in names if name != besides and asked(config, name)]


def asked_in(config: Any, section: str, *, besides: str = "") -> list[str]:
    """The flags of a section that somebody asked for, `besides` left out."""
    names = [name for name in flags_of(type(config)) if name.startswith(f"{section}.")]
    return asked_of(config, names, besides=besides)


def _settable(config_class: type) -> list:
    """Its fields that are flags, or sections of them; a command's own flags come first."""
    parts = [part for part in fields(config_class) if part.metadata.get("flag", True)]
    return sorted(parts, key=lambda part: is_dataclass(part.type))


def _default(part: Any) -> Any:
    return part.default if part.default_factory is MISSING else part.default_factory()
