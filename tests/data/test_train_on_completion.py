"""`--data.train_on completion`: what a row is to complete is trained; dialogs do not say what.

What it is of messages is compared with the mask that TRL makes for `completion_only_loss`: the
tokens behind those of the prompt, with its generation prompt.
"""

import pytest

from ftrecipes.config.errors import DataError
from ftrecipes.config.sections import DataConfig
from ftrecipes.data.facts import IGNORED
from ftrecipes.data.preview_rows import END
from ftrecipes.data.rows import collect_rows
from ftrecipes.data.sets import has_answers
from tests.data.dialogs import TURNS, chat, rows_of, tokenize, trained_text
from tests.data.examined import codes_of, findings_of
from tests.data.test_preview_rows import said, view_all
from tests.data.tool_dialogs import TOOL, calls, says
from tests.tiny_tokenizers import build_tokenizer

CHATML = build_tokenizer("chatml")
PLAIN = build_tokenizer("none", add_bos=True)
FOUR = chat("France?", "Paris", "Spain?", "Madrid")["messages"]
SPLIT = {"prompt": FOUR[:3], "completion": FOUR[3:]}
TEXTS = {"prompt": "2 + 2 =", "completion": " 4"}
INSTRUCTION = {"instruction": "Spain?", "input": "in one word", "output": "Madrid"}
HISTORY = {**INSTRUCTION, "system": "Be brief", "history": [["France?", "Paris"]]}


@pytest.mark.parametrize(
    "row",
    [
        SPLIT,
        {"prompt": FOUR[:1], "completion": FOUR[1:]},
        {"prompt": FOUR[:1], "completion": [FOUR[1] | {"train": False}, *FOUR[2:]]},
        TEXTS,
        INSTRUCTION,
    ],
    ids=["messages", "several", "mark", "texts", "instruction"],
)
@pytest.mark.parametrize("family", TURNS)
def test_the_same_as_assistant_where_nobody_else_answers(family, row):
    """Of texts and instructions with a tokenizer that has no template too."""
    needs_template = isinstance(row.get("prompt"), list)
    for tokenizer in (build_tokenizer(family), *[PLAIN] * (not needs_template)):
        expected = rows_of(tokenize([row], tokenizer))
        assert rows_of(tokenize([row], tokenizer, train_on="completion")) == expected
        assert any(label != IGNORED for label in expected[0][1])


@pytest.mark.parametrize("family", ["chatml", "llama3", "gemma", "mistral"])
def test_one_answer_is_the_mask_of_trl_less_the_line_end(family):
    tokenizer = build_tokenizer(family)
    [(ids, labels)] = rows_of(tokenize([SPLIT], tokenizer, train_on="completion"))
    prompt = tokenizer.apply_chat_template(FOUR[:3], add_generation_prompt=True)["input_ids"]
    assert ids == tokenizer.apply_chat_template(FOUR)["input_ids"]
    assert ids[: len(prompt)] == prompt
    masked = [IGNORED] * len(prompt) + ids[len(prompt) :]
    while not tokenizer.decode(masked[-1:]).strip():
        masked.pop()
    assert labels == masked + [IGNORED] * (len(ids) - len(masked))


def test_of_an_instruction_the_output_alone():
    """Also behind a system text, and with several answers in `history`."""
    more = {**HISTORY, "history": [["Italy?", "Rome"], *HISTORY["history"]]}
    for row, before in ((HISTORY, "Paris<|im_end|>"), (more, "Rome<|im_end|>Paris<|im_end|>")):
        [(ids, labels)] = rows_of(tokenize([row], CHATML, train_on="completion"))
        [(same, others)] = rows_of(tokenize([row], CHATML))
        assert ids == same
        assert trained_text(CHATML, labels) == "Madrid<|im_end|>"
        assert trained_text(CHATML, others) == f"{before}Madrid<|im_end|>"
        assert labels == rows_of(tokenize([row], CHATML, train_on="last_assistant"))[0][1]


def test_what_a_tool_says_in_a_completion_is_not_trained():
    tokenizer, function = build_tokenizer("qwen"), {"name": "f", "arguments": {"a": "b"}}
    completion = [
        calls({"id": "1", "type": "function", "function": function}),
        says("tool", "the rain", tool_call_id="1"),
        says("assistant", "Yes"),
    ]
    row = {"prompt": [says("user", "Rain?")], "completion": completion, "tools": [TOOL]}
    [(_, labels)] = rows_of(tokenize([row], tokenizer, train_on="completion"))
    call = '<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call><|im_end|>'
    assert trained_text(tokenizer, labels) == f"{call}Yes<|im_end|>"


@pytest.mark.parametrize(
    ("row", "format_name"),
    [
        ({"messages": FOUR}, "chat"),
        ({"conversations": [{"from": "gpt", "value": "Paris"}]}, "sharegpt"),
    ],
)
def test_dialogs_have_none(row, format_name):
    with pytest.raises(DataError) as caught:
        tokenize([row], CHATML, train_on="completion")
    assert str(caught.value) == (
        "--data.train_on completion: the rows of test rows have no completion "
        f"(test rows row 1 and on are --data.format {format_name}).\n"
        "  expected: rows with `prompt` and `completion`, or with `instruction` and `output`\n"
        "  do: --data.train_on assistant (every answer), last_assistant (the last one) or all"
    )


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"text": "Hello"}, "all of a text is trained"),
        ({"input_ids": [5, 6], "labels": [IGNORED, 6]}, "labels say what is trained"),
    ],
)
def test_of_texts_and_tokens_it_would_choose_nothing(row, why):
    with pytest.raises(DataError, match=rf"train_on completion: would have no effect .*{why}"):
        tokenize([row], PLAIN, train_on="completion")


def test_a_completion_needs_an_answer():
    row = {"prompt": FOUR[:1], "completion": FOUR[:1]}
    with pytest.raises(DataError, match="'completion' has no message of the assistant"):
        tokenize([row], CHATML, train_on="completion")


def test_a_preview_shows_whose_words_they_are():
    shown = view_all([SPLIT, {"prompt": FOUR[:1], "completion": FOUR[1:2]}], CHATML)[0]
    assert view_all([SPLIT], CHATML, train_on="completion")[0][0].tokens == shown[0].tokens
    assert said(shown[0], "assistant, not trained") == "Paris"
    [row] = view_all([TEXTS], PLAIN, train_on="completion")[0]
    assert [said(row, who) for who in ("prompt", "answer", END)] == ["2 + 2 =", " 4", "</s>"]
    [row] = view_all([HISTORY], CHATML, train_on="completion")[0]
    assert said(row, "assistant, not trained") == "Paris"
    assert [said(row, who) for who in ("assistant", END)] == ["Madrid", "<|im_end|>"]


@pytest.mark.parametrize("row", [SPLIT, HISTORY, TEXTS], ids=["messages", "history", "texts"])
@pytest.mark.parametrize("family", ["no_end", "llama3", "chatml"])
def test_the_doctor_looks_at_it_as_at_answers(family, row):
    tokenizer = build_tokenizer(family)
    found = findings_of([row], tokenizer, train_on="completion")
    assert found == findings_of([row], tokenizer, train_on="last_assistant")
    codes = {one.code for one in found}
    assert ("no-end-token" in codes) == (family == "no_end" and row != TEXTS)
    raw = collect_rows([row], name="rows")
    rows = tokenize([row], tokenizer)
    assert has_answers(raw, rows, DataConfig(train_on="completion")).tolist() == [True]
    ends_apart = codes_of([SPLIT], build_tokenizer("gemma"), train_on="completion")
    assert ("info", "end-is-not-eos") in ends_apart
