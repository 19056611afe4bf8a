"""What is computed again in the backward: combinations of settings for activation checkpointing."""

import re
from collections.abc import Iterator

from ftrecipes.config.adapter_folder import method_of
from ftrecipes.config.faults import Fault, idle, shown
from ftrecipes.config.flags import flags_of, value_of
from ftrecipes.config.recomputing import is_asked, method_in
from ftrecipes.config.schema import RunConfig

SECTION = "activation_checkpointing"
METHOD = f"{SECTION}.method"
TARGET, EVERY_N = f"{SECTION}.target", f"{SECTION}.every_n"
SAVE_OPS = f"{SECTION}.save_ops"
OTHER = "gradient_checkpointing"
# A namespace, an operator, and perhaps which of its signatures: aten.mm, aten::mm, aten.mm.default
OPERATOR = re.compile(r"-?(?P<name>[A-Za-z_]\w*(?:\.|::)[A-Za-z_]\w*)(?:\.[A-Za-z_]\w*)?")


def check_recomputing(config: RunConfig) -> Iterator[Fault]:
    """Faults of the section, and of transformers' flag for the same."""
    # What switches something off asks for nothing.
    flags = flags_of(RunConfig)
    names = [name for name in flags if name.startswith(f"{SECTION}.")]
    names = [name for name in names if value_of(config, name) != flags[name].default]
    if config.train.gradient_checkpointing and names:
        yield _two_kinds(config, names[0], names)
    else:
        yield from _without(config, [name for name in names if name != METHOD])
    if TARGET in names and EVERY_N in names:
        yield Fault(
            f"{_told(config, TARGET)} and {_told(config, EVERY_N)}: both say what is checkpointed",
            do=f'keep one; {{"block": [0, 2, 4]}} as --{TARGET} names single blocks',
            flags=(TARGET, EVERY_N),
        )
    yield from _operators(config)
    yield from _prefix(config, [*names, OTHER])


def _two_kinds(config: RunConfig, first: str, names: list[str]) -> Fault:
    ours, theirs = _told(config, first), _told(config, OTHER)
    is_typed = config.origins.get(OTHER, "").startswith("--")
    leave = f"leave {theirs} out" if is_typed else f"add --{OTHER} false"
    do = f"{leave}: --{SECTION} works alone and with --enable_fsdp"
    if config.activation_checkpointing.method == "none":
        what = f"{theirs} asks for what {ours} turns off"
        do = f"keep one of the two; --{SECTION} works alone and with --enable_fsdp"
        do = do if is_typed else f"add --{OTHER} false"
    else:
        what = f"{ours} and {theirs} can not both be on: every block would be computed more than "
        what += "twice"
    return Fault(what, do=do, flags=(OTHER, *names))


def _without(config: RunConfig, names: list[str]) -> Iterator[Fault]:
    """Settings of the section that need another method."""
    method = config.activation_checkpointing.method
    if names and method_in(config) == "none":
        off = f"{_told(config, METHOD)} turns it off"
        why = off if method == "none" else f"nothing is computed again without --{SECTION}"
        yield idle(names, why, METHOD, "enable_fsdp")
    elif SAVE_OPS in names and method_in(config) != "selective":
        yield idle([SAVE_OPS], f"it needs --{SECTION} selective", METHOD)


def _operators(config: RunConfig) -> Iterator[Fault]:
    """The operators by name; whether torch has them is seen once it is imported."""
    entries = config.activation_checkpointing.save_ops
    found = {entry: OPERATOR.fullmatch(entry) for entry in entries}
    odd = [entry for entry, match in found.items() if match is None]
    if odd:
        yield Fault(
            f"--{SAVE_OPS}: no names of operators",
            got=", ".join(map(shown, odd)),
            expected="names such as aten.gelu or bitsandbytes::gemm_4bit, with a minus before "
            "those that are not kept",
            flags=(SAVE_OPS,),
        )
    signs: dict[str, set[bool]] = {}
    for entry, match in found.items():
        if match is not None:
            name = match["name"].replace("::", ".")
            signs.setdefault(name, set()).add(entry.startswith("-"))
    both = [name for name, found_signs in signs.items() if len(found_signs) > 1]
    if both:
        yield Fault(
            f"--{SAVE_OPS}: with and without a minus",
            got=", ".join(both),
            do="keep one of the two",
            flags=(SAVE_OPS,),
        )


def _prefix(config: RunConfig, names: list[str]) -> Iterator[Fault]:
    train = config.train
    if train.use_peft and method_of(config) == "prefix" and is_asked(config):
        yield Fault(
            f"{_told(config, names[0])} does not work with --peft_method prefix: a block that is "
            "computed again would put its keys behind the prefix a second time",
            do="leave one of the two out",
            flags=(*names, "peft_method"),
        )


def _told(config: RunConfig, name: str) -> str:
    """A flag as it was typed; one from a file by its name here."""
    origin = config.origins.get(name, "")
    typed = origin.startswith("--")
    if name == METHOD and (not typed or origin.partition(".")[0] == f"--{SECTION}"):
        return f"--{SECTION} {config.activation_checkpointing.method}"
    return origin if typed else f"--{name}"
