"""Flags of `ftrecipes preview` itself, and that it takes those of a run."""

import pytest

from ftrecipes.config.check_preview import PAGE_MARK
from ftrecipes.config.errors import ConfigError
from ftrecipes.config.parse import parse_words
from ftrecipes.config.schema import PreviewConfig

RUN = ("--model_name", "o/m", "--dataset", "o/d")


def parse(*words: str) -> PreviewConfig:
    return parse_words([*RUN, *words], into=PreviewConfig, writes=False).config


def faults(*words: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(*words)
    return caught.value.faults


def test_it_takes_the_flags_of_a_run_and_needs_no_folder_for_a_result(tmp_path):
    config = parse("--r", "8", "--quantization", "4bit", "--use_peft", "--row", "3")
    assert (config.lora.r, config.quantization.method, config.row) == (8, "4bit", "3")
    assert config.train.output_dir == ""
    # A folder with an earlier result is in nobody's way.
    (tmp_path / "model.safetensors").write_text("x")
    assert parse("--output_dir", str(tmp_path)).rows == 3


def test_a_file_of_settings_is_read(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("lr: 0.5\noutput_dir: out\ndata:\n  truncation: split\n")
    config = parse("--config", str(path), "--rows", "0")
    assert (config.train.lr, config.data.truncation, config.rows) == (0.5, "split", 0)


def test_model_and_data_are_needed():
    with pytest.raises(ConfigError, match="--model_name, --dataset: required"):
        parse_words([], into=PreviewConfig, writes=False)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--rows", "-1"], "--rows: out of range\n  got: -1"),
        (["--rows", "many"], "--rows: bad value"),
        (["--row", "0"], "--row: out of range\n  got: 0\n  expected: 1 or more, or the name"),
        (["--row", "-4"], "--row: out of range\n  got: -4"),
        (["--row", "2", "--rows", "9"], "--rows: would have no effect: --row shows that one alone"),
        (["--rosw", "2"], "did you mean --row"),
        (["--html", "no/such/page.html"], "there is no folder"),
        (["--html", "."], "--html .: no file\n  got: a folder"),
        (["--lora.rank", "4"], "did you mean --lora.r?"),
    ],
)
def test_faults(words, expected):
    found = faults(*words)
    assert len(found) == 1
    assert expected in found[0]


def test_a_page_replaces_an_earlier_preview_and_nothing_else(tmp_path):
    page = tmp_path / "page.html"
    assert parse("--html", str(page)).html == str(page)
    page.write_text(f"<!doctype html>\n{PAGE_MARK}")
    assert parse("--html", str(page)).html == str(page)
    for other in ("", "a letter"):
        page.write_text(other)
        assert "is there already, and is no preview" in faults("--html", str(page))[0]
