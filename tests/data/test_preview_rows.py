"""Tokens of a preview: texts, kinds and reasons, against the rows and micro-batches of a run."""

import pytest

from ftrecipes.config.sections import DataConfig
from ftrecipes.data.facts import IGNORED
from ftrecipes.data.preview_rows import END, FIRST, RowViewer
from ftrecipes.data.rows import collect_rows
from ftrecipes.data.token_texts import TokenTexts
from ftrecipes.data.tokenize import tokenize_rows
from tests.data.dialogs import chat, rows_of
from tests.data.loader_rows import make_loader
from tests.data.tool_dialogs import ASKED
from tests.tiny_tokenizers import FAMILIES, build_tokenizer

WORDS = (
    "What is that? \U0001f469\u200d\U0001f680",
    " \u00e9t\u00e9\n\n\u65e5\u672c  ",
    "And?",
    "Paris.",
)
DIALOGS = [chat(*WORDS), chat("Hello", "I am well"), chat("a", "b", "c", "The capital " * 6)]


def view_all(rows, tokenizer, *, context_length=4096, strategy="packing", **data):
    """Each row of the split as it is shown, and the split."""
    raw = collect_rows(rows, name="rows")
    config = DataConfig(**data)
    made = tokenize_rows(raw, tokenizer, data=config, context_length=context_length)
    loader = make_loader(made, context_length=context_length, strategy=strategy)
    viewer = RowViewer(raw, made, tokenizer, data=config, loader=loader)
    return [viewer.view(index) for index in range(len(made))], made, loader


def said(row, reason: str) -> str:
    return "".join(token.text for token in row.tokens if token.reason == reason)


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_of_the_tokens_join_to_the_text(family):
    tokenizer = build_tokenizer(family)
    texts = TokenTexts(tokenizer)
    for words in (*WORDS, "\U0001f469\u200d\U0001f680", "  two  blanks", "a</s>b", ""):
        ids = tokenizer(words, add_special_tokens=False)["input_ids"]
        found = texts(ids)
        assert len(found) == len(ids)
        assert "".join(found) == tokenizer.decode(ids, clean_up_tokenization_spaces=False)


def test_a_character_of_two_tokens():
    tokenizer = build_tokenizer("none")
    ids = tokenizer("\u00e9a", add_special_tokens=False)["input_ids"]
    assert len(ids) == 3
    assert TokenTexts(tokenizer)(ids) == ["\u00e9", "", "a"]


def test_a_character_that_was_cut_in_two_stands_as_it_is():
    tokenizer = build_tokenizer("none")
    ids = tokenizer("\u65e5", add_special_tokens=False)["input_ids"]
    assert len(ids) == 3
    assert TokenTexts(tokenizer)(ids) == ["\u65e5", "", ""]
    assert TokenTexts(tokenizer)(ids[:2]) == ["\ufffd", "\ufffd"]


@pytest.mark.parametrize("strategy", ["packing", "padding"])
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "none"])
def test_ids_and_labels_are_those_of_rows_and_micro_batches(family, strategy):
    tokenizer = build_tokenizer(family)
    shown, made, loader = view_all(DIALOGS, tokenizer, strategy=strategy)
    batches = [batch for step in loader.world_plan(0) for batch in step]
    for index, (row, (ids, labels)) in enumerate(zip(shown, rows_of(made), strict=True)):
        assert [token.id for token in row.tokens] == ids
        held = batches[row.place.number - 1]
        assert held[row.place.at] == index
        batch = loader.micro_batch(held)
        start = sum(batch.lengths[: row.place.at])
        given = batch.labels[start : start + len(ids)].tolist()
        assert [token.kind == "trained" for token in row.tokens] == [n != IGNORED for n in given]
        assert given[1:] == labels[1:]
        assert row.num_trained == int(made.token_counts[index])
        assert [size for _, size in row.place.rows] == list(batch.lengths)
        joined = "".join(text for segment in row.segments() for text in segment.texts)
        assert joined == tokenizer.decode(ids, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("family", ["chatml", "llama3", "generation", "eos_last", "no_end"])
def test_whose_words_they_are(family):
    tokenizer = build_tokenizer(family)
    row = view_all([chat("What is?", "It is Paris.", "And?", "No.", system="Be kind")], tokenizer)[
        0
    ][0]
    # A blank that a token begins with goes with the word behind it.
    assert said(row, "user").replace(" ", "") == "Whatis?And?"
    assert said(row, "system").strip() == "Be kind"
    assert said(row, "assistant").replace(" ", "") == "ItisParis.No."
    ends = {"chatml": 2, "llama3": 2, "generation": 2, "eos_last": 1, "no_end": 0}[family]
    assert said(row, END) == FAMILIES[family].eos * ends
    assert {token.kind for token in row.tokens if token.reason in ("user", "system")} == {"context"}


def test_answers_that_are_not_trained_are_the_assistants_all_the_same():
    tokenizer = build_tokenizer("chatml")
    row = view_all([chat("a", "bread", "c", "salt")], tokenizer, train_on="last_assistant")[0][0]
    assert said(row, "assistant, not trained") == "bread"
    assert said(row, "assistant") == "salt"


@pytest.mark.parametrize("family", ["chatml", "mistral"])
def test_what_the_template_writes_is_its_own_where_all_is_trained(family):
    rows = [chat("bread", "salt"), chat("bread", "salt")]
    rows[1]["messages"][0]["train"] = False
    for row in view_all(rows, build_tokenizer(family), train_on="all")[0]:
        assert [said(row, who).strip() for who in ("assistant", END)] == ["salt", ""]
        assert {token.reason for token in row.tokens if token.kind == "trained"} <= {
            *("template", "user", "assistant")
        }


def test_what_a_message_says_of_its_training_hides_no_role():
    row = chat("a", "bread", "c", "salt")
    row["messages"][1]["train"] = False
    shown = view_all([row], build_tokenizer("chatml"))[0][0]
    assert said(shown, "assistant, not trained") == "bread"
    assert (said(shown, "assistant"), said(shown, "user")) == ("salt", "ac")
    reading = build_tokenizer("chatml")  # a template that would write the key if it were there
    reading.chat_template += "{{ messages | map(attribute='train') | select('defined') | list }}"
    assert said(view_all([row], reading)[0][0], "user") == "ac"


@pytest.mark.parametrize("family", ["qwen", "llama3_tools", "mistral_tools"])
def test_calls_of_tools_and_their_results(family):
    """Arguments reach templates in another form than rows have them in."""
    shown = view_all([ASKED], build_tokenizer(family))[0][0]
    assert said(shown, "user").strip() == "Does it rain?"
    assert said(shown, "tool").strip('"') == "yes"
    assert "K\u00f6ln" in said(shown, "part of the answer")
    assert said(shown, "assistant").strip() == "It does."


def test_a_text_that_brings_its_own_marks():
    tokenizer = build_tokenizer("none", add_bos=True)
    rows = [{"prompt": "<s>Say it:", "completion": f" well{end}"} for end in ("", "</s>")]
    for row in view_all(rows, tokenizer)[0]:
        assert said(row, "prompt") == "<s>Say it:"
        assert said(row, "answer") + said(row, END) == " well</s>"


def test_a_blank_before_a_word_is_not_the_headers():
    """Of a token that begins in the template the words decide, as they do for labels."""
    tokenizer = build_tokenizer("mistral")
    row = view_all([chat("Hello", "Paris")], tokenizer)[0][0]
    assert said(row, "user").strip() == "Hello"
    assert said(row, "assistant").strip() == "Paris"
    rows = [{"prompt": "And ", "completion": "the fox"}]
    [row] = view_all(rows, build_tokenizer("none"))[0]
    assert (said(row, "prompt"), said(row, "answer")) == ("And", " the fox")


def test_plain_text_and_finished_tokens():
    tokenizer = build_tokenizer("none", add_bos=True)
    [row] = view_all([{"prompt": "Say it:", "completion": " well"}], tokenizer)[0]
    assert [(token.text, token.reason) for token in (row.tokens[0], row.tokens[-1])] == [
        ("<s>", "template"),
        ("</s>", END),
    ]
    assert (said(row, "prompt"), said(row, "answer")) == ("Say it:", " well")
    rows = [{"input_ids": [40, 41, 42], "labels": [40, -100, 42]}]
    [row] = view_all(rows, tokenizer)[0]
    assert [token.reason for token in row.tokens] == [
        FIRST,
        "its label is -100",
        "its label is given",
    ]
    assert [token.kind for token in row.tokens] == ["context", "context", "trained"]


@pytest.mark.parametrize("truncation", ["right", "left", "split"])
def test_cut_rows_keep_whose_words_they_are(truncation):
    tokenizer = build_tokenizer("chatml")
    words = ("What is the capital? " * 2, "The capital of France is Paris. " * 8)
    [whole] = view_all([chat(*words)], tokenizer)[0]
    length = len(whole.tokens)
    cut = view_all([chat(*words)], tokenizer, context_length=50, truncation=truncation)[0]
    starts = {"right": [0], "left": [length - 50], "split": range(0, length - 1, 49)}[truncation]
    starts = [
        start
        for start in starts
        if whole.tokens[start + 1 : start + 50]
        and any(token.kind == "trained" for token in whole.tokens[start + 1 : start + 50])
    ]
    assert len(cut) == len(starts)
    for row, start in zip(cut, starts, strict=True):
        assert (row.number, row.full_length, row.is_cut) == (1, length, True)
        assert row.tokens[1:-1] == whole.tokens[start + 1 : start + 50][: len(row.tokens) - 2]
        if start and whole.tokens[start].kind == "trained":
            assert row.tokens[0].reason == FIRST


def test_a_row_without_a_trained_token_is_in_no_micro_batch():
    rows = [{"input_ids": [5, 6], "labels": [5, -100]}, {"input_ids": [5, 6], "labels": [-100, 6]}]
    shown = view_all(rows, build_tokenizer("none"))[0]
    assert (shown[0].place, shown[0].num_trained) == (None, 0)
    assert shown[1].place.rows == (("rows row 2", 2),)


def test_a_template_that_writes_something_else_each_time_tells_no_roles():
    """Such a row is shown with its own ids and labels; only who says them is not known."""
    tokenizer = build_tokenizer("chatml")
    raw = collect_rows([chat("Hello", "I am well")], name="rows")
    made = tokenize_rows(raw, tokenizer, data=DataConfig(), context_length=64)
    tokenizer.chat_template = tokenizer.chat_template.replace("<|im_start|>", "<|im_start|>1")
    viewer = RowViewer(raw, made, tokenizer, data=DataConfig(), loader=make_loader(made))
    row = viewer.view(0)
    assert [token.id for token in row.tokens] == made.input_ids.tolist()
    assert {token.reason for token in row.tokens} == {"answer", END, "not an answer"}
