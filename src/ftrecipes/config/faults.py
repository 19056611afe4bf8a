"""One mistake in the settings, told so that the person can mend it."""

import json
from dataclasses import dataclass

LONGEST_SHOWN = 200  # characters


@dataclass(frozen=True)
class Fault:
    """What is wrong, what was found, what was expected, what to do; empty parts are left out.

    `flags` are the canonical flags it speaks about: a check that reads a flag with a fault would
    only repeat it, and is left out.
    """

    what: str
    got: str = ""
    expected: str = ""
    do: str = ""
    flags: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The message, one line a part."""
        parts = (("got", self.got), ("expected", self.expected), ("do", self.do))
        return self.what + "".join(f"\n  {name}: {part}" for name, part in parts if part)


def shown(value: object) -> str:
    """A value as the person gave it: text without quotes unless they are needed to see it."""
    text = value if isinstance(value, str) else repr(value)
    text = text if text and text == text.strip() else json.dumps(text)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def out_of_range(name: str, value: object, expected: str) -> Fault:
    """A number that the flag `name` does not take."""
    return Fault(f"--{name}: out of range", got=shown(value), expected=expected, flags=(name,))


def idle(names: list[str], why: str, *because: str) -> Fault:
    """Settings that somebody asked for and that would do nothing."""
    flags = ", ".join(f"--{name}" for name in names)
    return Fault(f"{flags}: would have no effect: {why}", flags=(*names, *because))
