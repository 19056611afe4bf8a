"""`ftrecipes finetune` and `torchrun recipes/finetuning.py`: flags in, trained weights out."""

import sys
from typing import NoReturn

from ftrecipes.commands.exits import end
from ftrecipes.commands.screen import open_streams, show
from ftrecipes.config.errors import ConfigError
from ftrecipes.config.help import help_text
from ftrecipes.config.parse import check_argv


def main(argv: list[str] | None = None) -> NoReturn:
    """Check `argv` (default: the process's own words), hand it to fire, leave with an exit code.

    argv is checked before fire sees it: fire 0.7.1 turns `--x -` into True, swallows what follows
    `--`, and calls the function before it complains of a word that it could not use.
    """
    open_streams()  # here too: recipes/finetuning.py starts with this function
    words = sys.argv[1:] if argv is None else argv
    if "--help" in words or "-h" in words:
        show(help_text("finetune"))
        sys.exit(0)
    end(lambda: _finetune(words))


def _finetune(words: list[str]) -> None:
    faults = check_argv(words)
    if faults:
        raise ConfigError(faults)

    import fire

    from ftrecipes import finetuning
    from ftrecipes.runtime import log

    log.start()
    fire.Fire(finetuning.main, command=words, name="finetuning.py")
