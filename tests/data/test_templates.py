"""Chat templates that do not behave: answers are found in them, or the row is refused."""

import pytest

from ftrecipes.config.errors import DataError
from tests.data.dialogs import chat, rows_of, tokenize, trained_text
from tests.data.examined import codes_of
from tests.tiny_tokenizers import CHATML, build_tokenizer


def test_a_template_that_ends_only_the_last_answer():
    """M09: both answers have labels, the end token one, the next user's mark none."""
    tokenizer = build_tokenizer("eos_last")
    [(_, labels)] = rows_of(tokenize([chat("Hi", "Hello", "And?", "Paris")], tokenizer))
    assert trained_text(tokenizer, labels) == "HelloParis</s>"


def test_an_end_token_before_the_mark_of_an_answer():
    """M13: `<eos>Assistant:` opens a turn, and the pad token is the end token."""
    tokenizer = build_tokenizer("none", pad="eos")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ eos_token + m.role.title() + ':' + m.content }}{% endfor %}"
        "{% if add_generation_prompt %}{{ eos_token + 'Assistant:' }}{% endif %}"
    )
    rows = [chat("Hi", " Hello", "And?", " Paris")]
    [(_, labels)] = rows_of(tokenize(rows, tokenizer))
    assert trained_text(tokenizer, labels) == " Hello Paris"
    assert ("warning", "no-end-token") in codes_of(rows, tokenizer)


def test_thoughts_in_the_last_answer():
    """M11: every assistant turn has labels although the template drops earlier thoughts."""
    tokenizer = build_tokenizer("thinking")
    row = chat("1+1?", "<think>\neasy\n</think>\n\n2", "2+2?", "<think>\nhm\n</think>\n\n4")
    [(_, labels)] = rows_of(tokenize([row], tokenizer))
    assert trained_text(tokenizer, labels) == "2<|im_end|>hm\n</think>\n\n4<|im_end|>"


@pytest.mark.parametrize(
    "first",
    [
        "",
        "{# add_generation_prompt is not used #}",
        "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}"
        "{% endif %}",
    ],
)
def test_a_header_is_not_trained_when_the_template_has_no_generation_prompt(first):
    tokenizer = build_tokenizer("chatml")
    tokenizer.chat_template = first + CHATML.partition("{% if")[0]
    [(_, labels)] = rows_of(tokenize([chat("Hi", "Hello")], tokenizer))
    assert trained_text(tokenizer, labels) == "Hello<|im_end|>"


def test_the_system_text_is_the_rows_own():
    """M22: the template has a system text of its own for dialogs that bring none."""
    tokenizer = build_tokenizer("chatml")
    tokenizer.chat_template = (
        "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nBe kind<|im_end|>\n' }}"
        "{% endif %}" + CHATML
    )
    own, default = rows_of(
        tokenize([chat("Hi", "Salut", system="SPEAK FRENCH"), chat("Hi", "Hello")], tokenizer)
    )
    assert tokenizer.decode(own[0]).count("SPEAK FRENCH") == 1
    assert "Be kind" not in tokenizer.decode(own[0])
    assert "Be kind" in tokenizer.decode(default[0])
    assert trained_text(tokenizer, default[1]) == "Hello<|im_end|>"


def test_a_refusal_of_the_template_names_the_row():
    tokenizer = build_tokenizer("mistral")
    rows = [chat("Hi", "Hello"), {"messages": chat("", "Welcome", "Hi", "Hello")["messages"][1:]}]
    with pytest.raises(DataError, match=r"1 of 2 rows(.|\n)*test rows row 2.*must alternate"):
        tokenize(rows, tokenizer)


@pytest.mark.parametrize(
    "fault",
    [
        "{{ 1 / 0 }}",
        "{{ messages[0].content.nothing() }}",
        "{{ ''.join(messages) }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ '%c' % -1 }}",
        "{% if %}",
    ],
)
def test_whatever_a_template_raises_names_the_row(fault):
    tokenizer = build_tokenizer("chatml")
    # the second row alone meets it, but for the template that can not be read
    tokenizer.chat_template = (
        "{% if messages[0].content == 'bad' %}" + fault + "{% endif %}" + CHATML
    )
    with pytest.raises(DataError, match="test rows row 2: the chat template refuses the dialog"):
        tokenize([chat("Hi", "yes"), chat("bad", "yes")], tokenizer)


def test_several_templates_without_a_default():
    tokenizer = build_tokenizer("chatml")
    tokenizer.chat_template = {"one": CHATML, "two": CHATML}
    with pytest.raises(DataError, match="which of its chat templates"):
        tokenize([chat("Hi", "yes")], tokenizer)
    tokenizer.chat_template["default"] = CHATML
    assert len(tokenize([chat("Hi", "yes")], tokenizer)) == 1


def test_a_template_that_leaves_answers_out_is_refused():
    tokenizer = build_tokenizer("chatml")
    tokenizer.chat_template = CHATML.replace("message['content']", "message['content'][:2]")
    [(_, labels)] = rows_of(tokenize([chat("Hi", "Hello")], tokenizer))
    assert trained_text(tokenizer, labels) == "He<|im_end|>"
    tokenizer.chat_template = (
        "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    )
    with pytest.raises(DataError, match=r"test rows row 1: .*messages\[1\].content once"):
        tokenize([chat("Hi", "Hello")], tokenizer)


TURN = "{{ '<|' + m.role + '|>' + m.content }}"


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        # As Phi-3: an end of the dialog behind the end of the last turn.
        ("<|end|>{{ '\\n' }}{% if loop.last %}<|close|>{% endif %}", "a<|end|>b<|end|>\n<|close|>"),
        # As gpt-oss: the last turn has an end token of its own, which the model must produce.
        ("{% if loop.last %}<|close|>{% else %}<|end|>{% endif %}", "ab<|close|>"),
        # As OLMo: end tokens and no line ends.
        ("{% if m.role == 'assistant' %}<|end|>{% endif %}", "a<|end|>b<|end|>"),
    ],
)
def test_templates_that_end_the_last_turn_in_another_way(end, expected):
    tokenizer = build_tokenizer("none")
    tokenizer.add_special_tokens(
        {"extra_special_tokens": ["<|end|>", "<|close|>", "<|user|>", "<|assistant|>"]}
    )
    tokenizer.chat_template = (
        "{% for m in messages %}" + TURN + end + "{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    [(_, labels)] = rows_of(tokenize([chat("Hi", "a", "Ho", "b")], tokenizer))
    assert trained_text(tokenizer, labels) == expected


def test_a_template_that_writes_more_round_an_answer_with_thoughts():
    """No generation prompt, and empty thoughts where an answer has none."""
    tokenizer = build_tokenizer("none")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}<think>"
        "{{ m.content.split('</think>')[0] + '</think>' if '</think>' in m.content }}"
        "{{ '</think>' if '</think>' not in m.content }}"
        "{{ m.content.split('</think>')[-1] }}</s>{% else %}{{ m.content }}\n{% endif %}"
        "{% endfor %}"
    )
    plain, thoughts = rows_of(
        tokenize([chat("Hi", "yes"), chat("Hi", "hm, well</think>yes")], tokenizer)
    )
    assert trained_text(tokenizer, plain[1]) == "yes</s>"
    assert trained_text(tokenizer, thoughts[1]) == "hm, well</think>yes</s>"


@pytest.mark.parametrize(
    ("turn", "fault"),
    [
        ("{{ m.content + (m.content | length | string) + eos_token }}", "changes what follows"),
        ("{{ m.content.split('</think>')[-1] }}", "leaves an answer out"),
        ("{{ m.content + m.content }}", "content once"),
    ],
)
def test_answers_that_can_not_be_told_apart_are_refused(turn, fault):
    tokenizer = build_tokenizer("none")
    tokenizer.chat_template = "{% for m in messages %}" + turn + "{% endfor %}"
    with pytest.raises(DataError, match=f"test rows row 1: the chat template.*{fault}"):
        tokenize([chat("Hi", "hm</think>", "Ho", "yes")], tokenizer)


def test_thoughts_that_the_prompt_opens_are_not_trained_in_an_earlier_answer_either():
    tokenizer = build_tokenizer("thinking")
    row = chat("1+1?", "hm</think><think>\n2", "2+2?", "4")
    [(_, labels)] = rows_of(tokenize([row], tokenizer))
    assert trained_text(tokenizer, labels) == "2<|im_end|>4<|im_end|>"


def test_keys_of_messages_that_the_template_does_not_know_are_reported():
    row = chat("1+1?", "2")
    row["messages"][1] |= {"reasoning_content": "easy", "thinking": "", "name": "it"}
    report = tokenize([row, row], build_tokenizer("chatml")).report
    assert len(report) == 1
    assert report[0].startswith("2 of 2 rows have messages with the key 'reasoning_content'")
    assert tokenize([row], build_tokenizer("qwen3")).report == []
