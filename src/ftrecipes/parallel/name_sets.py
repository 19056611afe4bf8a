"""Many names that differ in their numbers, written as one: model.layers.{0-31}.mlp"""

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # between dots


def template(name: str) -> str:
    """The name with a star for each number."""
    return _NUMBER.sub("*", name)


def numbers(values: Iterable[int]) -> str:
    """Ascending numbers, three and more in a row as a range: `0,1,4-7`."""
    rows: list[list[int]] = []
    for value in values:
        if rows and value == rows[-1][-1] + 1:
            rows[-1].append(value)
        else:
            rows.append([value])
    return ",".join(
        f"{row[0]}-{row[-1]}" if len(row) > 2 else ",".join(map(str, row)) for row in rows
    )


def compressed(names: Iterable[str]) -> list[str]:
    """Patterns that stand for these names and no others, in the order they first come up in.

    Braces hold what a number may be; several in a pattern are each free to be any of its own.
    """
    by_template: dict[str, list[tuple[int, ...]]] = {}
    for name in names:
        at = tuple(int(number) for number in _NUMBER.findall(name))
        by_template.setdefault(template(name), []).append(at)
    return [
        "".join(
            piece + filling for piece, filling in zip(form.split("*"), (*spans, ""), strict=True)
        )
        for form, rows in by_template.items()
        for spans in _products(rows)
    ]


def _products(rows: list[tuple[int, ...]]) -> list[tuple[str, ...]]:
    """Rows of numbers as products of sets, the sets written out."""
    if not rows[0]:
        return [()]
    rests: dict[int, list[tuple[int, ...]]] = {}
    for first, *rest in sorted(set(rows)):
        rests.setdefault(first, []).append(tuple(rest))
    firsts: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for first, rest in rests.items():
        firsts.setdefault(tuple(rest), []).append(first)
    return [
        (_braced(values), *spans)
        for rest, values in firsts.items()
        for spans in _products(list(rest))
    ]


def _braced(values: list[int]) -> str:
    return f"{{{numbers(values)}}}" if len(values) > 1 else str(values[0])
