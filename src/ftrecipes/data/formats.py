"""Which of the known formats the rows of a split are in, told by their columns or by the user."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from transformers import PreTrainedTokenizerBase

from ftrecipes.config.errors import DataError
from ftrecipes.config.names import close
from ftrecipes.config.sections import DataConfig
from ftrecipes.data.kinds import Row
from ftrecipes.data.messages import read_chat, read_sharegpt
from ftrecipes.data.preferences import refuse_preferences
from ftrecipes.data.readers import (
    read_instruction,
    read_instruction_chat,
    read_prompt_completion,
    read_text,
    read_tokens,
)
from ftrecipes.data.rows import RawRows, RowFault
from ftrecipes.runtime import log

Reader = Callable[[Mapping], Row]


@dataclass(frozen=True)
class Format:
    """The columns that make a format, and those that it reads when they are there."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return self.required + self.optional


FORMATS = {
    "chat": Format(("messages",), ("tools",)),
    "sharegpt": Format(("conversations",), ("system", "tools")),
    "instruction": Format(("instruction", "output"), ("input", "system", "history")),
    "prompt_completion": Format(("prompt", "completion"), ("tools",)),
    "text": Format(("text",)),
    "tokens": Format(("input_ids", "labels"), ("attention_mask",)),
}

WITHOUT_ROLES = {
    ("text", "last_assistant"): "all of a text is trained",
    ("text", "completion"): "all of a text is trained",
    ("tokens", "last_assistant"): "labels say what is trained",
    ("tokens", "completion"): "labels say what is trained",
    ("tokens", "all"): "labels say what is trained",
}
"""Formats, and what they have no place for of `data.train_on`; `all` of a text is as ever."""
DIALOGS = ("chat", "sharegpt")
"""Formats in which prompt and completion are not told apart."""


def choose_reader(
    raw: RawRows, tokenizer: PreTrainedTokenizerBase, data: DataConfig, *, is_told: bool = True
) -> Reader:
    """The function that reads each row of `raw`; it raises RowFault naming the key at fault.

    The format is `data.format`, or the one whose columns are there once they bear the names that
    `data.columns` gives them; `is_told`: the log names columns that are not read. Raises DataError
    listing the columns when there is none, more than one, or a column that is asked for is not
    there.
    """
    columns = _renamed(raw, data.columns)
    name = _detect(raw, columns, data) if data.format == "auto" else data.format
    _check_columns(name, columns, data, raw=raw)
    _check_train_on(name, data.train_on, raw=raw)
    unread = [column for column in columns if column not in FORMATS[name].columns]
    if unread and is_told:
        log.info(f"{raw.name}: columns that --data.format {name} does not read: {_list(unread)}")
    read = _reader(name, tokenizer, train_on=data.train_on)
    return partial(_read_renamed, read=read, names=data.columns) if data.columns else read


def _reader(name: str, tokenizer: PreTrainedTokenizerBase, *, train_on: str) -> Reader:
    has_template = tokenizer.chat_template is not None
    needs_answer = train_on != "all"
    instruction_chat = partial(read_instruction_chat, only_output=train_on == "completion")
    return {
        "chat": partial(read_chat, needs_answer=needs_answer),
        "sharegpt": partial(read_sharegpt, needs_answer=needs_answer),
        "instruction": instruction_chat if has_template else read_instruction,
        "prompt_completion": partial(read_prompt_completion, needs_answer=needs_answer),
        "text": read_text,
        "tokens": partial(read_tokens, vocabulary=len(tokenizer)),
    }[name]


def _renamed(raw: RawRows, names: Mapping[str, str]) -> list[str]:
    """The columns of `raw` by our names."""
    ours = dict.fromkeys(column for made in FORMATS.values() for column in made.columns)
    for our, their in names.items():
        if our not in ours:
            raise DataError(
                f"--data.columns {our}={their}: no format has a column {our!r}."
                f"{_meant(our, ours)}\n  expected: one of {', '.join(ours)}, then =, then its "
                f"name in the data"
            )
        if their not in raw.columns:
            raise DataError(
                f"--data.columns {our}={their}: {raw.name} has no column {their!r}."
                f"{_meant(their, raw.columns)}\n  got: columns {_list(raw.columns)}"
            )
    return [*names, *_kept(raw.columns, names)]


def _detect(raw: RawRows, columns: list[str], data: DataConfig) -> str:
    """The one format whose columns are there, and that has a place for each renamed one."""
    fitting = [
        name
        for name, made in FORMATS.items()
        if set(made.required) <= set(columns) and set(data.columns) <= set(made.columns)
    ]
    refuse_preferences(raw, columns, fitting=fitting)
    if len(fitting) == 1:
        return fitting[0]
    got = f"  got: columns {_list(columns)}"
    if fitting:
        raise DataError(
            f"The rows may be of more than one format ({raw.sources[0]}).\n{got}\n"
            f"  expected: the columns of one of {', '.join(fitting)}\n"
            f"  do: say which, e.g. --data.format {fitting[0]}"
        )
    known = "".join(f"\n    {name}: {', '.join(FORMATS[name].required)}" for name in FORMATS)
    raise DataError(
        f"The rows are of no known format ({raw.sources[0]}).\n{got}\n"
        f"  expected: the columns of one of{known}\n"
        "  do: say which column is which (--data.columns instruction=question,output=answer), or "
        "shape the rows in a function (--dataset custom_dataset)"
    )


def _check_columns(name: str, columns: list[str], data: DataConfig, *, raw: RawRows) -> None:
    made = FORMATS[name]
    idle = [our for our in data.columns if our not in made.columns]
    if idle:
        raise DataError(
            f"--data.columns {idle[0]}={data.columns[idle[0]]}: --data.format {name} has no "
            f"column {idle[0]!r}.\n  expected: {', '.join(made.columns)}"
        )
    missing = [column for column in made.required if column not in columns]
    if missing:
        refuse_preferences(raw, columns, fitting=())
        raise DataError(
            f"--data.format {name} needs the column {missing[0]!r}.{_meant(missing[0], columns)}\n"
            f"  got: {raw.name} with columns {_list(columns)}\n"
            f"  do: name it: --data.columns {missing[0]}=COLUMN"
        )


def _check_train_on(name: str, train_on: str, *, raw: RawRows) -> None:
    """Raise DataError where nobody's words can be told from others', or no completion is."""
    if name in DIALOGS and train_on == "completion":
        raise DataError(
            f"--data.train_on completion: the rows of {raw.name} have no completion "
            f"({raw.sources[0]} and on are --data.format {name}).\n"
            "  expected: rows with `prompt` and `completion`, or with `instruction` and `output`\n"
            "  do: --data.train_on assistant (every answer), last_assistant (the last one) or all"
        )
    if (name, train_on) in WITHOUT_ROLES:
        raise DataError(
            f"--data.train_on {train_on}: would have no effect on {raw.name}: "
            f"{WITHOUT_ROLES[name, train_on]} ({raw.sources[0]} and on are --data.format {name}).\n"
            "  do: leave it out, or give the rows as dialogs (docs/data.md)"
        )


def _read_renamed(row: Mapping, *, read: Reader, names: Mapping[str, str]) -> Row:
    found = {our: row[their] for our, their in names.items() if their in row}
    try:
        return read(found | {key: row[key] for key in _kept(row, names)})
    except RowFault as fault:
        told = ",".join(f"{our}={their}" for our, their in names.items())
        raise RowFault(f"{fault} (--data.columns {told})") from fault


def _kept(columns: Mapping | list[str], names: Mapping[str, str]) -> list[str]:
    """Columns that keep their names: neither renamed nor hidden behind one that is."""
    return [column for column in columns if column not in {*names, *names.values()}]


def _meant(word: str, choices: Mapping | list[str]) -> str:
    found = close(word, list(map(str, choices)))
    return f" Did you mean {found!r}?" if found else ""


def _list(columns: list[str]) -> str:
    return ", ".join(map(str, columns)) or "(none)"
