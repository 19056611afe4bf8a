"""Rows that compare answers (DPO) or grade them (KTO): known by their columns, and refused.

Read as other rows they would train the worse answers as well, or what comes before the answers.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from ftrecipes.config.errors import DataError
from ftrecipes.data.rows import RawRows

PAIR = ("chosen", "rejected")
TAGS = ("kto_tag", "label")
"""Columns that say of an answer whether it is a good one."""
GRADES = {True: True, False: False, "true": True, "false": False, "True": True, "False": False}


def refuse_preferences(raw: RawRows, columns: Collection[str], *, fitting: Collection[str]) -> None:
    """Raise DataError for rows of preferences; `columns` bear our names, renamed ones are ours.

    `fitting` are the formats whose columns are there: a person may name one, and so have it read.
    """
    first = next((row for row in raw.rows if isinstance(row, Mapping)), {})
    if set(PAIR) <= set(columns):
        raise DataError(
            f"The rows are preferences, a better and a worse answer each ({raw.sources[0]}): that "
            f"is for DPO and its like, and here answers are learned as they stand.\n"
            f"  got: columns {', '.join(map(str, columns))}\n"
            f"  do: {_better(columns, first)}{_named(fitting)}"
        )
    # A text with a label is for telling texts apart, and as good as any to learn.
    tags = TAGS if set(fitting) - {"text", "tokens"} else ()
    tag = next((name for name in tags if name in columns and _has_bad_ones(raw, name)), None)
    if tag is not None:
        raise DataError(
            f"The rows are graded answers ({raw.sources[0]}): {tag!r} says which are good ones. "
            "That is for KTO and its like, and here the bad ones would be learned too.\n"
            f"  got: columns {', '.join(map(str, columns))}\n"
            f"  do: keep the good ones in a file of their own{_named(fitting)}"
        )


def _better(columns: Collection[str], row: Mapping) -> str:
    """How to train on the better answers."""
    chosen, prompt = row.get("chosen"), row.get("prompt")
    ours = None
    if isinstance(chosen, list):
        ours = "completion" if isinstance(prompt, list) else "messages"
    elif isinstance(chosen, str) and "conversations" not in columns:
        ours = next((answer for asked, answer in ANSWERS.items() if asked in columns), "text")
    if ours is None:
        return "shape the better answers into rows in a function (--dataset custom_dataset)"
    return f"train on the better ones with --data.columns {ours}=chosen"


ANSWERS = {"prompt": "completion", "instruction": "output"}
"""A column of texts, and the one that holds the answers to them."""


def _named(fitting: Collection[str]) -> str:
    """Where the columns of a format are there too."""
    said = " or ".join(f"--data.format {name}" for name in fitting)
    return f"; with {said} the other columns are read, whatever these say" if said else ""


def _has_bad_ones(raw: RawRows, name: str) -> bool:
    """Whether a column holds yes or no and nothing else, and a no; numbers may be anything."""
    # Of a data set of the library the column alone is read.
    column = _cells(raw.rows, name) if isinstance(raw.rows, Sequence) else raw.rows[name]
    grades = {cell if isinstance(cell, bool | str) else None for cell in column}
    return grades <= GRADES.keys() and not all(GRADES[grade] for grade in grades)


def _cells(rows: Sequence, name: str) -> Iterator[object]:
    return (row.get(name) for row in rows if isinstance(row, Mapping))
