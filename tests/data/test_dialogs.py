"""Rows of `messages` and of `conversations`: roles, contents, nesting, and what is wrong there."""

import json

import pytest

from ftrecipes.config.errors import DataError
from tests.data.dialogs import chat, rows_of, tokenize, trained_text
from tests.tiny_tokenizers import build_tokenizer

CHATML = build_tokenizer("chatml")
SAID = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]


def says(speaker: str, value: object) -> dict:
    return {"from": speaker, "value": value}


def test_contents_in_parts_are_joined():
    part = {"type": "text", "text": "Hel"}
    row = chat("Hi", [part, {"type": "text", "text": "lo"}])
    assert rows_of(tokenize([row], CHATML)) == rows_of(tokenize([chat("Hi", "Hello")], CHATML))


def test_a_developers_message_and_keys_of_null():
    row = {
        "messages": [
            {"role": "developer", "content": "Obey", "name": None, "tool_calls": None},
            {"role": "user", "content": "Hi", "name": None, "tool_calls": None},
            {"role": "assistant", "content": "Ho", "name": None, "tool_calls": []},
        ]
    }
    [(ids, labels)] = rows_of(tokenize([row], CHATML))
    assert CHATML.decode(ids).startswith("<|im_start|>developer\nObey<|im_end|>")
    assert trained_text(CHATML, labels) == "Ho<|im_end|>"


@pytest.mark.parametrize("system", [[], [says("system", "Be kind")]])
def test_sharegpt_names_are_the_roles(system):
    turns = [says("human", "Hi"), says("gpt", "Hello"), says("user", "And?"), says("bing", "Paris")]
    expected = chat("Hi", "Hello", "And?", "Paris", system="Be kind" if system else None)
    rows = [
        {"conversations": [*system, *turns]},
        {"conversations": json.dumps([*system, *turns]), "system": None, "tools": ""},
        {"conversations": expected["messages"]},
    ]
    if system:
        rows.append({"conversations": turns, "system": "Be kind"})
    first, *others = rows_of(tokenize(rows, CHATML))
    assert [first] == rows_of(tokenize([expected], CHATML))
    assert others == [first] * (len(rows) - 1)


def test_sharegpt_calls_and_observations():
    tokenizer = build_tokenizer("qwen")
    made = {"name": "rain", "arguments": {"town": "Bonn"}}
    row = {
        "conversations": [
            says("human", "Rain?"),
            says("function_call", json.dumps(made)),
            says("observation", "yes"),
            says("gpt", "Yes."),
        ],
        "tools": json.dumps([{"name": "rain", "parameters": {}}]),
    }
    same = {
        "messages": [
            {"role": "user", "content": "Rain?"},
            {"role": "assistant", "tool_calls": [{"function": made}]},
            {"role": "tool", "content": "yes"},
            {"role": "assistant", "content": "Yes."},
        ],
        "tools": [{"type": "function", "function": {"name": "rain", "parameters": {}}}],
    }
    [(ids, labels)] = rows_of(tokenize([row], tokenizer))
    assert [(ids, labels)] == rows_of(tokenize([same], tokenizer))
    assert trained_text(tokenizer, labels) == (
        f"<tool_call>\n{json.dumps(made)}\n</tool_call><|im_end|>Yes.<|im_end|>"
    )


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        (7, "key 'messages' is a number; expected a list of messages"),
        ({"role": ["user"]}, "key 'messages' is an object; expected a list of messages"),
        ("{}", "key 'messages' is JSON text of an object; expected a list"),
        ('[{"role"', "key 'messages' is text that is no JSON; expected a list"),
        ([[]], r"key 'messages\[0\]' is a list; expected role and content"),
        (SAID, r"key 'messages\[0\].role' is missing; from and value are of --data.format share"),
        ([{"role": 1, "content": "a"}], r"key 'messages\[0\].role' is 1; expected system, dev"),
        (chat("Hi", 3)["messages"], r"key 'messages\[1\].content' is a number"),
        (chat("", "Ho")["messages"], r"key 'messages\[0\].content' is empty"),
        (
            [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": None}],
            r"key 'messages\[1\].content' is missing",
        ),
        (
            [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": []}],
            r"key 'messages\[1\].content' is missing",
        ),
        (
            chat("Hi", [{"type": "image_url", "image_url": {}}])["messages"],
            r"key 'messages\[1\].content\[0\].type' is 'image_url'; expected text",
        ),
        (chat("Hi", [{"type": "text"}])["messages"], r"content\[0\].text' is missing"),
        (chat("Hi", [{"type": "text", "text": ""}])["messages"], r"\[1\].content' is empty"),
        (
            [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "H", "weight": 2}],
            r"key 'messages\[1\].weight' is 2; expected 0 or 1",
        ),
        (chat("Hi", "Ho\ud83d")["messages"], r"\[1\].content' holds half a character"),
    ],
)
def test_a_faulty_message_is_named_with_its_key(messages, fault):
    with pytest.raises(DataError, match=f"test rows row 2: .*{fault}"):
        tokenize([chat("Hi", "Hello"), {"messages": messages}], CHATML)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"conversations": None}, "key 'conversations' is null"),
        ({"conversations": []}, "key 'conversations' has no message of the assistant"),
        ({"conversations": SAID[:1]}, "key 'conversations' has no message of the assistant"),
        ({"conversations": ["Hi"]}, r"key 'conversations\[0\]' is text"),
        ({"conversations": [says("alien", "Hi")]}, r"conversations\[0\].from' is 'alien'; expec"),
        ({"conversations": [says(["gpt"], "Hi")]}, r"conversations\[0\].from' is \['gpt'\]"),
        ({"conversations": [{"value": "Hi"}]}, r"key 'conversations\[0\].from' is missing"),
        ({"conversations": [{"from": "gpt"}]}, r"key 'conversations\[0\].value' is missing"),
        ({"conversations": [says("gpt", None)]}, r"key 'conversations\[0\].value' is null"),
        ({"conversations": [says("gpt", 1.5)]}, r"key 'conversations\[0\].value' is a number"),
        ({"conversations": [says("gpt", "")]}, r"key 'conversations\[0\].value' is empty"),
        (
            {"conversations": [says("function_call", "rain()")]},
            r"key 'conversations\[0\].value' is text that is no JSON; expected a call",
        ),
        (
            {"conversations": [says("function_call", '{"name": "rain", "arguments": [1]}')]},
            r"key 'conversations\[0\].value\[0\].arguments' is a list; expected an object",
        ),
        (
            {"conversations": [says("system", "a"), *SAID], "system": "b"},
            r"key 'system' is given, and conversations\[0\] is a system message too",
        ),
        (
            {"conversations": [*SAID, says("system", "a")]},
            r"key 'conversations\[2\].role' is 'system'; the system message comes first",
        ),
    ],
)
def test_a_faulty_conversation_is_named_with_its_key(row, fault):
    with pytest.raises(DataError, match=f"test rows row 2: .*{fault}"):
        tokenize([{"conversations": SAID}, row], CHATML)
