"""Text of files and rows as a terminal may show it: with nothing in it that steers one."""


def visible(text: str) -> str:
    """`text` on one line, with what can not be seen written out."""
    return "".join(c if c.isprintable() else _written_out(c) for c in text)


def visible_lines(text: str) -> str:
    """The same of a message, which may have several lines."""
    return "\n".join(map(visible, text.split("\n")))


def _written_out(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
