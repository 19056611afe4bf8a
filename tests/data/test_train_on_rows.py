"""Whose words are trained, format by format; what is refused, and what the report says."""

import pytest

from ftrecipes.config.errors import DataError
from ftrecipes.data.facts import IGNORED
from tests.data.dialogs import chat, rows_of, tokenize, trained_text
from tests.data.examined import codes_of
from tests.data.tool_dialogs import says
from tests.tiny_tokenizers import build_tokenizer

CHATML = build_tokenizer("chatml")
LLAMA = build_tokenizer("llama3", add_bos=True)
PLAIN = build_tokenizer("none", add_bos=True)
FOUR = chat("France?", "Paris", "Spain?", "Madrid")["messages"]
SHARE = [
    {"from": "human", "value": "France?"},
    {"from": "gpt", "value": "Paris", "weight": 0},
    {"from": "human", "value": "Spain?"},
    {"from": "gpt", "value": "Madrid", "train": True},
]
HISTORY = {"instruction": "Spain?", "output": "Madrid", "history": [["France?", "Paris"]]}
SPLIT = {"prompt": FOUR[:3], "completion": FOUR[3:]}
BOTH, LAST = "Paris<|im_end|>Madrid<|im_end|>", "Madrid<|im_end|>"
WHOLE = CHATML.apply_chat_template(FOUR, tokenize=False)


@pytest.mark.parametrize(
    ("row", "assistant", "last", "whole"),
    [
        ({"messages": FOUR}, BOTH, LAST, WHOLE),
        ({"conversations": SHARE}, LAST, LAST, WHOLE.replace("Paris<|im_end|>", "")),
        (HISTORY, BOTH, LAST, WHOLE),
        (SPLIT, LAST, LAST, WHOLE),
        ({"prompt": "2 + 2 =", "completion": " 4"}, *[" 4<|im_end|>"] * 2, "2 + 2 = 4<|im_end|>"),
    ],
    ids=["chat", "sharegpt", "history", "messages", "texts"],
)
def test_each_format(row, assistant, last, whole):
    rows = {}
    for train_on, expected in (("assistant", assistant), ("last_assistant", last), ("all", whole)):
        [(rows[train_on], labels)] = rows_of(tokenize([row], CHATML, train_on=train_on))
        assert trained_text(CHATML, labels) == expected
    assert rows["assistant"] == rows["last_assistant"] == rows["all"]


def test_all_of_a_prompt_without_a_template_is_trained_behind_bos():
    row = {"instruction": "Hi", "output": "Hello"}
    [(ids, labels)] = rows_of(tokenize([row], PLAIN, train_on="all"))
    assert ids[0] == PLAIN.bos_token_id
    assert labels == [IGNORED, *ids[1:]]
    [(_, labels)] = rows_of(tokenize([row], PLAIN, train_on="last_assistant"))
    assert trained_text(PLAIN, labels) == "Hello</s>"


def test_all_begins_behind_the_bos_that_a_template_writes():
    [(ids, labels)] = rows_of(tokenize([{"messages": FOUR}], LLAMA, train_on="all"))
    assert ids[0] == LLAMA.bos_token_id
    assert labels == [IGNORED, *ids[1:]]


def test_of_texts_and_tokens_nothing_can_be_chosen():
    text, tokens = {"text": "Hello"}, {"input_ids": [5, 6], "labels": [IGNORED, 6]}
    assert rows_of(tokenize([text], PLAIN, train_on="all")) == rows_of(tokenize([text], PLAIN))
    for row, train_on, why in (
        (text, "last_assistant", "all of a text is trained"),
        (tokens, "last_assistant", "labels say what is trained"),
        (tokens, "all", "labels say what is trained"),
    ):
        with pytest.raises(DataError, match=rf"--data.train_on {train_on}: would have no .*{why}"):
            tokenize([row], PLAIN, train_on=train_on)


def test_all_needs_no_answer_but_words():
    asked = {"messages": FOUR[:1]}
    with pytest.raises(DataError, match="'messages' has no message of the assistant"):
        tokenize([asked], CHATML)
    [(ids, labels)] = rows_of(tokenize([asked], CHATML, train_on="all"))
    assert labels == ids
    for row in ({"messages": []}, {"conversations": []}, {"prompt": FOUR, "completion": []}):
        name = list(row)[-1]
        with pytest.raises(DataError, match=f"key '{name}' is an empty list; nothing to learn"):
            tokenize([row], CHATML, train_on="all")


@pytest.mark.parametrize(
    ("marks", "fault"),
    [
        ({"train": "maybe"}, ".train' is 'maybe'; expected true or false"),
        ({"train": "false"}, ".train' is 'false'; expected true or false"),
        ({"train": 2}, ".train' is 2; expected true or false"),
        ({"train": [True]}, r".train' is \[True\]; expected true or false"),
        ({"weight": 0.5}, ".weight' is 0.5; expected 0 or 1: a message is trained or it is not"),
        ({"weight": -1}, ".weight' is -1; expected 0 or 1"),
        ({"weight": "1"}, ".weight' is '1'; expected 0 or 1"),
        ({"weight": float("nan")}, ".weight' is nan; expected 0 or 1"),
        ({"train": True, "weight": 0}, "' has train and weight, and they contradict"),
    ],
)
@pytest.mark.parametrize("index", [0, 1])
def test_marks_that_say_neither_yes_nor_no(marks, fault, index):
    messages = [dict(message) for message in FOUR]
    messages[index] |= marks
    with pytest.raises(DataError, match=rf"row 2: key 'messages\[{index}\]{fault}"):
        tokenize([{"messages": FOUR}, {"messages": messages}], CHATML)


@pytest.mark.parametrize("mark", [{"train": 0}, {"weight": 0.0}, {"train": False, "weight": 0}])
def test_marks_as_tables_hold_them(mark):
    """Typed columns have numbers, and null where nothing is said."""
    messages = [message | {"train": None, "weight": None} for message in FOUR]
    messages[1] = messages[1] | mark
    [(_, labels)] = rows_of(tokenize([{"messages": messages}], CHATML))
    assert trained_text(CHATML, labels) == LAST


def test_the_template_sees_no_marks():
    tokenizer = build_tokenizer("chatml")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m | length }}: {{ m.content + '<|im_end|>' }}{% endfor %}"
    )
    answer = says("assistant", "Hello", train=True, weight=1)
    [(ids, _)] = rows_of(
        tokenize([{"messages": [says("user", "Hi", train=False), answer]}], tokenizer)
    )
    assert tokenizer.decode(ids) == "2: Hi<|im_end|>2: Hello<|im_end|>"


def test_rows_that_leave_everything_out_are_counted_and_passed_over():
    silent = {"messages": [FOUR[0], FOUR[1] | {"weight": 0}]}
    rows = tokenize([{"messages": FOUR}, silent], CHATML)
    assert rows.token_counts.tolist()[1] == 0
    assert rows.report == [
        '1 of 2 rows have no answer left to train: each is left out by "train": false or '
        '"weight": 0',
        "1 of 2 rows have no token to train on and are passed over: test rows row 2",
    ]
    for train_on in ("assistant", "last_assistant", "all"):
        everyone = [message | {"train": False} for message in FOUR]
        with pytest.raises(DataError) as caught:
            tokenize([{"messages": everyone}], CHATML, train_on=train_on)
        assert "None of 1 rows has a token to train on" in str(caught.value)
        assert "1 of 1 rows have no answer left to train" in str(caught.value)


def test_the_last_answer_is_the_last_one_even_when_it_leaves_itself_out():
    messages = [*FOUR[:3], FOUR[3] | {"train": False}]
    rows = tokenize([{"messages": FOUR}, {"messages": messages}], CHATML, train_on="last_assistant")
    assert rows.token_counts.tolist()[1] == 0


@pytest.mark.parametrize(
    ("index", "train_on", "is_told"),
    [
        (0, "assistant", True),
        (1, "assistant", False),
        (1, "last_assistant", True),
        (3, "last_assistant", False),
        (0, "all", False),
    ],
)
def test_a_wish_that_the_flag_does_not_grant_is_told(index, train_on, is_told):
    """A mark takes out and never adds."""
    messages = [dict(message) for message in FOUR]
    messages[index]["train"] = True
    token_rows = tokenize([{"messages": messages}], CHATML, train_on=train_on)
    expected = tokenize([{"messages": FOUR}], CHATML, train_on=train_on)
    assert rows_of(token_rows) == rows_of(expected)
    line = f'have messages with "train": true or "weight": 1 that --data.train_on {train_on} does'
    assert [line in said for said in token_rows.report] == [True] * is_told


def test_a_last_answer_that_is_trained_and_nothing_ends():
    """Only the template's last turn ends, and it leaves itself out."""
    tokenizer = build_tokenizer("eos_last")
    messages = [*FOUR[:3], FOUR[3] | {"weight": 0}]
    assert ("warning", "no-end-token") in codes_of([{"messages": messages}], tokenizer)
    assert ("warning", "no-end-token") not in codes_of([{"messages": FOUR}], tokenizer)


def test_what_a_template_leaves_out_is_refused_whether_it_is_trained_or_not():
    tokenizer = build_tokenizer("chatml")
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'user' or loop.last %}"
        "{{ m.content + '<|im_end|>' }}{% endif %}{% endfor %}"
    )
    silent = [FOUR[0], FOUR[1] | {"train": False}, *FOUR[2:]]
    for train_on, how in (
        ("assistant", "leaves"),
        ("last_assistant", "leaves"),
        ("all", "does not"),
    ):
        with pytest.raises(DataError, match=rf"template {how}.* messages\[1\].content"):
            tokenize([{"messages": silent}], tokenizer, train_on=train_on)
