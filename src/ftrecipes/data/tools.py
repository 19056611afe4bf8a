"""Tools and calls of tools, in the shape that chat templates expect.

OpenAI writes the arguments of a call as JSON text; templates want the object, or, a few, the text
(https://huggingface.co/docs/transformers/chat_extras). Tables with typed columns (Parquet) fill the
keys that a struct lacks with null, so null in an object means no key; a null that is meant stands
in JSON text.
"""

import json
from collections.abc import Iterable, Mapping, Sequence

from ftrecipes.data.fields import from_json, item_list, kind_of, required, words
from ftrecipes.data.rows import RowFault

CALL = "{name, arguments}"


def read_tools(row: Mapping) -> list[dict] | None:
    """The column `tools`: a list of functions, bare or wrapped, or that list as JSON text."""
    value = row.get("tools")
    if value is None or value == "":
        return None
    items = item_list(value, "tools", of="tools")
    _check_json(items, "tools")
    items = items if isinstance(value, str) else _without_nulls(items)
    return [_tool(tool, where=f"tools[{index}]") for index, tool in enumerate(items)] or None


def read_calls(value: object, where: str) -> list[dict]:
    """A message's `tool_calls`, each {type, function: {name, arguments}}, arguments as given."""
    calls = item_list(value, where, of=f"calls {CALL}")
    if not calls:
        raise RowFault(f"key '{where}' is empty; expected a list of calls")
    return [read_call(call, f"{where}[{index}]") for index, call in enumerate(calls)]


def read_call(call: object, where: str) -> dict:
    """One call, wrapped as `function` or bare."""
    if not isinstance(call, Mapping):
        raise RowFault(f"key '{where}' is {kind_of(call)}; expected a call {CALL}")
    wrapped = call.get("function") is not None
    function = call["function"] if wrapped else call
    inside = f"{where}.function" if wrapped else where
    if not isinstance(function, Mapping):
        raise RowFault(f"key '{inside}' is {kind_of(function)}; expected {CALL}")
    name = words(function, "name", where=f"{inside}.")
    arguments = function.get("arguments")
    if arguments is None:
        arguments = {}
    _as_object(arguments, f"{inside}.arguments")
    more = {key: value for key, value in call.items() if value is not None} if wrapped else {}
    return {"type": "function", **more, "function": {"name": name, "arguments": arguments}}


def with_objects(messages: Iterable[Mapping]) -> list[Mapping]:
    """The messages with the arguments of every call as an object."""
    return [_with_arguments(message, as_text=False) for message in messages]


def with_texts(messages: Iterable[Mapping]) -> list[Mapping]:
    """The messages with the arguments of every call as JSON text."""
    return [_with_arguments(message, as_text=True) for message in messages]


def with_last_name(message: Mapping, name: str) -> dict:
    """The message with the last function that it calls called `name`."""
    *calls, last = message["tool_calls"]
    renamed = {**last, "function": {**last["function"], "name": name}}
    return {**message, "tool_calls": [*calls, renamed]}


def _with_arguments(message: Mapping, *, as_text: bool) -> Mapping:
    if "tool_calls" not in message:
        return message
    calls = []
    for call in message["tool_calls"]:
        arguments = call["function"]["arguments"]
        if as_text and not isinstance(arguments, str):
            arguments = json.dumps(_without_nulls(arguments), ensure_ascii=False)
        elif not as_text:
            arguments = _as_object(arguments, "arguments")
        calls.append({**call, "function": {**call["function"], "arguments": arguments}})
    return {**message, "tool_calls": calls}


def _as_object(arguments: object, name: str) -> dict:
    if arguments == "":
        return {}
    is_text = isinstance(arguments, str)
    found = from_json(arguments, name, expected="a JSON object") if is_text else arguments
    if not isinstance(found, Mapping):
        kind = f"JSON text of {kind_of(found)}" if is_text else kind_of(found)
        raise RowFault(f"key '{name}' is {kind}; expected an object, or one as JSON text")
    _check_json(found, name)
    return dict(found) if is_text else _without_nulls(found)


def _check_json(value: object, name: str) -> None:
    """Raise RowFault for what JSON has no words for: NaN, infinity, a date."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RowFault(f"key '{name}' can not be written as JSON ({error})") from error


def _tool(tool: object, *, where: str) -> dict:
    if not isinstance(tool, Mapping):
        raise RowFault(f"key '{where}' is {kind_of(tool)}; expected a function with its name")
    if "function" not in tool:
        words(tool, "name", where=f"{where}.")
        return {"type": "function", "function": tool}
    function = required(tool, "function", where=f"{where}.")
    if not isinstance(function, Mapping):
        raise RowFault(f"key '{where}.function' is {kind_of(function)}; expected an object")
    words(function, "name", where=f"{where}.function.")
    return {"type": "function", **tool}


def _without_nulls(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_without_nulls(item) for item in value]
    return value
