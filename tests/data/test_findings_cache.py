"""What the check said is kept with the rows, and is never that of others."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ftrecipes.config.schema import CustomDatasetConfig, RunConfig, TrainConfig
from ftrecipes.config.sections import DataConfig
from ftrecipes.data import cache
from ftrecipes.data.findings_cache import examine_cached
from ftrecipes.data.raws import load_raws
from ftrecipes.data.rows import TokenRows
from ftrecipes.data.splits import read_splits
from ftrecipes.data.tokenize import tokenize_rows
from tests.data.dialogs import chat
from tests.tiny_tokenizers import build_tokenizer

TOKENIZER = build_tokenizer("chatml")


@pytest.fixture
def path(tmp_path):
    """Dialogs, one of them too long."""
    rows = [chat("q", f"a {n}") for n in range(3)] + [chat("q", "word " * 60)]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def config(path, **data):
    train = TrainConfig(dataset=str(path), context_length=40)
    return RunConfig(train=train, data=DataConfig(**data))


def read(path, **data):
    return read_splits(config(path, **data), TOKENIZER).findings


def kept() -> list:
    return sorted(cache.cache_folder().glob("*.findings"))


def test_the_second_time_they_are_the_same(path):
    first, plain = read(path), read(path, cache=False)
    assert "answer-cut" in [one.code for one in first]
    assert any(one.tokens for one in first)
    assert read(path) == first == plain
    [entry] = kept()
    said = json.loads(entry.read_text())
    said["findings"][0]["text"] = "taken from the cache"
    entry.write_text(json.dumps(said))
    assert read(path)[0].text == "taken from the cache"
    assert read(path, cache=False) == first


@pytest.mark.parametrize("harm", ["", "{}", '{"key": 1}', '{"findings": [{}]}', "\0"])
def test_a_broken_entry_is_made_again(path, harm):
    first = read(path)
    [entry] = kept()
    whole = entry.read_text()
    entry.write_text(harm)
    assert read(path) == first
    assert entry.read_text() == whole


def test_other_rows_have_their_own(path):
    """As in a preview of rows for which the run is refused: the same settings, some rows less."""
    run = config(path)
    [raw] = load_raws(run, TOKENIZER, faults=[]).values()
    settings = {"data": run.data, "context_length": 40}
    whole = tokenize_rows(raw, TOKENIZER, **settings)
    end = whole.offsets[-2]
    fewer = TokenRows(
        *(whole.input_ids[:end], whole.labels[:end], whole.offsets[:-1], whole.sources[:-1]),
        report=[],
    )
    for rows in (whole, fewer, whole):
        found = examine_cached(raw, rows, TOKENIZER, **settings)
        assert ("answer-cut" in [one.code for one in found]) == (rows is whole)
    asked = replace(run.data, chat_template="chatml")
    examine_cached(raw, whole, TOKENIZER, **{**settings, "data": asked})
    assert json.loads(kept()[0].read_text())["key"] == [whole.facts.digest, "chatml"]


def test_facts_are_kept_with_the_rows(path):
    plain = read_splits(config(path, cache=False), TOKENIZER).rows.facts
    for _ in range(2):
        rows = read_splits(config(path), TOKENIZER).rows
        assert rows.known is not None
        assert rows.facts.digest == plain.digest
        assert np.array_equal(rows.facts.token_counts, plain.token_counts)
        assert np.array_equal(rows.facts.used_ids, plain.used_ids)


def test_a_custom_data_set_is_not_kept(tmp_path):
    """What its function returns may change without a change of any file."""
    (tmp_path / "mine.py").write_text(
        "def get_custom_dataset(dataset_config, tokenizer, split):\n"
        "    return [{'instruction': split, 'output': 'b'}]\n"
    )
    config = RunConfig(
        train=TrainConfig(dataset="custom_dataset"),
        custom_dataset=CustomDatasetConfig(file=str(tmp_path / "mine.py")),
    )
    read_splits(config, TOKENIZER)
    assert not cache.cache_folder().exists()
