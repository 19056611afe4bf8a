"""`--help`, made of the schema: fields, types, defaults, and the doc literal under each field."""

import ast
import textwrap
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

from ftrecipes.config import adapter_sections, schema, sections
from ftrecipes.config.flags import Flag, flags_of
from ftrecipes.config.schema import GenerateConfig, PrepareConfig, PreviewConfig, RunConfig
from ftrecipes.config.sections import Dataset
from ftrecipes.config.targets import Target

WIDTH = 100
USAGE = {
    "finetune": "ftrecipes finetune --FLAG VALUE ...   (or: python recipes/finetuning.py ...)",
    "config": "ftrecipes config --FLAG VALUE ...   (takes the flags of finetune, trains nothing)",
    "preview": "ftrecipes preview --FLAG VALUE ...   (takes the flags of finetune, trains nothing)",
    "prepare": "ftrecipes prepare --FLAG VALUE ...   (takes the flags of finetune, trains nothing)",
    "generate": "ftrecipes generate --FLAG VALUE ...",
}
EXAMPLES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "finetune": (
            "ftrecipes finetune --model_name HuggingFaceTB/SmolLM2-135M-Instruct \\",
            "    --dataset train.jsonl --use_peft --quantization 4bit --output_dir out",
            "ftrecipes finetune --model_name HuggingFaceTB/SmolLM2-135M-Instruct --use_peft \\",
            "    --dataset train.jsonl --output_dir out \\",
            """    --activation_checkpointing.target '{"attention": "all", "mlp": "first-6"}'""",
            "ftrecipes finetune --config out/run.yaml --lr 5e-5 --output_dir out2",
        ),
        "config": ("ftrecipes config --config out/run.yaml",),
        "preview": (
            "ftrecipes preview --model_name HuggingFaceTB/SmolLM2-135M-Instruct \\",
            "    --dataset train.jsonl",
            "ftrecipes preview --config out/run.yaml --row 17 --html page.html",
        ),
        "prepare": (
            "ftrecipes prepare --model_name HuggingFaceTB/SmolLM2-135M-Instruct \\",
            "    --dataset train.jsonl --data.val_fraction 0.05 --to rows",
            "ftrecipes prepare --config out/run.yaml --to rows",
        ),
        "generate": ('ftrecipes generate --adapter out --prompt "What did you learn?"',),
    }
)
CONFIGS: Mapping[str, type] = MappingProxyType(
    {
        "finetune": RunConfig,
        "config": RunConfig,
        "preview": PreviewConfig,
        "prepare": PrepareConfig,
        "generate": GenerateConfig,
    }
)
CONFIG_DOC = (
    "YAML file of settings, nested by section; flags win over it. A run.yaml repeats its run."
)
NOTES = (
    "A flag and its value are two words, or one with =; a true/false flag alone is true. Lists are "
    "names separated by commas. Dashes in a flag's name read as underscores.",
    "--quantization WORD (4bit, int4, nf4, fp4, 8bit, int8, none) is short for "
    "--quantization.method, --activation_checkpointing WORD (full, selective, none, auto) for "
    "--activation_checkpointing.method, --tracking wandb,tensorboard for the flags of these names; "
    "--custom_dataset.NAME passes NAME on to the function. The flags of "
    "llama-recipes are understood as well: docs/from-llama-recipes.md.",
)


def help_text(command: str) -> str:
    """Help of `command`: every flag by section, with type or choices, default and meaning."""
    config_class = CONFIGS[command]
    lines = [f"usage: {USAGE[command]}", "", *(f"    {line}" for line in EXAMPLES[command]), ""]
    lines += _entry("--help, -h", "Print this and do nothing else.")
    if issubclass(config_class, RunConfig):
        lines += _entry("--config FILE", CONFIG_DOC)
    section = None
    for name, flag in flags_of(config_class).items():
        if flag.section != section:
            section = flag.section
            lines += ["", *_wrap(section_doc(config_class, section))]
        default = "" if flag.default in ("", None) else f"  [{default_text(flag.default)}]"
        head = f"--{name} {type_text(flag.type)}{default}"
        lines += _entry(head, field_doc(config_class, flag))
    notes = NOTES if issubclass(config_class, RunConfig) else NOTES[:1]
    lines += [line for note in notes for line in ("", *_wrap(note))]
    return "\n".join(lines) + "\n"


def section_doc(config_class: type, section: str) -> str:
    """The docstring of the section's class; of the whole class when it is flat."""
    return _docs()[_class_of(config_class, section), ""]


def field_doc(config_class: type, flag: Flag) -> str:
    """The doc literal under a field."""
    return _docs()[_class_of(config_class, flag.section), flag.field]


def type_text(kind: Any) -> str:
    """What a flag takes, in one word: its choices, or the kind of its value."""
    if kind is Target:
        return "NAME,...|JSON"
    if kind is Dataset:
        return "NAME[:WEIGHT],..."
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    if get_origin(kind) is list:
        return "NUMBER,..." if get_args(kind)[0] is int else "NAME,..."
    if get_origin(kind) is dict:
        return "NAME=NAME,..." if get_args(kind)[1] is str else "JSON"
    words = {bool: "true|false", int: "INTEGER", float: "NUMBER", str: "TEXT"}
    return words[kind] if kind in words else type_text(get_args(kind)[0])


def default_text(value: object) -> str:
    """A default as one would type it."""
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    if value in (None, "", {}):
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _entry(head: str, doc: str) -> list[str]:
    return [f"  {head}", *_wrap(doc, " " * 6)]


def _wrap(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def _class_of(config_class: type, section: str) -> str:
    part = config_class.__dataclass_fields__[section].type if section else config_class
    return part.__name__


@cache
def _docs() -> Mapping[tuple[str, str], str]:
    """(class, field) -> the literal under the field; (class, "") -> the class's docstring."""
    found = {}
    modules = (schema, sections, adapter_sections)
    trees = [ast.parse(Path(module.__file__).read_text(encoding="utf-8")) for module in modules]
    for node in (node for tree in trees for node in tree.body):
        if not isinstance(node, ast.ClassDef):
            continue
        found[node.name, ""] = " ".join(ast.get_docstring(node).split())
        for item, after in zip(node.body, node.body[1:], strict=False):
            if isinstance(item, ast.AnnAssign) and isinstance(after, ast.Expr):
                found[node.name, item.target.id] = " ".join(after.value.value.split())
    return MappingProxyType(found)
