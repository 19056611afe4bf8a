"""`ftrecipes finetune` and `torchrun recipes/finetuning.py`: flags in, trained weights out."""

from typing import NoReturn

from ftrecipes.commands.exits import run_command
from ftrecipes.config.errors import ConfigError
from ftrecipes.config.parse import check_argv


def main(argv: list[str] | None = None) -> NoReturn:
    """Check `argv` (default: the process's own words), hand it to fire, leave with an exit code.

    argv is checked before fire sees it: fire 0.7.1 turns `--x -` into True, swallows what follows
    `--`, and calls the function before it complains of a word that it could not use.
    """
    run_command("finetune", argv, _finetune)


def _finetune(words: list[str]) -> None:
    faults = check_argv(words)
    if faults:
        raise ConfigError(faults)

    import fire

    from ftrecipes import finetuning
    from ftrecipes.runtime import log

    log.start()
    fire.Fire(finetuning.main, command=words, name="finetuning.py")
