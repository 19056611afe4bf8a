"""A preview put together: what it tells to look at, which rows it shows, what it refuses."""

import json

import pytest

from ftrecipes.config.errors import ConfigError, DataError
from ftrecipes.config.schema import RunConfig, TrainConfig
from ftrecipes.config.sections import DataConfig
from ftrecipes.data.preview import choose, find, preview
from ftrecipes.data.rows import collect_rows
from tests.data.dialogs import chat, tokenize
from tests.data.loader_rows import make_rows
from tests.tiny_tokenizers import build_tokenizer

TOKENIZER = build_tokenizer("chatml")
GOOD = [chat(f"Question {n}", f"Answer {n}" * n) for n in range(1, 9)]


def look(tmp_path, rows, *, val=(), num_rows=0, row=None, context_length=512, **data):
    files = {"train.jsonl": rows} | ({"val.jsonl": val} if val else {})
    for name, lines in files.items():
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        (tmp_path / name).write_text("".join(f"{text}\n" for text in texts))
    if val:
        data["val_file"] = str(tmp_path / "val.jsonl")
    train = TrainConfig(
        dataset=str(tmp_path / "train.jsonl"),
        context_length=context_length,
        batching_strategy="padding",
        batch_size_training=1,
    )
    config = RunConfig(train=train, data=DataConfig(**data))
    return preview(config, TOKENIZER, num_rows=num_rows, row=row)


def test_good_rows_give_nothing_to_look_at(tmp_path):
    found = look(tmp_path, GOOD, val=[chat("Another", "one")], num_rows=3)
    assert (found.notices, found.refusal, found.leaked) == ([], None, [])
    assert [totals.name for totals in found.totals] == ["train", "validation"]
    assert [(row.number, row.why) for row in found.rows] == [
        (1, "the first, the fewest trained tokens"),
        (8, "the longest"),
        (4, ""),
    ]


def test_bad_rows_are_all_told_and_the_others_shown(tmp_path):
    bad = ['{"messages": [', {"messages": []}, chat("Only a question")]
    found = look(tmp_path, [*GOOD[:2], *bad, *GOOD[2:]])
    assert [line.partition(":")[0] for line in found.totals[0].skipped] == [
        f"train.jsonl line {number}" for number in (3, 4, 5)
    ]
    assert (found.totals[0].read, found.totals[0].kept) == (11, 8)
    assert "3 of 11 rows can not be used" in str(found.refusal)
    [notice] = found.notices
    assert (notice.severity, notice.source) == ("error", "train.jsonl line 3")
    assert found.numbers == {"train.jsonl line 3": 3}
    skipping = look(tmp_path, [*GOOD, *bad], on_bad_row="skip")
    assert skipping.refusal is None
    assert [notice.severity for notice in skipping.notices] == ["warning"]


def test_a_set_without_a_usable_row_is_refused_in_the_words_of_a_run(tmp_path):
    with pytest.raises(DataError, match="1 of 1 rows can not be used"):
        look(tmp_path, [{"messages": []}])
    with pytest.raises(DataError, match=r"val.jsonl"):
        look(tmp_path, GOOD, val=["[1, 2"])


def test_long_rows(tmp_path):
    rows = [*GOOD, chat("Why?", "because " * 300), chat("why " * 300, "No")]
    found = look(tmp_path, rows, context_length=128)
    # The last two are of the check of template and rows, and are not told again by the numbers.
    _, cut, empty = found.notices
    assert (cut.source, empty.source) == ("train.jsonl line 9", "train.jsonl line 10")
    assert [notice.severity for notice in found.notices] == ["warning"] * 3
    alone = "1 train rows have an answer that alone is longer than the context"
    assert found.notices[0].text == alone
    assert cut.mend.startswith("raise --context_length")
    assert cut.text.startswith("answer-cut: answers of 1 of 10 rows are cut by --context_length")
    assert empty.text.startswith("prompt-too-long: prompts of 1 of 10 rows fill all of")
    rows[0] = {"messages": [*GOOD[0]["messages"][:1], {**GOOD[0]["messages"][1], "train": False}]}
    passed = look(tmp_path, rows, context_length=128).notices[0]
    assert passed.source == "train.jsonl line 1"
    assert passed.text.startswith("1 train rows have no answer left to train: each is left out by")
    refused = look(tmp_path, rows, context_length=128, truncation="error")
    assert "2 of 10 rows can not be used" in str(refused.refusal)
    assert refused.notices[0].severity == "error"


def test_what_messages_say_and_is_not_heeded(tmp_path):
    """As the log of a run tells it; nobody is sent to the context length."""
    question = chat("Hello", "I am well")
    question["messages"][0]["train"] = True
    muted = chat("Hello", "I am well")
    muted["messages"][1]["weight"] = 0
    unread = chat("Hello", "I am well")
    unread["messages"][1]["mood"] = "glad"
    found = look(tmp_path, [*GOOD, question, muted, unread])
    told = [(one.severity, one.source, one.text) for one in found.notices]
    assert [severity for severity, _, _ in told[:3]] == ["warning"] * 3
    assert told[0][1:] == (
        "train.jsonl line 10",
        '1 train rows have no answer left to train: each is left out by "train": false or '
        '"weight": 0',
    )
    assert told[1][2].startswith('train: 1 of 11 rows have messages with "train": true')
    assert told[2][2].startswith("train: 1 of 11 rows have messages with the key 'mood'")
    assert not any("no token to train on" in text for _, _, text in told)
    assert not any("context_length" in one.mend for one in found.notices)


def test_where_all_is_trained_no_stretch_is_an_answer(tmp_path):
    muted = chat("Hello", "I am well")
    muted["messages"][1]["train"] = False
    long = chat("why " * 50, "because " * 50)
    found = look(tmp_path, [*GOOD, muted], train_on="all")
    assert found.notices == []
    found = look(tmp_path, [*GOOD, long], train_on="all", truncation="split", context_length=128)
    assert [notice.severity for notice in found.notices] == ["info"]


def test_findings_of_the_check_are_shown_and_end_a_strict_run(tmp_path):
    rows = [*GOOD, chat("Hi<|im_end|>", "Yo")]
    [notice] = [one for one in look(tmp_path, rows).notices if one.text.startswith("control-words")]
    assert (notice.severity, notice.source) == ("warning", "train.jsonl line 9")
    assert "\ntokens: " in notice.text
    assert look(tmp_path, rows).refusal is None
    assert "control-words" in str(look(tmp_path, rows, strict=True).refusal)


def test_rows_twice_and_rows_in_both_splits(tmp_path):
    found = look(tmp_path, [*GOOD, GOOD[2]], val=[chat("Another", "one"), GOOD[5]])
    assert [(notice.severity, notice.source) for notice in found.notices] == [
        ("warning", "train.jsonl line 6"),
        ("info", "train.jsonl line 9"),
    ]
    assert found.leaked == [("val.jsonl line 2", "train.jsonl line 6")]


def test_rows_of_a_fraction_set_aside_have_numbers_of_their_own(tmp_path):
    found = look(tmp_path, GOOD, num_rows=7, val_fraction=0.125)
    assert sorted(row.number for row in found.rows) == list(range(1, 8))
    assert len({row.source for row in found.rows}) == 7


@pytest.mark.parametrize("number", [0, 1, 2, 3, 5, 9, 10, 50])
def test_so_many_rows_are_chosen_none_twice(number):
    rows = make_rows([6, 9, 9, 7, 30, 8, 6, 3, 12, 12])
    chosen = choose(rows, number)
    indices = [index for index, _ in chosen]
    assert len(indices) == len(set(indices)) == min(number, 10)
    assert (
        chosen[:3]
        == [(0, "the first"), (4, "the longest"), (7, "the fewest trained tokens")][:number]
    )


def test_a_row_without_a_trained_token_is_chosen():
    rows = make_rows([6, 9, 30, 8], unlabelled=(3,))
    assert choose(rows, 3)[2] == (3, "no trained token")


def test_a_row_by_number_or_name(tmp_path):
    for name in ("3", "train.jsonl line 3"):
        found = look(tmp_path, GOOD, row=name)
        assert [(row.number, row.source) for row in found.rows] == [(3, "train.jsonl line 3")]


def test_all_parts_of_a_row_that_is_split():
    raw = collect_rows([chat("a", "bread " * 60)], name="rows")
    made = tokenize(raw.rows, TOKENIZER, context_length=64, truncation="split")
    assert len(made) > 1
    raw = collect_rows(raw.rows, name="test rows")
    assert [index for index, _ in find("1", raw, made)] == list(range(len(made)))
    assert find("test rows row 1 part 2", raw, made) == [(1, "")]


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("9", ConfigError, "--row 9: there is no such row.\n  expected: 1 to 8, for the training"),
        ("train.json line 3", ConfigError, "did you mean 'train.jsonl line 3'?"),
        ("\u00b2", ConfigError, "there is no such row.\n  expected: 1 to 8, or a name"),
        ("9" * 5000, ConfigError, "there is no such row.\n  expected: 1 to 8, or a name"),
        ("-", ConfigError, "or a name such as 'train.jsonl line 1'"),
        ("7", DataError, "train.jsonl line 7: key 'messages' has no message of the assistant"),
        ("8", DataError, "train.jsonl line 8 is dropped.\n  got: "),
    ],
)
def test_rows_that_can_not_be_shown(tmp_path, name, error, words):
    rows = [*GOOD[:6], {"messages": []}, chat("a", "bread " * 300)]
    with pytest.raises(error) as caught:
        look(tmp_path, rows, row=name, context_length=128, truncation="drop")
    assert words in str(caught.value)
