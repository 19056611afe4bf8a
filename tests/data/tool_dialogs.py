"""Dialogs in which the assistant calls a function."""

import json

TOOL = {
    "type": "function",
    "function": {
        "name": "rain",
        "description": "Tells whether it rains.",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}},
    },
}
ARGUMENTS = {"town": "K\u00f6ln", "days": 2, "exact": True}
CALL = '{"name": "rain", "arguments": {"town": "K\u00f6ln", "days": 2, "exact": true}}'


def call(arguments=None, *, number="1", name="rain") -> dict:
    given = json.dumps(ARGUMENTS, ensure_ascii=False) if arguments is None else arguments
    return {
        "id": f"call{number}",
        "type": "function",
        "function": {"name": name, "arguments": given},
    }


def calls(*made, **more) -> dict:
    return {"role": "assistant", "content": None, "tool_calls": list(made), **more}


def says(role: str, content: str, **more) -> dict:
    return {"role": role, "content": content, **more}


def result(content="yes", number="1") -> dict:
    return says("tool", content, tool_call_id=f"call{number}")


def dialog(*messages: dict, tools=(TOOL,)) -> dict:
    return {"messages": list(messages), "tools": list(tools)}


ASKED = dialog(
    says("user", "Does it rain?"), calls(call()), result(), says("assistant", "It does.")
)
