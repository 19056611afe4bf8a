"""Formats by their columns, columns by other names, and rows that are no dialogs."""

import json
import logging
import re
from pathlib import Path

import pytest

from ftrecipes.config.errors import DataError
from ftrecipes.data.facts import IGNORED
from tests.data.dialogs import chat, rows_of, tokenize, trained_text
from tests.tiny_tokenizers import build_tokenizer

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
CHATML = build_tokenizer("chatml")
PLAIN = build_tokenizer("none", add_bos=True)
TURNS = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
SAID = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
ROWS = {
    "chat": {"messages": TURNS},
    "sharegpt": {"conversations": SAID},
    "instruction": {"instruction": "Hi", "output": "Hello"},
    "prompt_completion": {"prompt": TURNS[:1], "completion": TURNS[1:]},
    "text": {"text": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"},
}


@pytest.mark.parametrize("name", ROWS)
def test_one_dialog_in_every_format(name):
    """The same ids, whether the format is told by its columns, by name, or by other columns."""
    row = ROWS[name] | {"id": 7, "source": "web"}
    renamed = {f"my {key}": value for key, value in row.items()}
    columns = {key: f"my {key}" for key in ROWS[name]}
    expected = CHATML.apply_chat_template(TURNS)["input_ids"]
    for rows, settings in [
        ([row], {}),
        ([row], {"format": name}),
        ([renamed], {"columns": columns}),
        ([renamed | {"text": "other", "messages": []}], {"columns": columns, "format": name}),
    ]:
        [(ids, labels)] = rows_of(tokenize(rows, CHATML, **settings))
        assert ids == expected
        if name != "text":
            assert trained_text(CHATML, labels) == "Hello<|im_end|>"


def test_the_rows_of_the_documentation():
    """All nine are read as they stand; the answer is what is trained of them."""
    blocks = re.findall(r"^```json\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    rows = [json.loads(line) for block in blocks for line in block.splitlines()]
    *texts, tokens, calls, silent = rows
    assert len(texts) == 6
    tokenizer = build_tokenizer("qwen")
    for row in texts:
        [(_, labels)] = rows_of(tokenize([row], tokenizer))
        assert "Paris" in trained_text(tokenizer, labels)
    [(_, labels)] = rows_of(tokenize([silent], tokenizer))
    assert trained_text(tokenizer, labels) == "No, it is Paris.<|im_end|>"
    with pytest.raises(DataError, match="outside the vocabulary"):
        tokenize([tokens], tokenizer)
    [(_, labels)] = rows_of(tokenize([calls], tokenizer))
    assert trained_text(tokenizer, labels).endswith("</tool_call><|im_end|>It does.<|im_end|>")


def test_tokens_by_name_and_column():
    row = {"ids": [5, 6, 7], "labels": [IGNORED, 6, 7], "text": "other"}
    for settings in [{}, {"format": "tokens"}]:
        rows = tokenize([row], PLAIN, columns={"input_ids": "ids"}, **settings)
        assert rows_of(rows) == [([5, 6, 7], [IGNORED, 6, 7])]


@pytest.mark.parametrize(
    ("row", "settings", "words"),
    [
        (
            ROWS["chat"] | ROWS["instruction"],
            {},
            ["more than one format", "chat, instruction", "--data.format chat"],
        ),
        (ROWS["text"] | ROWS["instruction"], {}, ["instruction, text"]),
        ({"question": 1, "answer": 2}, {}, ["no known format", "question, answer", "messages"]),
        ({"mesages": []}, {"format": "chat"}, ["'messages'", "Did you mean 'mesages'?"]),
        (ROWS["chat"], {"format": "text"}, ["--data.format text", "'text'", "messages"]),
        (
            ROWS["instruction"],
            {"columns": {"output": "outputs"}},
            ["no column 'outputs'", "Did you mean 'output'?", "instruction, output"],
        ),
        (ROWS["chat"], {"columns": {"mesages": "messages"}}, ["Did you mean 'messages'?"]),
        (
            ROWS["chat"],
            {"columns": {"text": "messages"}, "format": "chat"},
            ["--data.format chat has no column 'text'", "messages, tools"],
        ),
    ],
)
def test_columns_that_do_not_fit(row, settings, words):
    with pytest.raises(DataError) as caught:
        tokenize([row], CHATML, **settings)
    assert all(word in str(caught.value) for word in words)


def test_columns_that_are_not_read_are_named(monkeypatch):
    told = []
    monkeypatch.setattr(logging.getLogger("ftrecipes"), "info", told.append)
    tokenize([ROWS["chat"] | {"system": "Be brief.", "functions": []}], CHATML)
    assert told == ["test rows: columns that --data.format chat does not read: system, functions"]


def test_a_renamed_column_hides_one_of_that_name_and_is_named_in_a_fault():
    rows = [{"instruction": "Hi", "output": "wrong", "answer": "Hello"}, {"instruction": "Hi"}]
    with pytest.raises(DataError, match=r"row 2: key 'output' is missing \(--data.columns output="):
        tokenize(rows, CHATML, columns={"output": "answer"})
    [(_, labels)] = rows_of(tokenize(rows[:1], CHATML, columns={"output": "answer"}))
    assert trained_text(CHATML, labels) == "Hello<|im_end|>"
    swapped = {"instruction": "Hello", "output": "Hi"}
    columns = {"instruction": "output", "output": "instruction"}
    [(_, labels)] = rows_of(tokenize([swapped], CHATML, columns=columns))
    assert trained_text(CHATML, labels) == "Hello<|im_end|>"


@pytest.mark.parametrize("tokenizer", [CHATML, PLAIN], ids=["template", "none"])
def test_text_is_trained_whole_and_ends_once(tokenizer):
    """M04: EOS is added where the text has none, also with white space behind it."""
    end = tokenizer.eos_token
    texts = ["hello world", f"hello world{end}", f"hello{end} world", f"hello{end}\n"]
    results = rows_of(tokenize([{"text": text} for text in texts], tokenizer))
    for text, (ids, labels) in zip(texts, results, strict=True):
        opening = tokenizer("")["input_ids"]
        whole = text if text.strip().endswith(end) else text + end
        assert ids == [*opening, *tokenizer(whole, add_special_tokens=False)["input_ids"]]
        assert labels == [IGNORED] * len(opening) + ids[len(opening) :]


def test_a_text_that_brings_its_bos_gets_no_second_one():
    """M06: text that a chat template wrote before."""
    tokenizer = build_tokenizer("llama3", add_bos=True)
    text = tokenizer.apply_chat_template(TURNS, tokenize=False)
    [(ids, _)] = rows_of(tokenize([{"text": text}], tokenizer))
    assert ids == tokenizer.apply_chat_template(TURNS)["input_ids"]


@pytest.mark.parametrize("tokenizer", [CHATML, PLAIN], ids=["template", "none"])
def test_prompt_and_completion_as_text(tokenizer):
    """No template, BOS as the tokenizer does, one EOS; the prompt is not trained."""
    rows = [
        {"prompt": "2 + 2 =", "completion": " 4"},
        {"prompt": "", "completion": "x" + tokenizer.eos_token},
    ]
    results = rows_of(tokenize(rows, tokenizer))
    for row, answer, (ids, labels) in zip(rows, [" 4", "x"], results, strict=True):
        text = row["prompt"] + answer + tokenizer.eos_token
        assert (
            ids
            == tokenizer("")["input_ids"] + tokenizer(text, add_special_tokens=False)["input_ids"]
        )
        assert trained_text(tokenizer, labels) == answer + tokenizer.eos_token


def test_answers_of_a_prompt_are_not_trained():
    messages = chat("Hi", "Hello", "And?", "Paris")["messages"]
    row = {"prompt": messages[:3], "completion": messages[3:]}
    [(ids, labels)] = rows_of(tokenize([row], CHATML))
    assert ids == CHATML.apply_chat_template(messages)["input_ids"]
    assert trained_text(CHATML, labels) == "Paris<|im_end|>"


def test_an_instruction_with_a_system_text_and_history():
    row = {
        "instruction": "And Italy?",
        "output": "Rome.",
        "system": "Be brief.",
        "history": [["France?", "Paris."], ["Spain?", "Madrid."]],
    }
    dialog = chat(
        "France?", "Paris.", "Spain?", "Madrid.", "And Italy?", "Rome.", system="Be brief."
    )
    assert rows_of(tokenize([row], CHATML)) == rows_of(tokenize([dialog], CHATML))
    empty = row | {"system": None, "history": "[]"}
    assert len(rows_of(tokenize([empty], CHATML))[0][0]) < 60
    blank = row | {"system": " ", "input": "\n", "history": ""}
    [same] = rows_of(tokenize([chat("And Italy?", "Rome.")], CHATML))
    assert rows_of(tokenize([blank], CHATML)) == [same]
    assert len(tokenize([blank], PLAIN)) == 1
    for key in ("system", "history"):
        bare = {name: row[name] for name in ("instruction", "output", key)}
        with pytest.raises(DataError, match=f"key '{key}' has no place in a prompt without a chat"):
            tokenize([bare], PLAIN)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"prompt": "a", "completion": TURNS[1:]}, "key 'completion' is a list; expected text"),
        ({"prompt": TURNS[:1], "completion": "a"}, "key 'prompt' is a list; expected text"),
        ({"prompt": "a", "completion": ""}, "key 'completion' is empty"),
        ({"prompt": None, "completion": "a"}, "key 'prompt' is null"),
        ({"prompt": 1, "completion": 2}, "key 'prompt' is a number; expected a list of messages"),
        (
            {"prompt": TURNS, "completion": TURNS[:1]},
            "key 'completion' has no message of the assistant",
        ),
        ({"text": None}, "key 'text' is null"),
        ({"text": " \n"}, "key 'text' is empty"),
        ({"text": ["a"]}, "key 'text' is a list"),
        (ROWS["instruction"] | {"history": [["a"]]}, r"key 'history\[0\]' is a list; expected a"),
        (ROWS["instruction"] | {"history": [["a", 1]]}, r"key 'history\[0\]\[1\]' is a number"),
        (ROWS["instruction"] | {"system": 1}, "key 'system' is a number"),
    ],
)
def test_faulty_rows_are_named_with_their_key(row, fault):
    with pytest.raises(DataError, match=f"test rows row 1: {fault}"):
        tokenize([row], CHATML)


def test_dialogs_and_messages_need_a_template_and_text_an_end_token():
    for name in ("sharegpt", "prompt_completion"):
        with pytest.raises(DataError, match="no chat template"):
            tokenize([ROWS[name]], PLAIN)
    tokenizer = build_tokenizer("chatml")
    tokenizer.eos_token = None
    with pytest.raises(DataError, match="no end token"):
        tokenize([ROWS["text"]], tokenizer)
    assert len(tokenize([ROWS["chat"]], tokenizer)) == 1
