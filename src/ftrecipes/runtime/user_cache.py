"""Where a user's machine keeps what can be made again."""

import os
from pathlib import Path


def user_cache() -> Path | None:
    """Our folder in the user's cache, see the XDG Base Directory Specification; it may not exist.

    None for a user without a home, as in a container: the working folder is no place for it.
    """
    root = os.environ.get("XDG_CACHE_HOME", "")
    root = root if os.path.isabs(root) else os.path.expanduser("~/.cache")
    return Path(root) / "ftrecipes" if os.path.isabs(root) else None
