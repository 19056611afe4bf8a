"""What a run says and does of what the check of template and rows finds."""

import json
import logging

import pytest

from ftrecipes.config.errors import DataError
from ftrecipes.config.schema import RunConfig, TrainConfig
from ftrecipes.config.sections import DataConfig
from ftrecipes.data.splits import read_splits, report_splits
from tests.data.dialogs import chat
from tests.tiny_tokenizers import CHATML, LLAMA3, build_tokenizer


def run_of(tmp_path, rows, **data) -> RunConfig:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RunConfig(train=TrainConfig(dataset=str(path)), data=DataConfig(**data))


def lines_of(caplog, config, tokenizer) -> list[str]:
    """What the log says of the data, but for how many rows there are."""
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="ftrecipes"):
        report_splits(config, read_splits(config, tokenizer))
    told = [f"{record.levelname.lower()} {record.getMessage()}" for record in caplog.records]
    return [
        line
        for line in told
        if not any(word in line for word in (" rows of ", "cache", "no validation"))
    ]


def test_a_healthy_run_has_one_line_at_most(tmp_path, caplog):
    config = run_of(tmp_path, [chat("Hi", "Yo", "And?", "No"), chat("Ho", "Yo", system="Be brief")])
    assert lines_of(caplog, config, build_tokenizer("chatml")) == []
    [line] = lines_of(caplog, config, build_tokenizer("chatml", pad="eos"))
    assert line.startswith("info template and rows, nothing to mend: the pad token <|im_end|> is")
    assert line.endswith("(pad-is-end)")


def test_warnings_go_to_the_log_and_end_a_strict_run(tmp_path, caplog):
    tokenizer = build_tokenizer("chatml")
    tokenizer.chat_template = CHATML.partition("{% if")[0]
    config = run_of(tmp_path, [chat("Hi", "Yo")])
    [line] = lines_of(caplog, config, tokenizer)
    assert line.startswith("warning no-generation-prompt: ")
    strict = run_of(tmp_path, [chat("Hi", "Yo")], strict=True)
    with pytest.raises(DataError, match=r"ends the run \(with --data.strict(.|\n)*no-generation"):
        lines_of(caplog, strict, tokenizer)
    healthy = build_tokenizer("chatml", pad="eos")
    assert len(lines_of(caplog, strict, healthy)) == 1


def test_cached_rows_are_looked_at_too(tmp_path, caplog):
    tokenizer = build_tokenizer("chatml", pad="eos")
    config = run_of(tmp_path, [chat("Hi", "Yo")])
    first = read_splits(config, tokenizer).findings
    assert [found.code for found in first] == ["pad-is-end"]
    caplog.set_level(logging.INFO, logger="ftrecipes")
    assert read_splits(config, tokenizer).findings == first
    assert "taken from the cache" in caplog.text


def test_columns_that_are_not_read_are_named_once(tmp_path, caplog):
    config = run_of(tmp_path, [{**chat("Hi", "Yo"), "id": 1}])
    assert len(lines_of(caplog, config, build_tokenizer("chatml"))) == 1


def test_an_error_ends_the_run_and_names_row_tokens_and_remedy(tmp_path, caplog):
    tokenizer = build_tokenizer("llama3")
    tokenizer.chat_template = LLAMA3.replace(
        "message['content'] | trim",
        "(messages[0].content if message.role == 'assistant' else '') + message['content']",
    )
    config = run_of(tmp_path, [chat("the quick fox", "Yo")])
    with pytest.raises(DataError) as caught:
        lines_of(caplog, config, tokenizer)
    assert "user-words-trained: words of messages[0] (role user) are trained" in str(caught.value)
    assert "row: rows.jsonl line 1\n  tokens: " in str(caught.value)
    assert "--data.chat_template NAME or FILE.jinja; or --data.train_on all" in str(caught.value)
    allowed = run_of(tmp_path, [chat("the quick fox", "Yo")], train_on="all")
    assert lines_of(caplog, allowed, tokenizer) == []
