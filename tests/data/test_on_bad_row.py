"""`--data.on_bad_row skip`: rows that can not be used are left out, counted and named."""

import json

import pytest

from ftrecipes.config.errors import DataError
from ftrecipes.config.sections import DataConfig
from ftrecipes.data.files import read_file
from ftrecipes.data.rows import show_faults
from ftrecipes.data.tokenize import tokenize_rows
from tests.data.dialogs import tokenize
from tests.tiny_tokenizers import build_tokenizer

ROW = json.dumps({"instruction": "a", "output": "b"}) + "\n"
TOKENIZER = build_tokenizer("none")


def instruction(output: object) -> dict:
    return {"instruction": "a", "output": output}


@pytest.fixture
def load(tmp_path):
    """Tokenise the text of a file, without its bad rows."""

    def load_text(text, *, name="train.jsonl"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        raw = read_file(tmp_path / name)
        data = DataConfig(on_bad_row="skip")
        return tokenize_rows(raw, TOKENIZER, data=data, context_length=99)

    return load_text


def test_an_empty_answer():
    """D01, D15: five rows, the third without output; four are left and the count is told."""
    rows = [instruction(output) for output in ("a", "b", "", "c", "d")]
    token_rows = tokenize(rows, TOKENIZER, on_bad_row="skip")
    assert len(token_rows) == 4
    assert token_rows.sources[2] == "test rows row 4"
    assert token_rows.report == [
        "1 of 5 rows can not be used and are skipped:\n"
        "  test rows row 3: key 'output' is empty; expected text"
    ]
    with pytest.raises(DataError, match=r"1 of 5 rows(.|\n)*row 3: key 'output' is empty"):
        tokenize(rows, TOKENIZER)


def test_a_cut_last_line(load):
    """D06"""
    token_rows = load(ROW * 2 + '{"instruction": "a", "out')
    assert token_rows.sources == ["train.jsonl line 1", "train.jsonl line 2"]
    [told] = token_rows.report
    assert told.startswith("1 of 3 rows can not be used and are skipped:\n  train.jsonl line 3: no")


def test_the_first_few_are_named(load):
    numbers = [f'{{"instruction": 1, "key {i}": 0}}\n' for i in range(8)]
    faulty = '{"instruction": 1, "output": "b"}\n' * 8 + '{"instruction": "a"}\n' + "".join(numbers)
    told = load(ROW + faulty).report[-1]
    named = ", ".join(f"train.jsonl line {line}" for line in range(2, 7))
    assert told.split("\n") == [
        "17 of 18 rows can not be used and are skipped:",
        f"  {named} and 11 more: key 'instruction' is a number; expected text",
        "  train.jsonl line 10: key 'output' is missing",
    ]


def test_the_first_few_reasons_are_told():
    faults = [f"row {i}: reason {i % 7}" for i in range(14)]
    assert show_faults(faults).split("\n")[1:] == [
        *(f"  row {i}, row {i + 7}: reason {i}" for i in range(5)),
        "  ... and 4 more",
    ]


@pytest.mark.parametrize("text", ["a\nb\nc\n", '{"instruction": "a", "output": {"a": 1}}\n' * 3])
def test_no_row_is_left(load, text):
    """D03: how many of how many, and why; the command's exit code is that of DataError."""
    with pytest.raises(DataError, match=r"^3 of 3 rows can not be used") as caught:
        load(text)
    assert caught.value.exit_code == 3
    assert str(caught.value).count("train.jsonl line ") == 3


def test_a_prompt_of_messages_that_do_not_alternate():
    """D03: the template refuses each row."""
    messages = [{"role": role, "content": "x"} for role in ("user", "user", "assistant")]
    with pytest.raises(DataError, match=r"4 of 4 rows(.|\n)*roles must alternate"):
        tokenize([{"messages": messages}] * 4, build_tokenizer("mistral"), on_bad_row="skip")


def test_faults_of_the_whole_file_stay_errors(load):
    with pytest.raises(DataError, match="no known format"):
        load('{"x": 1}\n' * 3)
    with pytest.raises(DataError, match="the JSON array is cut"):
        load("[" + ROW)
    with pytest.raises(DataError, match="two columns have one name"):
        load("instruction,output,output\na,b,c\n", name="a.csv")


def test_csv_rows_of_another_width(load):
    token_rows = load("instruction,output\n1,2\n1,2,3\n3,4\n", name="a.csv")
    assert token_rows.sources == ["a.csv line 2", "a.csv line 4"]
    assert "a.csv line 3: 3 cells; the header has 2" in token_rows.report[0]


def test_rows_without_one_token():
    """P08: a user's function that returns nothing, whatever becomes of bad rows."""
    rows = [{"input_ids": [], "labels": []}] * 3
    for on_bad_row in ("error", "skip"):
        with pytest.raises(DataError, match=r"3 of 3 rows(.|\n)*no tokens"):
            tokenize(rows, TOKENIZER, on_bad_row=on_bad_row)


def test_a_text_of_which_the_tokenizer_makes_nothing():
    """P08: a template that writes only what the tokenizer takes away."""
    from tokenizers import normalizers

    tokenizer = build_tokenizer("chatml")
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("x", "")
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    rows = [
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": text}]}
        for text in ("xx", "yes")
    ]
    with pytest.raises(DataError, match="row 1: the tokenizer makes no tokens of it"):
        tokenize(rows, tokenizer)
    assert tokenize(rows, tokenizer, on_bad_row="skip").sources == ["test rows row 2"]
