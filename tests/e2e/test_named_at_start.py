"""What is wrong with template and rows is named before a weight is read: there are none here."""

import json
import logging

import pytest

from ftrecipes.config.errors import DataError, ModelError
from ftrecipes.config.parse import parse
from ftrecipes.finetuning import read_inputs, run
from tests.data.dialogs import chat
from tests.tiny_models import build
from tests.tiny_tokenizers import CHATML, build_tokenizer

ECHO = CHATML.replace(
    "message['content'] +",
    "(messages[0].content if message.role == 'assistant' else '') + message['content'] +",
)


@pytest.fixture
def settings(tmp_path):
    """Flags of a run on these rows, with a tokenizer and a config and nothing else."""

    def make(tokenizer, rows, **flags) -> dict:
        folder, path = tmp_path / "model", tmp_path / "rows.jsonl"
        tokenizer.save_pretrained(folder)
        build("llama", vocab_size=len(tokenizer)).config.save_pretrained(folder)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        given = {"model_name": str(folder), "dataset": str(path), "use_peft": True, "device": "cpu"}
        return given | {"output_dir": str(tmp_path / "out")} | flags

    return make


def told(caplog, flags) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="ftrecipes"):
        read_inputs(parse(flags).config)
    return [f"{record.levelname.lower()} {record.getMessage()}" for record in caplog.records]


def test_a_template_that_trains_the_users_words_ends_the_run(settings):
    tokenizer = build_tokenizer("chatml")
    tokenizer.chat_template = ECHO
    with pytest.raises(DataError, match="user-words-trained: words of messages"):
        run(parse(settings(tokenizer, [chat("the quick fox", "Yo")])).config)


def test_a_pad_token_that_is_the_end_token(settings, caplog):
    lines = told(caplog, settings(build_tokenizer("chatml", pad="eos"), [chat("Hi", "Yo")]))
    [line] = [line for line in lines if "pad" in line]
    assert line.startswith("info template and rows, nothing to mend: the pad token <|im_end|> is")


def test_a_prompt_longer_than_the_context(settings, caplog):
    """The context is cut to the 256 positions of the model; the prompt has some 300."""
    rows = [chat("Hi", "Yo"), chat("? " * 150, "Yo")]
    lines = told(caplog, settings(build_tokenizer("chatml"), rows))
    [line] = [line for line in lines if "prompt-too-long" in line]
    assert (
        "warning prompt-too-long: prompts of 1 of 2 rows fill all of --context_length 256" in line
    )
    assert "row: rows.jsonl line 2" in line
    with pytest.raises(DataError, match="None of 1 rows has a token to train on within"):
        told(caplog, settings(build_tokenizer("chatml"), rows[1:]))


def test_strict_ends_it_for_a_warning(settings, caplog):
    rows, flags = [chat("Hi", "Yo"), chat("? " * 150, "Yo")], {"data.strict": True}
    config = parse(settings(build_tokenizer("chatml"), rows, **flags)).config
    with pytest.raises(DataError, match=r"--data.strict, warnings too\)(.|\n)*prompt-too-long"):
        run(config)


def test_sound_rows_get_as_far_as_the_weights(settings, caplog):
    rows, tokenizer = [chat("Hi", "Yo")], build_tokenizer("none")
    with pytest.raises(DataError, match=r"--data.chat_template alpaca or chatml"):
        run(parse(settings(tokenizer, rows)).config)
    flags = {"data.chat_template": "zephyr", "data.strict": True, "overwrite_output_dir": True}
    with pytest.raises(ModelError):
        run(parse(settings(tokenizer, rows, **flags)).config)
