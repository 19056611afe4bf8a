"""Whose words are trained: by the flag, and by what the messages say of themselves."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrecipes.config.errors import DataError
from ftrecipes.data.facts import IGNORED
from tests.data.dialogs import TURNS, chat, rows_of, tokenize, trained_text
from tests.data.test_properties import TEXT
from tests.data.token_bytes import expected_labels
from tests.data.tool_dialogs import TOOL, calls, says
from tests.tiny_tokenizers import FAMILIES, build_tokenizer

WORDS = ("assistant", "last_assistant", "all")
TOKENIZERS = {name: build_tokenizer(name, pad="eos") for name in [*TURNS, "qwen"]}
CHATML = TOKENIZERS["chatml"]
MARKS = st.sampled_from([{}, {"train": True}, {"train": False}, {"weight": 0}, {"weight": 1}])
MARKED = st.lists(st.tuples(TEXT, MARKS, TEXT, MARKS), min_size=1, max_size=3)
THOROUGH = settings(max_examples=40, deadline=None, derandomize=True)


def marked(turns: list[tuple]) -> list[dict]:
    """A dialog of (question, what it says of its training, answer, what it says)."""
    return [
        message
        for question, its, answer, other in turns
        for message in (says("user", question, **its), says("assistant", answer, **other))
    ]


def is_out(message: dict) -> bool:
    return message.get("train") is False or message.get("weight") == 0


def pieces_of(family: str, messages: list[dict], train_on: str) -> list[tuple[str, bool]]:
    """What the family's template writes, by hand: text, and whether it is to be trained."""
    answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    chosen = {"assistant": answers, "last_assistant": answers[-1:], "all": range(len(messages))}
    kept = [i for i in chosen[train_on] if not is_out(messages[i])]
    everything = train_on == "all" and bool(kept)
    pieces = [(FAMILIES[family].bos, False)] if family in ("llama3", "mistral", "gemma") else []
    for index, message in enumerate(messages):
        is_last = index == len(messages) - 1
        header, body, after = TURNS[family](message["role"], message["content"], is_last)
        is_kept = index in kept
        if message["role"] == "user":
            # Of what is no answer the words alone are left out.
            turn, words = header + body, message["content"]
            words = words.strip() if family in ("llama3", "gemma") else words
            at = len("[INST] ") if family == "mistral" else len(header)
            header, body, after = turn[:at], words, turn[at + len(words) :] + after
        pieces += [(header, everything), (body, is_kept), (after, everything)]
    return pieces


@pytest.mark.parametrize("train_on", WORDS)
@pytest.mark.parametrize("family", TURNS)
def test_every_family_by_hand(family, train_on):
    """M10, M11: a middle answer and a question leave themselves out; no ids change with that."""
    tokenizer = TOKENIZERS[family]
    turns = [("What?", {}, "Paris.", {}), ("Sure?", {"train": False}, " No\n", {"weight": 0})]
    messages = marked([*turns, ("And?", {}, "<think>\nhm\n</think>\n\nThe end", {"weight": 1})])
    [(ids, labels)] = rows_of(tokenize([{"messages": messages}], tokenizer, train_on=train_on))
    assert ids == tokenizer.apply_chat_template(messages)["input_ids"]
    assert labels == expected_labels(tokenizer, pieces_of(family, messages, train_on))


@pytest.mark.parametrize("train_on", WORDS)
@pytest.mark.parametrize("family", TURNS)
@THOROUGH
@given(turns=MARKED)
def test_any_words_and_marks(family, train_on, turns):
    tokenizer, messages = TOKENIZERS[family], marked(turns)
    expected = expected_labels(tokenizer, pieces_of(family, messages, train_on))
    row = {"messages": messages}
    if all(label == IGNORED for label in expected[1:]):
        with pytest.raises(DataError, match="None of 1 rows has a token to train on"):
            tokenize([row], tokenizer, train_on=train_on)
        return
    [(ids, labels)] = rows_of(tokenize([row], tokenizer, train_on=train_on, truncation="error"))
    assert ids == tokenizer.apply_chat_template(messages)["input_ids"]
    assert labels == expected


@pytest.mark.parametrize("family", ["chatml", "llama3", "gemma", "qwen"])
@THOROUGH
@given(turns=MARKED)
def test_the_trained_tokens_are_the_words_and_their_ends(family, turns):
    """Read back from the labels alone; of templates whose marks no word swallows."""
    tokenizer, messages = TOKENIZERS[family], marked(turns)
    end = {"gemma": "<end_of_turn>"}.get(family, tokenizer.eos_token)
    trims = family in ("llama3", "gemma")
    answers = [
        "" if is_out(message) else (answer.strip() if trims else answer) + end
        for message, (_, _, answer, _) in zip(messages[1::2], turns, strict=True)
    ]
    other = chat("q", "a")
    written = tokenizer.apply_chat_template(messages, tokenize=False)
    for train_on, expected in (
        ("assistant", "".join(answers)),
        ("last_assistant", answers[-1]),
        ("all", written.removeprefix(tokenizer.bos_token)),
    ):
        # What `all` makes of marks is counted in bytes above.
        row = {"messages": messages if train_on != "all" else list(map(unmarked, messages))}
        (_, labels), _ = rows_of(tokenize([row, other], tokenizer, train_on=train_on))
        assert trained_text(tokenizer, labels) == expected


def unmarked(message: dict) -> dict:
    return {key: message[key] for key in ("role", "content")}


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call><|im_end|>'


@pytest.mark.parametrize(
    ("train_on", "silent", "expected"),
    [
        ("assistant", [], f"{CALL}Yes<|im_end|>"),
        ("assistant", [2], "Yes<|im_end|>"),
        ("assistant", [4], CALL),
        ("last_assistant", [], "Yes<|im_end|>"),
        ("all", [], "{whole}"),
        ("all", [0, 3], "{whole less words}"),
        ("all", [2], "{whole less the call}"),
    ],
)
def test_calls_and_results(train_on, silent, expected):
    """A call is an answer; of its result, and of the system text, the words alone are left out."""
    tokenizer, function = TOKENIZERS["qwen"], {"name": "f", "arguments": {"a": "b"}}
    messages = [
        says("system", "Be brief"),
        says("user", "Does it rain?"),
        calls({"id": "1", "type": "function", "function": function}),
        says("tool", "the rain", tool_call_id="1"),
        says("assistant", "Yes"),
    ]
    whole = tokenizer.apply_chat_template(messages, [TOOL], tokenize=False)
    for index in silent:
        messages[index]["train"] = False
    row = {"messages": messages, "tools": [TOOL]}
    [(_, labels)] = rows_of(tokenize([row], tokenizer, train_on=train_on))
    words = {
        "{whole}": whole,
        "{whole less words}": whole.replace("Be brief", "").replace("the rain", ""),
        "{whole less the call}": whole.replace(CALL, ""),
    }
    assert trained_text(tokenizer, labels) == words.get(expected, expected)
