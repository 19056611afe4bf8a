"""Instruction rows, rows that are too long, and sets that can not be trained on."""

import json

import pytest
from transformers import ByT5Tokenizer

from ftrecipes.config.errors import DataError
from ftrecipes.config.sections import DataConfig
from ftrecipes.data.facts import IGNORED
from ftrecipes.data.files import read_file
from ftrecipes.data.readers import alpaca_prompt
from ftrecipes.data.rows import collect_rows
from ftrecipes.data.tokenize import tokenize_rows
from tests.data.dialogs import chat, rows_of, tokenize, trained_text
from tests.tiny_tokenizers import build_tokenizer


def instruction(text: str, output: str, **more) -> dict:
    return {"instruction": text, "output": output, **more}


@pytest.mark.parametrize("add_eos", [False, True])
def test_plain_rows_get_one_bos_and_one_trained_eos(add_eos):
    """M02, M04, P11: whether the tokenizer adds them or not, and whether the row brings one."""
    tokenizer = build_tokenizer("none", pad="eos", add_bos=True, add_eos=add_eos)
    rows = [instruction("a", "As an AI"), instruction("a", "hello world</s>")]
    first, second = rows_of(tokenize(rows, tokenizer))
    assert trained_text(tokenizer, first[1]) == "As an AI</s>"
    assert trained_text(tokenizer, second[1]) == "hello world</s>"
    for ids, labels in (first, second):
        assert ids.count(tokenizer.eos_token_id) == 1
        assert ids[-1] == labels[-1] == tokenizer.eos_token_id
        assert ids.count(tokenizer.bos_token_id) == 1
        assert ids[0] == tokenizer.bos_token_id
        assert labels[0] == IGNORED


def test_no_bos_where_the_tokenizer_adds_none():
    tokenizer = build_tokenizer("none", add_eos=True)
    [(ids, _)] = rows_of(tokenize([instruction("a", "b")], tokenizer))
    assert tokenizer.bos_token_id not in ids


def test_labels_are_the_ids_of_the_answer_and_nothing_else():
    """M01, M19: -100 or the id at the same position, never another number."""
    tokenizer = build_tokenizer("none", add_bos=True)
    rows = [instruction("Say yes", "yes", input="now"), instruction("Name it", "Paris, France")]
    results = rows_of(tokenize(rows, tokenizer))
    for row, (ids, labels) in zip(rows, results, strict=True):
        prompt = alpaca_prompt(row["instruction"], context=row.get("input", ""))
        answer = tokenizer(row["output"], add_special_tokens=False)["input_ids"]
        prompt_ids = tokenizer(prompt)["input_ids"]
        assert ids == [*prompt_ids, *answer, tokenizer.eos_token_id]
        assert labels == [IGNORED] * len(prompt_ids) + [*answer, tokenizer.eos_token_id]


def test_the_alpaca_prompt():
    with_input = alpaca_prompt("Add.", context="1 and 2")
    assert with_input.endswith("### Instruction:\nAdd.\n\n### Input:\n1 and 2\n\n### Response:")
    assert "Input" not in alpaca_prompt("Add.")


def test_an_instruction_is_a_users_turn_where_there_is_a_template():
    tokenizer = build_tokenizer("chatml")
    rows = [instruction("Add.", "3", input="1 and 2"), instruction("Add.", "3", input=None)]
    results = rows_of(tokenize(rows, tokenizer))
    for question, (ids, labels) in zip(["Add.\n\n1 and 2", "Add."], results, strict=True):
        assert ids == tokenizer.apply_chat_template(chat(question, "3")["messages"])["input_ids"]
        assert trained_text(tokenizer, labels) == "3<|im_end|>"


def test_input_may_be_null_missing_or_empty_and_is_never_the_word_none(tmp_path):
    """D04 (b), S13: 20 000 rows with a null set no schema for those that follow in the file."""
    tokenizer = build_tokenizer("none")
    rows = [instruction("Add.", "3", input=None)] * 20_000
    rows += [
        instruction("Add.", "3", input="x"),
        instruction("Add.", "3"),
        instruction("A", "3", input=""),
    ]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    token_rows = tokenize_rows(read_file(path), tokenizer, data=DataConfig(), context_length=4096)
    assert len(token_rows) == 20_003
    texts = [tokenizer.decode(ids) for ids, _ in rows_of(token_rows)[-4:]]
    assert ["### Input:\nx" in text for text in texts] == [False, True, False, False]
    assert not any("None" in text for text in texts)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (instruction("a", ""), "key 'output' is empty"),
        (instruction("a", " \n"), "key 'output' is empty"),
        (instruction("a", None), "key 'output' is null"),
        (instruction("a", 7), "key 'output' is a number"),
        (instruction("a", {"a": 1}), "key 'output' is an object"),
        (instruction(["a"], "b"), "key 'instruction' is a list"),
        (instruction("a", "b", input=3), "key 'input' is a number"),
        (instruction("a", "\ud83d"), "key 'output' holds half a character"),
        ({"instruction": "a"}, "key 'output' is missing"),
        ("text", "the row is text; expected an object"),
        (None, "the row is null"),
    ],
)
def test_a_faulty_instruction_row_is_named_with_its_key(row, fault):
    """D01, D04 (a): which row, which key, what was found."""
    rows = [instruction("a", "b"), instruction("a", "b"), row]
    raw = collect_rows(rows, name="train.jsonl", lines=[1, 2, 4])
    with pytest.raises(DataError) as caught:
        tokenize_rows(raw, build_tokenizer("none"), data=DataConfig(), context_length=99)
    assert str(caught.value).startswith("1 of 3 rows can not be used.")
    assert f"train.jsonl line 4: {fault}" in str(caught.value)


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        (None, "key 'messages' is null"),
        ("Hi", "key 'messages' is text"),
        ([], "key 'messages' has no message of the assistant"),
        (["Hi"], "key 'messages[0]' is text"),
        ([{"role": "user"}], "key 'messages[0].content' is missing"),
        ([{"content": "Hi"}], "key 'messages[0].role' is missing"),
        (chat("Hi")["messages"], "key 'messages' has no message of the assistant"),
        (chat("Hi", "")["messages"], "key 'messages[1].content' is empty"),
        (chat("Hi", None)["messages"], "key 'messages[1].content' is null"),
        (chat("Hi", ["Hello"])["messages"], "key 'messages[1].content[0]' is text"),
        ([{"role": "human", "content": "Hi"}], "key 'messages[0].role' is 'human'"),
        (
            [*chat("Hi", "Hello")["messages"], {"role": "system", "content": "x"}],
            "key 'messages[2].role' is 'system'; the system message comes first",
        ),
    ],
)
def test_a_faulty_dialog_is_named_with_its_key(messages, fault):
    with pytest.raises(DataError) as caught:
        tokenize([chat("Hi", "Hello"), {"messages": messages}], build_tokenizer("chatml"))
    assert f"test rows row 2: {fault}" in str(caught.value)


def test_every_faulty_row_is_counted_and_the_first_few_are_shown():
    """D03"""
    rows = [instruction("a", {"a": 1})] * 8
    with pytest.raises(DataError, match="8 of 8 rows") as caught:
        tokenize(rows, build_tokenizer("none"))
    assert "row 5" in str(caught.value)
    assert "row 6" not in str(caught.value)
    assert "and 3 more" in str(caught.value)


def test_an_empty_system_text_is_allowed():
    tokenizer = build_tokenizer("chatml")
    [(ids, _)] = rows_of(tokenize([chat("Hi", "Hello", system="")], tokenizer))
    assert tokenizer.decode(ids).startswith("<|im_start|>system\n<|im_end|>")


def test_unknown_columns_are_listed_with_what_is_expected():
    with pytest.raises(DataError) as caught:
        tokenize([{"question": "a", "answer": "b"}], build_tokenizer("none"))
    for word in ("question, answer", "messages", "instruction", "output", "custom_dataset"):
        assert word in str(caught.value)


def test_dialogs_need_a_template():
    with pytest.raises(DataError, match="no chat template"):
        tokenize([chat("Hi", "Hello")], build_tokenizer("none"))


def test_plain_rows_need_an_end_token():
    tokenizer = build_tokenizer("none")
    tokenizer.eos_token = None
    with pytest.raises(DataError, match="has no end token"):
        tokenize([instruction("a", "b")], tokenizer)


def test_a_tokenizer_without_offsets_is_refused():
    with pytest.raises(DataError, match=r"ByT5Tokenizer(.|\n)*--tokenizer_name"):
        tokenize([instruction("a", "b")], ByT5Tokenizer())


def test_no_rows():
    with pytest.raises(DataError, match="test rows has no rows"):
        tokenize([], build_tokenizer("none"))


def test_the_order_and_names_of_rows_survive_many_batches():
    tokenizer = build_tokenizer("chatml")
    rows = [chat(f"q {i}", f"a {i}") for i in range(2345)]
    token_rows = tokenize(rows, tokenizer)
    assert token_rows.sources[2344] == "test rows row 2345"
    texts = [trained_text(tokenizer, labels) for _, labels in rows_of(token_rows)]
    assert texts == [f"a {i}<|im_end|>" for i in range(2345)]


def test_a_column_of_json_text_is_text():
    """D03: an output that looks like JSON is what the model learns to write."""
    tokenizer = build_tokenizer("none")
    output = json.dumps({"a": 1})
    [(_, labels)] = rows_of(tokenize([instruction("a", output)], tokenizer))
    assert trained_text(tokenizer, labels) == output + "</s>"
