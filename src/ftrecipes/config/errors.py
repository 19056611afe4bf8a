"""Errors a user can cause, and the exit code of each.

Every message answers four questions: what is wrong, what was found, what was expected, what to do.
"""


class RecipeError(Exception):
    """A mistake the user can mend; printed without a traceback. Exit code 1."""

    exit_code = 1
    is_told: bool | None = None
    """Whether another process of this machine tells it; None where nobody has looked."""


class ConfigError(RecipeError):
    """Flags or a configuration file are wrong; carries every fault found. Exit code 2."""

    exit_code = 2

    def __init__(self, faults: str | list[str]):
        self.faults = [faults] if isinstance(faults, str) else list(faults)
        super().__init__("\n\n".join(self.faults))


class DataError(RecipeError):
    """A data file, row, template or custom data set is unusable. Exit code 3."""

    exit_code = 3


class ModelError(RecipeError):
    """A model, tokenizer or adapter can not be loaded or trained as asked. Exit code 4."""

    exit_code = 4


class CheckpointError(RecipeError):
    """What was saved is not what was trained, or can not be read back. Exit code 5."""

    exit_code = 5


class TrainingError(RecipeError):
    """Training can not go on, for example because the loss is not finite. Exit code 6."""

    exit_code = 6


class PeerError(RecipeError):
    """Another process of the run died, failed or is stuck; says which, and where. Exit code 7."""

    exit_code = 7
