"""How a command ends: what is shown, and the exit code.

0 done; 1 a fault of ours or of a library; 2 flags or configuration file; 3 data; 4 model or
adapter; 5 saving or reading back; 6 training could not go on; 128 + n stopped by signal n (130:
Ctrl-C).
"""

import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from ftrecipes.commands.screen import open_streams, show
from ftrecipes.config.errors import ConfigError, RecipeError
from ftrecipes.config.help import help_text
from ftrecipes.runtime.ranks import is_first
from ftrecipes.runtime.signals import Stopped, stops_raised

INTERRUPTED = 130


def run_command(
    name: str, argv: list[str] | None, action: Callable[[list[str]], object]
) -> NoReturn:
    """Run the command `name` on `argv` (default: the process's own words), or print its help."""
    open_streams()
    words = sys.argv[1:] if argv is None else argv
    if "--help" in words or "-h" in words:
        show(help_text(name))
        sys.exit(0)
    end(lambda: action(words))


def end(action: Callable[[], object]) -> NoReturn:
    """Run `action` and leave the process with the exit code of how it ended.

    A user's mistake is shown as its message alone; the traceback is in the run folder when there is
    one. Anything else is shown with its traceback.
    """
    try:
        with stops_raised():
            action()
    except RecipeError as error:
        notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
        # Every rank finds the same fault of the settings: the first one tells it.
        if is_first() or not isinstance(error, ConfigError):
            sys.stderr.write(f"error: {error}{notes}\n")
        sys.exit(error.exit_code)
    except Stopped as stop:
        sys.stderr.write(f"{stop}\n")
        sys.exit(128 + stop.number)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)
    except Exception:  # noqa: BLE001  the process ends here, with the traceback on the screen
        traceback.print_exc()
        sys.stderr.write("error: this is a fault of ftrecipes or of a library, not of the flags\n")
        sys.exit(1)
    sys.exit(0)
