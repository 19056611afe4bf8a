"""Names of modules as adapters are given them, and what they match."""

import re
from collections.abc import Iterable, Mapping

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ftrecipes.config.errors import ModelError
from ftrecipes.model.forward import decoder_of

_WRAPPERS = ("_checkpoint_wrapped_module", "_orig_mod", "_fsdp_wrapped_module")
_PLAIN_NAME = re.compile(r"[\w.-]+")
# How PEFT reads the names it is given; what it does not find so, it leaves out in silence.
NAME = r"(?:.*\.)?{}"  # the name itself, or its end after a dot
END = r"(?:.*\.)?(?:{})"  # a pattern of the same
WHOLE = "{}"  # a pattern of the whole name


def canonical_name(name: str) -> str:
    """The name of a parameter or a module without what checkpointing, compiling and sharding put
    into it, and behind it where the module itself is wrapped."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def name_for_peft(name: str) -> str:
    """A parameter's name where PEFT 0.21 looks for it: a module that is trained whole is looked up
    as it is in the model, with what wraps it, and its parts without wrappers."""
    path, whole, part = name.partition(".modules_to_save.")
    return path + whole + (canonical_name(part) if whole else "")


def names_or_pattern(entries: list[str]) -> list[str] | str | None:
    """A single entry that is no plain name is a regular expression for whole module names."""
    if len(entries) == 1 and not _PLAIN_NAME.fullmatch(entries[0]):
        return entries[0]
    return entries or None


def rule_of(entries: list[str]) -> str:
    """How PEFT reads a list of such entries."""
    return WHOLE if isinstance(names_or_pattern(entries), str) else NAME


def check_matches(
    model: PreTrainedModel, asked: Mapping[str, tuple[list[str], Iterable[str], str]]
) -> None:
    """Raise ModelError listing every name that matches nothing, and what there is instead.

    `asked`: flag -> (entries, the names that they may match, rule).
    """
    unmatched = [
        f"--{flag} {entry}"
        for flag, (entries, names, rule) in asked.items()
        for entry in entries
        if not any(_compile(flag, entry, rule).fullmatch(name) for name in names)
    ]
    if unmatched:
        raise ModelError(
            f"These names match nothing in {type(model).__name__}:\n  got: {', '.join(unmatched)}\n"
            "  expected: all-linear (LoRA), or names of its modules; its linear layers are "
            f"{', '.join(linear_names(model))}\n  do: correct or leave out these names; a pattern "
            "stands alone, matches whole names (.*q_proj), and is no name of modules_to_save"
        )


def _compile(flag: str, entry: str, rule: str) -> re.Pattern:
    """What the entry matches under the rule. Raises ModelError when it is no pattern."""
    try:
        return re.compile(rule.format(re.escape(entry) if rule == NAME else entry))
    except re.error as error:
        raise ModelError(
            f"--{flag}: {entry} is not a regular expression.\n  got: {error}\n  do: correct it"
        ) from error


def beside_decoder(model: PreTrainedModel) -> tuple[str, ...]:
    """How names begin in the parts for images or sound of its body, which no row of text reaches:
    `model.vision_tower.`, say."""
    body, decoder = model.base_model, decoder_of(model)
    if decoder is body or decoder not in body.modules():
        return ()
    names = {module: name for name, module in model.named_modules()}
    parts = (part for part in body.children() if decoder not in part.modules())
    return tuple(f"{names[part]}." for part in parts)


def linear_names(model: PreTrainedModel) -> list[str]:
    """Last parts of the names of all linear layers but the head and what no text reaches."""
    head, beside = model.get_output_embeddings(), beside_decoder(model)
    return sorted(
        {
            name.rsplit(".", 1)[-1]
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear | Conv1D)
            and module is not head
            and not is_odd_linear(module)
            and not f"{name}.".startswith(beside)
        }
    )


def is_whole(name: str, modules_to_save: Iterable[str]) -> bool:
    """Whether PEFT trains the module of that name whole, as one of `modules_to_save`."""
    return any(f".{name}".endswith(f".{entry}") for entry in modules_to_save)


def is_odd_linear(module: nn.Module) -> bool:
    """Whether it is a linear layer by its class only, so that PEFT's wrapper does not fit.

    The wrapper adds to one result of the usual shape: routers (Llama 4) return several, and grouped
    layers (DeepSeek V4) multiply blocks.
    """
    odd = ("Router", "GroupedLinear")
    return isinstance(module, nn.Linear) and type(module).__name__.endswith(odd)
