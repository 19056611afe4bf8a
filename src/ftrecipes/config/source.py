"""The settings of one place, command line or file: names resolved, values read, faults kept."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ftrecipes.config.argv import BARE
from ftrecipes.config.dataset_text import read_dataset
from ftrecipes.config.entries import items
from ftrecipes.config.faults import Fault, shown
from ftrecipes.config.flags import flags_of
from ftrecipes.config.later import LATER_FLAGS, LATER_SECTIONS, LATER_VALUES, later_fate
from ftrecipes.config.legacy import FATES, SECTION_ALIASES, Fate, fate_of
from ftrecipes.config.names import alike, close, meant, settled
from ftrecipes.config.schema import RunConfig
from ftrecipes.config.values import FALSE_WORDS, check_text, describe, read_value
from ftrecipes.config.words import Words, words_of

PATH_FLAGS = (
    "model_name",
    "tokenizer_name",
    "output_dir",
    "data.train_file",
    "data.val_file",
    "custom_dataset.file",
    "from_peft_checkpoint",
    "profiler_dir",
    "samples.prompts",
    "adapter",
    "html",
)
# A section's own name -> the flag that it names first.
SHORTHANDS = {
    "activation_checkpointing": "activation_checkpointing.method",
    "quantization": "quantization.method",
    "tracking": "tracking.wandb",
}
TRACKERS = ("wandb", "tensorboard")
FSDP_FILE = "fsdp_config"  # with a value of its own it names a file of other flags
REFUSALS = {"later": "not yet in this version", "refused": "refused"}
OPTIONS = "custom_dataset."
MISSPELT = 0.8


@dataclass
class Source:
    """What one place says, the command line or the file `file`; `origins`: flag -> where it is.

    `fsdp_file` is the path that it gives for --fsdp_config; empty where it says none.
    """

    into: type
    file: str = ""
    fsdp_file: str | None = None
    values: dict[str, Any] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def take_all(self, settings: Mapping[str, object]) -> None:
        """Read every setting; the mapping of a section is read as its dotted flags."""
        known = [*_own_names(self.into), *_planned_names(self.into)]
        sections = {name.partition(".")[0] for name in known if "." in name}
        for key, value in settings.items():
            name = str(key).replace("-", "_")
            part = {} if value is None and name not in SHORTHANDS else value  # `lora:` alone
            if name in sections and isinstance(part, Mapping):
                for inner, item in part.items():
                    self._take(f"{name}.{str(inner).replace('-', '_')}", item)
            else:
                self._take(name, value)

    def _take(self, name: str, value: object) -> None:
        run = issubclass(self.into, RunConfig)
        if run and name == FSDP_FILE:
            self._read_fsdp_file(value)
            return
        canonical = _canonical(name) if run else name
        fate = (fate_of(name) or later_fate(name)) if run else None
        if canonical in flags_of(self.into):
            self.read(canonical, name, value)
        elif fate:
            self._retire(fate, name, value)
        elif run and name.startswith(OPTIONS) and name.count(".") == 1:
            self._option(name, value)
        else:
            self._unknown(name, value)

    def _retire(self, fate: Fate, name: str, value: object) -> None:
        """A flag that no longer, or not yet, takes a value."""
        if fate.is_neutral(value):
            return
        if fate.kind == "ignored":
            self.warnings.append(f"{self._label(name)} is ignored: {fate.why}")
        else:
            self.fault(f"{REFUSALS[fate.kind]}: {fate.why}", name, got=value)

    def read(self, canonical: str, name: str, value: object) -> None:
        """Read `value`, given as `name`, for the flag `canonical`."""
        words = words_of(canonical, name)
        if words:
            self._read_words(words, canonical, name, value=value)
            return
        readers = {"tracking": self._read_tracking, "dataset": self._read_dataset}
        if name in readers:
            readers[name](value)
            return
        if str(value).lower() in LATER_VALUES.get(canonical, ()):
            self.fault(f"this value is {REFUSALS['later']}", name, got=value, flag=canonical)
            return
        kind, default = flags_of(self.into)[canonical].type, flags_of(self.into)[canonical].default
        fate = fate_of(name) if issubclass(self.into, RunConfig) else None
        if value == "" and default is None and fate and not fate.default:
            value = "none"  # the predecessor's word for nothing
        try:
            result = read_value(value, kind)
        except ValueError as hint:
            expected = describe(kind)
            bare = str(value) == BARE and not str(hint)
            do = "a flag without a value reads as True" if bare else str(hint)
            self.fault("bad value", name, got=value, expected=expected, do=do, flag=canonical)
            return
        if canonical in PATH_FLAGS and result is not None:
            result = os.path.expanduser(result)
        self._put(canonical, name, result)

    def _read_words(self, words: Words, canonical: str, name: str, *, value: object) -> None:
        """A word of a list, and what it sets."""
        try:
            settings = words.read(value)
        except ValueError as hint:
            expected, do = words.expected, str(hint)
            self.fault("bad value", name, got=value, expected=expected, do=do, flag=canonical)
            return
        for flag, result in settings.items():
            self._put(flag, name, result)

    def _read_dataset(self, value: object) -> None:
        """One set or several; the sets that could be read are checked with the rest."""
        result, told = read_dataset(value)
        flag = "" if result else "dataset"
        for what, got, expected, do in told:
            self.fault(what, "dataset", got=got, expected=expected, do=do, flag=flag)
        self._put("dataset", "dataset", result)

    def _read_fsdp_file(self, value: object) -> None:
        """The path of a file of FSDP's settings; parse.py reads it."""
        try:
            self.fsdp_file = os.path.expanduser(read_value(value, str | None) or "")
        except ValueError as hint:
            expected, do = "the path of a JSON file", str(hint)
            self.fault("bad value", FSDP_FILE, got=value, expected=expected, do=do, flag=FSDP_FILE)
            return
        if self.fsdp_file:
            self.origins[FSDP_FILE] = self.file or self._label(FSDP_FILE)

    def _read_tracking(self, value: object) -> None:
        """The tools by name; those that are not named are off."""
        try:
            words = [] if value is None else [str(word).lower() for word in items(value)]
        except ValueError:
            words = [str(value)]
        if set(words) <= set(TRACKERS):
            for tool in TRACKERS:
                self._put(f"tracking.{tool}", "tracking", tool in words)
        else:
            expected = f"{', '.join(TRACKERS)}, both with a comma between them, or none"
            flag = "tracking.wandb"
            self.fault("bad value", "tracking", got=value, expected=expected, flag=flag)

    def _put(self, canonical: str, name: str, value: object) -> None:
        """Set a value; two spellings of one flag may repeat a value but not contradict."""
        origin = self.file or self._label(name)
        if self.values.setdefault(canonical, value) != value:
            earlier = shown(self.values[canonical])
            what = f"contradicts {self.origins[canonical]}, which says {earlier}"
            self.fault(what, name, got=value, do="keep one", flag=canonical)
        self.origins.setdefault(canonical, origin)

    def _option(self, name: str, value: object) -> None:
        """An option of the custom data set that we do not know: its function does."""
        option = name.removeprefix(OPTIONS)
        try:
            check_text(name + str(value))
        except ValueError as hint:
            self.fault("bad value", name, got=value, do=str(hint))
        self.options[option] = str(value)
        self.origins[name] = self.file or self._label(name)
        listed = [known.removeprefix(OPTIONS) for known in flags_of(RunConfig) if OPTIONS in known]
        near = close(option, listed, likeness=MISSPELT)
        if near:
            what = f"{self._label(name)} goes to the function as an option of its own"
            self.warnings.append(f"{what}; if {OPTIONS}{near} was meant, mend it")

    def _unknown(self, name: str, value: object) -> None:
        """A name that means nothing here; what is refused itself is never proposed."""
        ours, planned = _own_names(self.into), _planned_names(self.into)
        if not self.file:
            ours += ["help", *(["config"] if planned else [])]
        how = settled(name) if planned else None
        word = None if how else meant(name, [*ours, *planned])
        near = word or (
            None if how else alike(name, ours) or close(name, planned, likeness=MISSPELT)
        )
        flag, _, fixed = (near or "").partition(" ")
        fate = None if flag in ours else fate_of(flag) or later_fate(flag)
        what, do = "no such flag", "--help lists all"
        if fate and fate.kind == "later":
            what, do = f"{REFUSALS['later']}: {fate.why}", "leave it out"
            if not word:
                what, do = "no such flag", f"{self._label(flag)} is meant? It is {what}"
        elif how or (fate and not fate.to):
            do = f"leave it out: {how or fate.why}"
        elif fixed and str(value).lower() in FALSE_WORDS:
            do = "leave it out"
        elif near:
            do = f"did you mean {self._label(fate.to if fate else near)}?"
        self.fault(what, name, got=value, do=do, flag=SHORTHANDS.get(flag, flag))

    def _label(self, name: str) -> str:
        return f"{self.file}: {name.replace(' ', ': ')}" if self.file else f"--{name}"

    def fault(
        self, what: str, name: str, *, got: object, expected: str = "", do: str = "", flag: str = ""
    ) -> None:
        what = f"{self._label(name)}: {what}"
        flags = (flag,) if flag else ()
        self.faults.append(Fault(what, got=shown(got), expected=expected, do=do, flags=flags))


def _canonical(name: str) -> str:
    """The flag of RunConfig that `name` stands for; `name` itself when there is none."""
    section, _, last = name.rpartition(".")
    alias = f"{SECTION_ALIASES[section]}.{last}" if section in SECTION_ALIASES else name
    alias = SHORTHANDS.get(alias, alias)
    fate = fate_of(name)
    return fate.to if fate and fate.to and alias not in flags_of(RunConfig) else alias


def _own_names(config_class: type) -> list[str]:
    """Every name that takes a value now."""
    extra = (*SHORTHANDS, FSDP_FILE) if issubclass(config_class, RunConfig) else ()
    return [*flags_of(config_class), *extra]


def _planned_names(config_class: type) -> list[str]:
    """Every other name that the parser understands."""
    return [*LATER_FLAGS, *LATER_SECTIONS, *FATES] if issubclass(config_class, RunConfig) else []
