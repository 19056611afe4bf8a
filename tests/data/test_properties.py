"""Whatever the text: the ids are the tokenizer's own, and the answers alone are trained."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrecipes.config.sections import DataConfig
from ftrecipes.data.encode import Encoder
from ftrecipes.data.facts import IGNORED
from ftrecipes.data.formats import choose_reader
from ftrecipes.data.readers import alpaca_prompt
from ftrecipes.data.rows import collect_rows
from tests.data.dialogs import pieces_of
from tests.data.token_bytes import expected_labels
from tests.data.tool_dialogs import TOOL, calls, says
from tests.tiny_tokenizers import FAMILIES, TOOL_FAMILIES, build_tokenizer

THOROUGH = settings(max_examples=60, deadline=None, derandomize=True)
TEMPLATES = [name for name, family in FAMILIES.items() if family.template]
TOKENIZERS = {name: build_tokenizer(name, pad="eos") for name in [*FAMILIES, *TOOL_FAMILIES]}
BARE = {
    "none": TOKENIZERS["none"],
    "bos": build_tokenizer("none", add_bos=True, add_eos=True),
    "words": build_tokenizer("mistral", add_bos=True),
}
# What templates, tokenizers and thoughts make something of, among any characters that there are.
AWKWARD = ["<think>\n", "</think>", "assistant", "\n\n", "  ", "\t", "\u2028", "e\u0301", "<|im"]
AWKWARD += ["[INST", ":", "the", "\U0001f642", "\U0001f468\u200d\U0001f469", "\u4f60\u597d"]
LETTERS = st.text(st.characters(codec="utf-8", exclude_characters="\u2581"), max_size=12)
WORDS = st.lists(st.one_of(LETTERS, st.sampled_from(AWKWARD)), max_size=6).map("".join)
TEXT = WORDS.map(lambda text: text if text.strip() else f"{text}x")
TURNS = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3)


def labelled(row: dict, tokenizer) -> tuple[list[int], list[int]]:
    """Ids and labels of one row."""
    read = choose_reader(collect_rows([row], name="rows"), tokenizer, DataConfig())
    encoder = Encoder(tokenizer)
    [made] = encoder.encode([encoder.render(read(row))])
    return made.input_ids.tolist(), made.labels.tolist()


def messages_of(turns: list[tuple[str, str]]) -> list[dict]:
    return [
        message
        for question, answer in turns
        for message in (says("user", question), says("assistant", answer))
    ]


@pytest.mark.parametrize("family", TEMPLATES)
@THOROUGH
@given(turns=TURNS)
def test_dialogs(family, turns):
    """The reference writes the template by hand and counts bytes; see token_bytes.py."""
    tokenizer, messages = TOKENIZERS[family], messages_of(turns)
    pieces = pieces_of(family, messages)
    ids, labels = labelled({"messages": messages}, tokenizer)
    assert ids == tokenizer.apply_chat_template(messages)["input_ids"]
    assert labels == expected_labels(tokenizer, pieces)


@pytest.mark.parametrize("family", ["chatml", "llama3", "gemma", "qwen"])
@THOROUGH
@given(turns=TURNS)
def test_the_trained_tokens_are_the_answers_and_their_ends(family, turns):
    """Of templates whose headers end in a special token or a line end, which no word swallows."""
    tokenizer, messages = TOKENIZERS[family], messages_of(turns)
    ids, labels = labelled({"messages": messages}, tokenizer)
    end = {"gemma": "<end_of_turn>"}.get(family, tokenizer.eos_token)
    trims = family in ("llama3", "gemma")
    answers = [answer.strip() if trims else answer for _, answer in turns]
    trained = tokenizer.decode([label for label in labels if label != IGNORED])
    assert trained == "".join(answer + end for answer in answers)
    assert labels.count(tokenizer.convert_tokens_to_ids(end)) >= len(turns)
    assert ids == tokenizer.apply_chat_template(messages)["input_ids"]


@pytest.mark.parametrize("family", ["qwen", "llama3_tools", "mistral_tools", "qwen3"])
@THOROUGH
@given(question=TEXT, result=TEXT, answer=TEXT, value=LETTERS)
def test_calls_of_tools(family, question, result, answer, value):
    tokenizer = TOKENIZERS[family]
    made = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": value}}}
    messages = [
        says("user", question),
        calls(made),
        says("tool", result, tool_call_id="1"),
        says("assistant", answer),
    ]
    ids, labels = labelled({"messages": messages, "tools": [TOOL]}, tokenizer)
    assert ids == tokenizer.apply_chat_template(messages, tools=[TOOL])["input_ids"]
    unasked = [tokenizer.eos_token_id] * 2
    assert [label for label in labels if label == tokenizer.eos_token_id][:2] == unasked
    whole = tokenizer.apply_chat_template(messages[:1], tools=[TOOL], add_generation_prompt=True)
    opening = len(whole["input_ids"])
    assert set(labels[: opening - 1]) == {IGNORED}


@pytest.mark.parametrize("name", BARE)
@THOROUGH
@given(prompt=TEXT, answer=TEXT)
def test_plain_text(name, prompt, answer):
    """BOS as the tokenizer does, one EOS, and between them the ids of the text."""
    tokenizer = BARE[name]
    eos = tokenizer.eos_token_id
    opening = [tokenizer.bos_token_id] if name != "none" else []
    rows = [
        ({"text": answer}, ""),
        ({"prompt": prompt, "completion": answer}, prompt),
    ]
    if name != "words":
        rows.append(({"instruction": prompt, "output": answer}, alpaca_prompt(prompt)))
    for row, before in rows:
        ids, labels = labelled(row, tokenizer)
        assert ids == [*opening, *_ids(tokenizer, before + answer), eos]
        expected = expected_labels(tokenizer, [(before, False), (answer, True)])
        assert labels == [IGNORED] * len(opening) + expected + [eos]


def _ids(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]
