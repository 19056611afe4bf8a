"""docs/config.md and docs/from-llama-recipes.md, written from the schema and the legacy table.

`python -m ftrecipes.config.docs` in the project's folder writes both; a test fails when they are
stale.
"""

from collections.abc import Iterator
from pathlib import Path

from ftrecipes.config.flags import FLAT_SECTION, flags_of
from ftrecipes.config.help import default_text, field_doc, section_doc, type_text
from ftrecipes.config.later import LATER_FLAGS, LATER_SECTIONS, LATER_VALUES
from ftrecipes.config.legacy import CHECKPOINTING, FATES
from ftrecipes.config.schema import RunConfig
from ftrecipes.config.values import read_value
from ftrecipes.config.words import words_of

WRITTEN_BY = "<!-- Written by `python -m ftrecipes.config.docs` from the code; do not edit. -->"
CONFIG_INTRODUCTION = """\
Every setting is a flag, `--name value`, or a key of the YAML file that `--config` names, where a
section is a mapping. Flags win over the file. `ftrecipes config` prints what they add up to and
where each value comes from; `run.yaml` in a run folder holds every value of that run."""
LEGACY_INTRODUCTION = """\
The command has the same shape and understands the flags of llama-recipes and llama-cookbook (as of
October 2025). What does nothing any more is accepted with one warning; what is refused says so
before anything is loaded. A flag of that time may be typed without its section, as before, where
only one section has it: `--r 8` is `--lora.r 8`. Newer flags need their section.
"""
LEGACY_DIFFERENCES = """\
The learning rate falls along `--scheduler cosine` after a warm-up; `--scheduler step` with
`--gamma 0.85` is the old behaviour: times gamma after each epoch. `--max_train_step` counts
optimizer steps, where it used to count micro-batches. A repeated flag is an error.
"""
OTHERS_SAY = """\
These names of their sections of FSDP work here too: with `--fsdp.` before them, in the file of
`--fsdp_config`, and, but for the first, alone."""


def config_markdown() -> str:
    """docs/config.md: every flag by section."""
    lines = ["# Settings", "", WRITTEN_BY, "", CONFIG_INTRODUCTION]
    section = None
    for name, flag in flags_of(RunConfig).items():
        if flag.section != section:
            section = flag.section
            title = "No prefix" if section == FLAT_SECTION else f"`{section}.`"
            lines += ["", f"## {title}", "", section_doc(RunConfig, section), ""]
            lines += ["| flag | takes | default | meaning |", "|---|---|---|---|"]
        default = "" if flag.default == "" else f"`{default_text(flag.default)}`"
        row = f"`--{name}`", f"`{type_text(flag.type)}`", default, field_doc(RunConfig, flag)
        lines.append(_row(*row))
    return "\n".join([*lines, ""])


def legacy_markdown() -> str:
    """docs/from-llama-recipes.md: what a user of the predecessor has to know."""
    lines = [
        "# Coming from llama-recipes",
        "",
        WRITTEN_BY,
        "",
        LEGACY_INTRODUCTION,
        "## Other defaults",
        "",
        "| flag | there | here |",
        "|---|---|---|",
        *(_row(f"`--{name}`", f"`{there}`", f"`{here}`") for name, there, here in other_defaults()),
        "",
        LEGACY_DIFFERENCES,
        "## Every flag",
        "",
        "| flag | default there | here |",
        "|---|---|---|",
    ]
    for name, fate in FATES.items():
        head = f"`--{fate.to}`" if fate.kind == "renamed" else fate.kind.replace("later", "not yet")
        here = f"{head}; {fate.why}" if fate.why else head
        lines.append(_row(f"`--{name}`", f"`{fate.default}`" if fate.default else "", here))
    lines += ["", "## Activation checkpointing of llm-foundry and transformers", "", OTHERS_SAY, ""]
    lines += ["| name there | here |", "|---|---|"]
    for name, fate in CHECKPOINTING.items():
        lines.append(
            _row(f"`{name}`", f"`--{fate.to}`" if fate.to else f"true is refused: {fate.why}")
        )
    lines += [
        "",
        "## Planned names",
        "",
        'These are known and refused with "not yet" until they work:',
        "",
        *(f"- `--{name}.*`: {what}" for name, what in LATER_SECTIONS.items()),
        *(f"- `--{name}`: {what}" for name, (what, _) in LATER_FLAGS.items()),
        *(f"- `--{name}` " + ", ".join(words) for name, words in LATER_VALUES.items()),
        "",
    ]
    return "\n".join(lines)


def other_defaults() -> Iterator[tuple[str, str, str]]:
    """(our flag, the predecessor's default, ours) where they differ."""
    for name, fate in FATES.items():
        flag = flags_of(RunConfig).get(fate.to)
        # Those that took other words ask for the same by default.
        if flag is None or words_of(fate.to, name) or flag.default == "" or not fate.default:
            continue
        if read_value(fate.default, flag.type) != flag.default:
            yield flag.name, fate.default, default_text(flag.default)


def write_docs(folder: Path) -> None:
    """Write both pages into `folder`."""
    (folder / "config.md").write_text(config_markdown(), encoding="utf-8")
    (folder / "from-llama-recipes.md").write_text(legacy_markdown(), encoding="utf-8")


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    write_docs(Path("docs"))
