"""The check of template and rows has nothing to say of sound rows."""

import random

import pytest

from ftrecipes.config.chat_templates import BUILT_IN
from ftrecipes.config.sections import DataConfig
from ftrecipes.data.built_in_templates import settle_chat_template
from tests.data.dialogs import chat
from tests.data.examined import codes_of, findings_of
from tests.data.tool_dialogs import ASKED, call, calls, dialog, result, says
from tests.tiny_tokenizers import build_tokenizer

SIX = ("chatml", "llama3", "mistral", "gemma", "thinking", "generation")
EXPECTED = {
    "gemma": [("info", "end-is-not-eos")],
    "thinking": [("info", "history-rewritten")],
}
THOUGHTS = "<think>\nhm, well\n</think>\n\n"


def dialogs(family: str) -> list[dict]:
    """Single and several turns, system texts, and characters of several tokens at borders."""
    smile = "\U0001f642"
    # This template opens the thoughts of the last answer.
    first = THOUGHTS if family == "thinking" else ""
    rows = [
        chat("What is the capital?", f"{first}Paris."),
        chat("Hi", "Hello", "And?", f"{first}I am well."),
        chat(f"Hi {smile}", f"{first}{smile} yes {smile}"),
        chat("caf\u00e9 \u4f60\u597d", f"{first}\u4f60\u597d"),
        chat("Hi\n", f"{first}\n yes\n"),
        chat("None of it?", f"{first} None"),
        {"messages": [*chat("Hi", f"{first}Yo")["messages"], says("user", "Thanks")]},
    ]
    if family == "thinking":
        rows.pop()  # the last answer is not the last message, and has its thoughts taken
    if family != "gemma":  # it has no system role
        rows.append(chat("Hi", f"{first}Yo", system="Be brief."))
    return rows


@pytest.mark.parametrize("pad", ["own", None])
@pytest.mark.parametrize("family", SIX)
def test_public_families(family, pad):
    found = codes_of(dialogs(family), build_tokenizer(family, pad=pad))
    assert found == EXPECTED.get(family, [])


@pytest.mark.parametrize("train_on", ["last_assistant", "all"])
@pytest.mark.parametrize("family", SIX)
def test_whatever_is_trained(family, train_on):
    found = codes_of(dialogs(family), build_tokenizer(family), train_on=train_on)
    # Where all is trained, nothing is known of what ends an answer.
    is_all = family == "gemma" and train_on == "all"
    assert found == ([] if is_all else EXPECTED.get(family, []))


def test_a_tokenizer_without_an_end_token():
    tokenizer = build_tokenizer("chatml")
    tokenizer.eos_token = None
    rows = [chat("Hi", "Yo"), chat("Hi", "Yo " * 40)]
    assert codes_of(rows, tokenizer) == []
    assert codes_of(rows, tokenizer, context_length=40) == [("warning", "answer-cut")]


def test_answers_that_leave_themselves_out():
    row = chat("Hi", "no", "And?", "yes")
    row["messages"][1]["train"] = False
    assert codes_of([row], build_tokenizer("chatml")) == []
    row["messages"][3]["weight"] = 0
    del row["messages"][1]["train"]
    assert codes_of([row], build_tokenizer("chatml")) == []


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("llama3_tools", []),
        ("mistral_tools", [("info", "history-rewritten")]),  # tools go before the last question
        ("qwen", [("info", "system-added")]),
    ],
)
def test_calls_of_tools(family, expected):
    again = dialog(
        says("user", "Does it rain in K\u00f6ln?"),
        calls(call(number="00000001")),
        result("no", "00000001"),
        says("assistant", "No."),
        says("user", "And now?"),
        calls(call('{"town": "Bonn"}', number="00000002")),
    )
    assert codes_of([ASKED, again], build_tokenizer(family)) == expected


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_templates_on_the_tokenizer_that_they_are_made_for(name):
    """Of alpaca the task at the beginning is a text of its own, of zephyr marks are pieces."""
    family = name if name in SIX else "none"
    tokenizer = build_tokenizer(family)
    settle_chat_template(tokenizer, DataConfig(chat_template=name))
    found = codes_of(dialogs(name), tokenizer, chat_template=name)
    expected = {
        "alpaca": [("info", "system-added")],
        "zephyr": [("info", "marks-in-pieces")],
    }
    assert found == expected.get(name, [])


def test_chatml_on_a_base_model_with_new_tokens():
    tokenizer = build_tokenizer("none")
    tokenizer.add_tokens(["<|im_start|>", "<|im_end|>"])
    settle_chat_template(tokenizer, DataConfig(chat_template="chatml"))
    assert codes_of(dialogs("chatml"), tokenizer, chat_template="chatml") == []


@pytest.mark.parametrize(
    "row",
    [
        {"text": "the cat sees it"},
        {"instruction": "Say yes.", "output": "yes"},
        {"prompt": "The capital of France is", "completion": " Paris"},
        {"input_ids": [0, 40, 41, 42], "labels": [0, 40, 41, 42]},
    ],
)
def test_rows_that_are_no_dialogs(row):
    tokenizer = build_tokenizer("none", add_bos=True)
    assert tokenizer.bos_token_id == 0
    assert codes_of([row, row], tokenizer) == []


def test_tokenised_dialogs_with_their_labels():
    tokenizer = build_tokenizer("chatml")
    ids = tokenizer.apply_chat_template(chat("Hi", "Yo")["messages"])["input_ids"]
    labels = [-100] * (len(ids) - 4) + ids[-4:-1] + [-100]
    assert codes_of([{"input_ids": ids, "labels": labels}], tokenizer) == []


def test_a_prompt_whose_blank_is_lost_in_plain_text():
    row = {"prompt": "The capital is ", "completion": "the fox"}
    found = codes_of([row], build_tokenizer("mistral"))
    assert found == [("warning", "prompt-tokens-differ")]


def test_bos_before_each_question_is_a_templates_way():
    """As Llama 2."""
    tokenizer = build_tokenizer("mistral")
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'user' %}"
        "{{ bos_token + '[INST] ' + m.content + ' [/INST]' }}"
        "{% else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}"
    )
    assert codes_of([chat("Hi", "Yo", "And?", "No")], tokenizer) == []


def test_bos_that_opens_each_turn_is_a_templates_way():
    """As SmolLM2: the beginning of turns, their end, and the pad token are BOS, EOS and EOS."""
    tokenizer = build_tokenizer("chatml", pad="eos")
    tokenizer.bos_token = "<|im_start|>"
    assert codes_of(dialogs("chatml"), tokenizer) == [("info", "pad-is-end")]
    text = tokenizer.apply_chat_template(chat("Hi", "Yo")["messages"], tokenize=False)
    found = codes_of([{"text": text}], tokenizer)
    assert found == [("warning", "marks-trained"), ("info", "pad-is-end")]
    twice = chat("Hi<|im_start|>", "Yo")
    assert ("warning", "control-words") in codes_of([twice], tokenizer)


@pytest.mark.parametrize("truncation", ["right", "left", "drop", "split"])
def test_rows_that_were_cut_are_still_known(truncation):
    """The sampled row is found in what its template writes again, whatever part is left of it."""
    rows = [chat("Hi", "Yo"), chat("Hi", "well, " * 60 + "yes")]
    options = {"context_length": 64, "truncation": truncation}
    found = codes_of(rows, build_tokenizer("chatml"), **options)
    assert found == ([("warning", "answer-cut")] if truncation == "right" else [])


def test_many_rows_are_looked_at_in_no_time_and_one_in_any_place_is_found():
    tokenizer = build_tokenizer("llama3")
    rows = [chat(f"Hi {number}", "Yo") for number in range(3000)]
    rows[2345] = chat("Hi<|begin|>", "Yo")
    [found] = findings_of(rows, tokenizer)
    assert (found.code, found.source) == ("bos-repeated", "rows row 2346")
    assert "in 1 of 3000 rows" in found.text


@pytest.mark.parametrize("seed", range(20))
def test_random_dialogs_of_healthy_templates(seed):
    """Nothing is said of words that mean nothing to the template."""
    draw = random.Random(seed)
    letters = "abc \n\u00e9\U0001f642<|>[]/{}'\"None\u4f60"

    def words() -> str:
        return "x" + "".join(draw.choices(letters, k=draw.randint(0, 12)))

    rows = [chat(*(words() for _ in range(draw.choice([2, 4])))) for _ in range(4)]
    for family in ("chatml", "llama3", "mistral", "generation"):
        assert codes_of(rows, build_tokenizer(family)) == []
