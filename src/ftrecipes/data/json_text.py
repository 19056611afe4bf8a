"""JSON as the standard library reads it, and what that passes over: a key that is given twice."""

import json
from collections import Counter

from ftrecipes.data.rows import Unreadable


class JsonValues:
    """Reads JSON; a value with a key given twice, of which json keeps the last, is Unreadable."""

    def __init__(self):
        self._decoder = json.JSONDecoder(object_pairs_hook=self._object)
        self._repeated: list[str] = []

    def read(self, text: str, at: int) -> tuple[object, int]:
        """The value that begins at `at`, and where it ends. Raises json.JSONDecodeError."""
        self._repeated.clear()
        try:
            value, end = self._decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            raise
        except RecursionError as error:
            raise json.JSONDecodeError("too many nested brackets", text, at) from error
        except ValueError as error:
            raise json.JSONDecodeError(f"a number is too long ({error})", text, at) from error
        if self._repeated:
            return Unreadable(f"key {self._repeated[0]!r} is given twice"), end
        return value, end

    def read_whole(self, text: str) -> object:
        """The one value of a text. Raises json.JSONDecodeError."""
        value, end = self.read(text, skip_blank(text, 0))
        check_end(text, end)
        return value

    def _object(self, pairs: list[tuple[str, object]]) -> dict:
        found = dict(pairs)
        if len(found) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            self._repeated += [key for key, count in counts.items() if count > 1]
        return found


def check_end(text: str, at: int) -> None:
    """Raise json.JSONDecodeError when more than blanks follow."""
    at = skip_blank(text, at)
    if at < len(text):
        raise json.JSONDecodeError("Extra data", text, at)


def skip_blank(text: str, at: int) -> int:
    """Where the next character stands that is no blank to JSON."""
    while text[at : at + 1] in (" ", "\t", "\n", "\r"):
        at += 1
    return at
