"""The command `ftrecipes`: one module for each of its commands."""

import difflib
import importlib
import sys
from typing import NoReturn

from ftrecipes import __version__
from ftrecipes.commands.screen import open_streams, show

COMMANDS = {
    "finetune": "fine-tune a model (what recipes/finetuning.py runs)",
    "config": "print the settings that flags and files add up to, and where each comes from",
    "preview": "show what a run would train on, token by token, before a weight is read",
    "prepare": "tokenise and check the rows of a run once, for any number of runs",
    "generate": "answer a prompt with and without an adapter",
}


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the command named by the first word of `argv` (default: the process's own words)."""
    open_streams()
    words = sys.argv[1:] if argv is None else argv
    if not words or words[0] in ("-h", "--help"):
        show(usage())
        sys.exit(0)
    if words[0] == "--version":
        show(f"ftrecipes {__version__}\n")
        sys.exit(0)
    if words[0] not in COMMANDS:
        near = difflib.get_close_matches(words[0], COMMANDS, n=1)
        hint = f" Did you mean `ftrecipes {near[0]}`?" if near else ""
        sys.stderr.write(f"error: there is no command `{words[0]}`.{hint}\n\n{usage()}")
        sys.exit(2)
    # A command is imported only when it is the one asked for: some need torch, which takes seconds.
    importlib.import_module(f"ftrecipes.commands.{words[0]}").main(words[1:])
    sys.exit(0)


def usage() -> str:
    """The list of commands."""
    lines = "".join(f"  {name:10} {what}\n" for name, what in COMMANDS.items())
    return (
        "ftrecipes COMMAND --flag value ...\n\n"
        f"{lines}\n"
        "`ftrecipes COMMAND --help` lists the flags of a command.\n"
    )
