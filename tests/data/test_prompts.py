"""Prompts to answer: the files they come from, and the ids they become."""

import json

import pytest

from ftrecipes.config.errors import DataError
from ftrecipes.config.sections import SamplesConfig
from ftrecipes.data.prompts import PromptRefused, encode_prompt, read_prompts
from tests.data.dialogs import chat, rows_of, tokenize
from tests.tiny_tokenizers import build_tokenizer

CHATML = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def read(path, *, limit=None, tokenizer="chatml", **settings):
    samples = SamplesConfig(prompts=str(path), **settings)
    return read_prompts(samples, build_tokenizer(tokenizer), limit=limit)


def test_each_line_of_a_text_file_is_a_prompt(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"\xef\xbb\xbfTell me about rain.\r\n\r\n  \nAnd salt?")
    prompts = read(path, max_new_tokens=7)
    assert [prompt.text for prompt in prompts] == ["Tell me about rain.", "And salt?"]
    tokenizer = build_tokenizer("chatml")
    assert [tokenizer.decode(prompt.ids) for prompt in prompts] == [
        CHATML.format(text) for text in ("Tell me about rain.", "And salt?")
    ]
    assert {prompt.max_new_tokens for prompt in prompts} == {7}


def test_rows_with_a_prompt_or_with_messages(tmp_path):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Rain?"},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        "".join(json.dumps(r) + "\n" for r in ({"prompt": "a\nb"}, {"messages": messages}))
    )
    first, second = read(path)
    tokenizer = build_tokenizer("chatml")
    assert tokenizer.decode(first.ids) == CHATML.format("a\nb")
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert tokenizer.decode(second.ids) == text
    assert second.text == "Rain?"


@pytest.mark.parametrize("family", ["chatml", "llama3", "mistral", "gemma", "none"])
def test_the_prompt_is_the_one_that_was_trained_on(family):
    """With a chat template and without one: the ids before the first label."""
    tokenizer = build_tokenizer(family, add_bos=True)
    instruction = {"instruction": "Hi there", "output": "yes"}
    row = chat("Hi there", "yes") if tokenizer.chat_template else instruction
    [(ids, labels)] = rows_of(tokenize([row], tokenizer))
    first_label = next(i for i, label in enumerate(labels) if label != -100)
    found = encode_prompt(tokenizer, [{"role": "user", "content": "Hi there"}])
    assert found == list(ids[:first_label])


@pytest.mark.parametrize("family", ["chatml", "none"])
def test_a_plain_prompt_is_what_rows_of_strings_begin_with(family):
    tokenizer = build_tokenizer(family)
    row = {"prompt": "Once upon", "completion": " a time"}
    [(ids, labels)] = rows_of(tokenize([row], tokenizer))
    first_label = next(i for i, label in enumerate(labels) if label != -100)
    messages = [{"role": "user", "content": "Once upon"}]
    assert encode_prompt(tokenizer, messages, plain=True) == list(ids[:first_label])
    with pytest.raises(PromptRefused, match="a plain prompt has no place for other roles"):
        encode_prompt(tokenizer, [{"role": "system", "content": "Hi"}, *messages], plain=True)


def test_an_answer_ends_where_the_positions_of_the_model_do(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("Hi\n")
    [prompt] = read(path, max_new_tokens=50)
    [cut] = read(path, max_new_tokens=50, limit=len(prompt.ids) + 20)
    assert (prompt.max_new_tokens, cut.max_new_tokens) == (50, 20)
    with pytest.raises(DataError, match=r"prompts\.txt line 1: .* takes fewer than"):
        read(path, limit=len(prompt.ids))


def test_without_a_file_there_are_none():
    assert read_prompts(SamplesConfig(), build_tokenizer("chatml"), limit=None) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"prompt": "Hi"', "no whole JSON object"),
        ('["Hi"]', "the row is a list; expected an object"),
        ('{"text": 5}', "key 'text' is a number"),
        ('{"prompt": ""}', "key 'prompt' is empty"),
        ('{"question": "Hi"}', "needs prompt or messages; has question"),
        ('{"prompt": "a", "messages": []}', "needs prompt or messages; has prompt, messages"),
        ('{"messages": []}', "empty list"),
        ('{"messages": "Hi"}', "key 'messages'"),
        ('{"messages": [{"role": "user"}]}', "content"),
        ('{"messages": [{"role": "assistant", "content": "b"}]}', "leave out the answer"),
    ],
)
def test_rows_that_are_no_prompt_are_named(tmp_path, line, expected):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "good"}\n' + line + "\n")
    with pytest.raises(DataError) as caught:
        read(path)
    # A file that starts with a bracket is an array of JSON; this one does not.
    assert "1 of 2 rows can not be used" in str(caught.value)
    assert "prompts.jsonl line 2" in str(caught.value)
    assert expected in str(caught.value)
    assert "--samples.prompts" in str(caught.value)


def test_an_empty_file_is_an_error(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("\n")
    with pytest.raises(DataError, match="holds no prompt"):
        read(path)


def test_without_a_template_there_is_no_place_for_a_dialog():
    messages = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]
    with pytest.raises(PromptRefused, match="no chat template"):
        encode_prompt(build_tokenizer("none"), messages)
