"""Dialogs as rows: `messages` in OpenAI's shape, and `conversations` in that of ShareGPT."""

from collections.abc import Mapping, Sequence

from ftrecipes.data.fields import (
    from_json,
    item_list,
    kind_of,
    optional_words,
    required,
    whole_text,
    words,
)
from ftrecipes.data.kinds import ChatRow
from ftrecipes.data.rows import RowFault
from ftrecipes.data.tools import read_call, read_calls, read_tools

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
OPENING_ROLES = ("system", "developer")
MAY_BE_EMPTY = ("system", "developer", "tool")
SPEAKERS = {
    **dict.fromkeys(["human", "user"], "user"),
    **dict.fromkeys(["gpt", "assistant", "chatgpt", "bing", "bard", "model"], "assistant"),
    **dict.fromkeys(["observation", "tool", "function_response"], "tool"),
    "system": "system",
    "function_call": "assistant",
}
"""ShareGPT's `from`, and the role that it stands for."""
MARKS = {
    "train": "true or false",
    "weight": "0 or 1: a message is trained or it is not, and no less than another",
}
"""Keys of a message that say whether it is trained, and the values they may have."""


def read_chat(row: Mapping, *, needs_answer: bool = True) -> ChatRow:
    """A row of `messages`, and `tools` if there are any."""
    messages = read_messages(required(row, "messages"), "messages")
    require_words(messages, "messages", of_assistant=needs_answer)
    return ChatRow(messages, read_tools(row))


def read_messages(value: object, name: str) -> list[dict]:
    """A list of messages: system or developer first if at all, words in every turn.

    What one says of its training is `train`, true or false; it is missing where nothing is said.
    """
    items = item_list(value, name, of="messages")
    messages = [_message(item, f"{name}[{index}]") for index, item in enumerate(items)]
    for index, message in enumerate(messages):
        if index > 0 and message["role"] in OPENING_ROLES:
            raise RowFault(
                f"key '{name}[{index}].role' is {message['role']!r}; the {message['role']} "
                "message comes first"
            )
    return messages


def require_words(messages: Sequence[Mapping], name: str, *, of_assistant: bool) -> None:
    """Raise RowFault for a dialog in which the assistant, or else nobody, says anything."""
    if of_assistant and all(message["role"] != "assistant" for message in messages):
        raise RowFault(f"key '{name}' has no message of the assistant; nothing to learn")
    if not messages:
        raise RowFault(f"key '{name}' is an empty list; nothing to learn")


def read_sharegpt(row: Mapping, *, needs_answer: bool = True) -> ChatRow:
    """A row of `conversations` with from and value, and `system` and `tools` if there are any."""
    name = "conversations"
    items = item_list(required(row, name), name, of="messages")
    messages = read_messages(
        [_turn(item, f"{name}[{index}]") for index, item in enumerate(items)], name
    )
    require_words(messages, name, of_assistant=needs_answer)
    system = optional_words(row, "system")
    if system and messages[0]["role"] in OPENING_ROLES:
        raise RowFault(f"key 'system' is given, and {name}[0] is a system message too")
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return ChatRow(messages, read_tools(row))


def _message(value: object, where: str) -> dict:
    if not isinstance(value, Mapping):
        raise RowFault(f"key '{where}' is {kind_of(value)}; expected role and content")
    if "role" not in value and "from" in value:
        raise RowFault(
            f"key '{where}.role' is missing; from and value are of --data.format sharegpt"
        )
    role = required(value, "role", where=f"{where}.")
    if role not in ROLES:
        raise RowFault(f"key '{where}.role' is {role!r}; expected {', '.join(ROLES)}")
    # Typed columns fill what a message lacks with null; templates ask whether a key is there.
    message = {key: item for key, item in value.items() if item is not None or key == "content"}
    if role == "function":
        message["role"] = "tool"
    _take_mark(message, where)
    if role == "assistant":
        _take_calls(message, where)
    if "tool_calls" in message and message.get("content") is None:
        message.pop("content", None)
        return message
    may_be_empty = message["role"] in MAY_BE_EMPTY or "tool_calls" in message
    message["content"] = _content(message, where, may_be_empty=may_be_empty)
    return message


def _take_calls(message: dict, where: str) -> None:
    """Bring calls into one shape; OpenAI's older `function_call` is one call."""
    if "function_call" in message and message.get("tool_calls"):
        raise RowFault(f"key '{where}' has function_call and tool_calls; expected one of them")
    if "function_call" in message:
        call = read_call(message.pop("function_call"), f"{where}.function_call")
        message["tool_calls"] = [call]
    elif message.get("tool_calls") == []:
        del message["tool_calls"]
    elif "tool_calls" in message:
        message["tool_calls"] = read_calls(message["tool_calls"], f"{where}.tool_calls")


def _take_mark(message: dict, where: str) -> None:
    """Bring `train` and OpenAI's `weight` into one, `train`."""
    marks = {key: message.pop(key) for key in MARKS if key in message}
    for key, value in marks.items():
        # Tables may hold either as a number; a share of a weight is something else.
        if not isinstance(value, int | float) or value not in (0, 1):
            raise RowFault(f"key '{where}.{key}' is {value!r}; expected {MARKS[key]}")
    if len(set(marks.values())) > 1:
        raise RowFault(f"key '{where}' has train and weight, and they contradict each other")
    if marks:
        message["train"] = bool(next(iter(marks.values())))


def _content(message: Mapping, where: str, *, may_be_empty: bool) -> str:
    """The text of a message; a list of text parts is joined."""
    content = message.get("content")
    if isinstance(content, list | tuple):
        name = f"{where}.content"
        text = "".join(_part(part, f"{name}[{index}]") for index, part in enumerate(content))
        return whole_text(text, name, may_be_empty=may_be_empty)
    return words(message, "content", where=f"{where}.", may_be_empty=may_be_empty)


def _part(part: object, where: str) -> str:
    if not isinstance(part, Mapping):
        raise RowFault(f"key '{where}' is {kind_of(part)}; expected a part of type text")
    kind = required(part, "type", where=f"{where}.")
    if kind != "text":
        raise RowFault(f"key '{where}.type' is {kind!r}; expected text, nothing else is trained on")
    return words(part, "text", where=f"{where}.", may_be_empty=True)


def _turn(item: object, where: str) -> object:
    """A ShareGPT turn as a message; one that is a message already stays as it is."""
    if not isinstance(item, Mapping) or ("role" in item and "from" not in item):
        return item
    speaker = required(item, "from", where=f"{where}.")
    if not isinstance(speaker, str) or speaker not in SPEAKERS:
        raise RowFault(f"key '{where}.from' is {speaker!r}; expected {', '.join(SPEAKERS)}")
    name = f"{where}.value"
    value = words(item, "value", where=f"{where}.", may_be_empty=SPEAKERS[speaker] in MAY_BE_EMPTY)
    more = {key: item[key] for key in MARKS if key in item}
    message = {"role": SPEAKERS[speaker], **more}
    if speaker != "function_call":
        return {**message, "content": value}
    calls = from_json(value, name, expected="a call {name, arguments}")
    return {
        **message,
        "tool_calls": read_calls(calls if isinstance(calls, list) else [calls], name),
    }
