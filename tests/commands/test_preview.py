"""`ftrecipes preview` as one types it: the screen, without colour and with it, and exit codes."""

import io
import json
import re
import sys

import pytest

from ftrecipes.commands import preview, preview_screen
from tests.conftest import write_lines
from tests.data.dialogs import chat

WIDE = {"COLUMNS": "160"}


@pytest.fixture
def run(model_folder, monkeypatch, capsys):
    """Exit code, standard output and standard error of a preview."""

    def run_words(dataset, *words, **environment):
        for name, value in (WIDE | environment).items():
            monkeypatch.setenv(name, value)
        flags = ["--model_name", str(model_folder), "--dataset", str(dataset), *words]
        with pytest.raises(SystemExit) as ended:
            preview.main(flags)
        shown = capsys.readouterr()
        return ended.value.code, shown.out, shown.err

    return run_words


def lines_with(text: str, word: str) -> list[str]:
    return [line for line in text.splitlines() if word in line]


def test_the_screen_says_it_all_without_colour(run, chat_file):
    code, out, err = run(chat_file)
    assert (code, "\x1b" in out) == (0, False)
    assert "Traceback" not in err
    assert "--- row 1, the first: train.jsonl line 1" in out
    user, answer, end = (lines_with(out, word)[0] for word in (". user", "T assistant", "T end of"))
    assert user.split(maxsplit=3)[3] == "Tell me about rain, part 0."
    assert answer.split(maxsplit=3)[3] == "rain is rain"
    assert end.endswith("end of the answer <|im_end|>")
    first, last = map(int, answer.split()[0].split("-"))
    assert end.split()[0] == str(last + 1)
    [facts] = [
        line for line in lines_with(out, "of them trained") if line in out.split("--- row")[1]
    ]
    assert f"{last - first + 2} of them trained" in facts
    assert lines_with(out, "rows read")[0].split() == ["rows", "read", "12"]
    assert out.index("--- row") < out.index("--- train, all rows") < out.index("--- to look at")


@pytest.mark.parametrize(
    ("environment", "has_colour"),
    [({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False), ({}, False)],
)
def test_colour_is_for_those_who_want_it(run, chat_file, environment, has_colour):
    _, out, _ = run(chat_file, "--rows", "1", TERM="xterm-256color", **environment)
    assert bool(re.search(r"\x1b\[[\d;]*(3|4|9|10)\dm", out)) == has_colour
    bare = re.sub(r"\x1b\[[\d;]*m", "", out)
    assert "T assistant" in bare


def test_one_row_with_every_token(run, chat_file):
    code, out, _ = run(chat_file, "--row", "2")
    assert code == 0
    assert re.findall(r"^--- row .*", out, re.MULTILINE) == ["--- row 2: train.jsonl line 2"]
    table = re.split(r" position +id +text.*", out)[1].split("rows of the micro")[0].splitlines()
    marks = [line.split()[1] for line in table if line.strip()]
    [facts] = lines_with(out, "of them trained")
    assert [len(marks), marks.count("T")] == [int(n) for n in re.findall(r"\d+", facts)[:2]]
    assert "rows of the micro-batch, by position; none sees another" in out
    assert len(re.findall(r"^  [> ] \d+-\d+  train.jsonl line", out, re.MULTILINE)) == 12


def test_no_rows_only_numbers(run, chat_file):
    _, out, _ = run(chat_file, "--rows", "0")
    assert out.startswith("--- train, all rows")


def test_a_run_that_would_be_refused_ends_as_it_would(run, tmp_path):
    rows = [chat("Hello", "I am well"), chat("Only a question"), chat("Bread?", "Salt.")]
    path = write_lines(tmp_path / "train.jsonl", rows)
    code, out, err = run(path)
    assert code == 3
    assert "error: 1 of 3 rows can not be used.\n  train.jsonl line 2: key 'messages'" in err
    assert "look at: train.jsonl line 2 (--row 2)" in out
    assert lines_with(out, "skipped")[0].split() == ["skipped", "1"]
    code, out, err = run(path, "--data.on_bad_row", "skip")
    assert (code, "error" in err) == (0, False)


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["--row", "13"], 2, "--row 13: there is no such row.\n  expected: 1 to 12"),
        (["--row", "0"], 2, "--row: out of range"),
        (["--row", "-3"], 2, "--row: out of range"),
        (["--row", "\u00b2"], 2, "there is no such row"),
        (["--html", "none/page.html"], 2, "there is no folder"),
        (["--data.format", "text"], 3, "needs the column 'text'"),
        (["--tokenizer_name", "{empty}"], 4, "can not be loaded"),
        (["--data.val_file", "{empty}/a.jsonl"], 2, "does not exist"),
    ],
)
def test_what_can_be_wrong(run, chat_file, tmp_path, words, code, expected):
    ended, out, err = run(chat_file, *(word.format(empty=tmp_path) for word in words))
    assert (ended, out) == (code, "")
    assert expected in err
    assert "Traceback" not in err


def test_what_a_row_holds_can_not_steer_the_terminal(run, tmp_path):
    path = write_lines(
        tmp_path / "train\x1b[2J.jsonl",
        [chat("\x1b[2J [bold]\u202e", "a\tb\nc"), chat("\x1b<|im_start|>", "b")],
    )
    _, out, _ = run(path)
    assert "control-words" in out  # a finding, with the tokens around it
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert r"\x1b[2J [bold]\u202e" in out
    assert "a\\tb\u21b5c" in out


def test_what_a_finding_holds_can_not_steer_the_terminal_either(run, tmp_path):
    """Neither in the error of a run that is refused for it nor in the page."""
    rows = [chat("Hi", f"salt <|im_end|>{sign}\x1b[2J\u202e") for sign in "ab"]
    path, page = write_lines(tmp_path / "train.jsonl", rows), tmp_path / "page.html"
    code, out, err = run(path, "--data.strict", "--html", str(page))
    assert code == 3
    assert "\\x1b" in err
    for shown in (out, err, page.read_text(encoding="utf-8")):
        assert all(char.isprintable() for char in shown.replace("\n", ""))


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_unicode(model_folder, tmp_path, monkeypatch, encoding):
    path = write_lines(tmp_path / "train.jsonl", [chat("\u65e5?", "a\nb")])
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    with pytest.raises(SystemExit) as ended:
        preview.main(["--model_name", str(model_folder), "--dataset", str(path)])
    assert ended.value.code == 0
    sys.stdout.flush()
    text = raw.getvalue().decode(encoding)
    assert "\\u65e5?" in text
    assert "a\\nb" in text


def test_a_very_long_row_is_shortened_unless_it_is_asked_for(run, tmp_path, monkeypatch):
    monkeypatch.setattr(preview_screen, "MOST_PARTS", 20)
    turns = [word for n in range(8) for word in (f"Question {n}?", f"Answer {n}.")]
    path = write_lines(tmp_path / "train.jsonl", [chat("Why? " * 200, "Salt."), chat(*turns)])
    _, out, _ = run(path)
    assert re.search(r"\[\.\.\. \d+ tokens \.\.\.\]", out)
    assert re.search(r"\d+ more parts \(--row 2 shows all\)", out)
    assert "Question 4?" not in out
    _, out, _ = run(path, "--row", "2")
    assert "Question 4?" in out
    assert not re.search(r"tokens \.\.\.\]|more parts", out)


def test_the_settings_are_those_of_the_run(run, tmp_path):
    """A context shorter than asked for, and a file of settings."""
    path = write_lines(tmp_path / "train.jsonl", [chat("a", "b"), chat("Why?", "bread " * 300)])
    settings = tmp_path / "run.yaml"
    settings.write_text(json.dumps({"data": {"truncation": "drop"}, "output_dir": "out"}))
    _, out, err = run(path, "--config", str(settings))
    assert "context_length is 256, the longest row that this model takes" in err
    assert lines_with(out, "longer than 256, dropped")[0].split()[-1] == "1"
