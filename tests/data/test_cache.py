"""Tokenised rows on disk: the same rows as without, never old ones, and never in the way."""

import json
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from ftrecipes.config.errors import DataError
from ftrecipes.config.schema import RunConfig, TrainConfig
from ftrecipes.config.sections import DataConfig
from ftrecipes.data import cache
from ftrecipes.data.splits import read_splits
from tests.data.dialogs import chat
from tests.tiny_tokenizers import build_tokenizer

TOKENIZER = build_tokenizer("chatml")


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def path(tmp_path):
    """Some dialogs, one of them long and one without a token within 40 positions."""
    rows = [chat(f"q {n}", f"a {n}") for n in range(20)]
    return write(tmp_path / "t.jsonl", [*rows, chat("q", "word " * 60), chat("q " * 80, "a")])


@pytest.fixture
def told(monkeypatch):
    """The lines of the log."""
    lines = []
    monkeypatch.setattr(logging.getLogger("ftrecipes"), "info", lines.append)
    return lines


def read(path, tokenizer=TOKENIZER, *, context_length=40, **data):
    train = TrainConfig(dataset=str(path), context_length=context_length)
    return read_splits(RunConfig(train=train, data=DataConfig(**data)), tokenizer).rows


def entries() -> list:
    folder = cache.cache_folder()
    return sorted(folder.glob("*.rows")) if folder.is_dir() else []


def same(rows, other) -> bool:
    arrays = ("input_ids", "labels", "offsets")
    equal = all(np.array_equal(vars(rows)[name], vars(other)[name]) for name in arrays)
    return equal and (rows.sources, rows.report) == (other.sources, other.report)


def test_the_second_time_the_same_rows_come_from_the_cache(path, told, cache_home):
    first, plain = read(path), read(path, cache=False)
    assert told == []
    second = read(path)
    [entry] = entries()
    assert cache_home in entry.parents
    assert told == [f"t.jsonl: 22 tokenised rows taken from the cache {entry}"]
    assert same(first, second)
    assert len(first.report) == 3
    # The first time too the rows are in the file, and not in memory.
    assert isinstance(first.input_ids, np.memmap)
    assert isinstance(second.input_ids, np.memmap)
    assert not isinstance(plain.input_ids, np.memmap)
    assert same(plain, first)
    assert second.input_ids.dtype == second.labels.dtype == np.int32
    assert second.num_tokens == first.num_tokens


def test_cache_off(path, told, cache_home):
    read(path, cache=False)
    assert list(cache_home.iterdir()) == []
    read(path)
    read(path, cache=False)
    assert told == []


def test_anything_that_changes_the_rows_makes_an_entry_of_its_own(path, tmp_path, told):
    read(path)
    read(path, context_length=41)
    for data in (
        {"truncation": "left"},
        {"on_bad_row": "skip"},
        *({"format": "chat"}, {"train_on": "last_assistant"}),
        {"val_fraction": 0.1},
    ):
        read(path, **data)
    other = build_tokenizer("chatml")
    other.chat_template = other.chat_template.replace("im_end", "im_start")
    read(path, other)
    other = build_tokenizer("chatml")
    other.add_tokens(["word"])
    read(path, other)
    read(path.rename(tmp_path / "u.jsonl"))
    write(path, [chat("q", "a")])
    read(path)
    # val_fraction made two.
    assert (len(entries()), told) == (12, [])


def test_what_does_not_change_the_rows_shares_the_entry(path, told):
    read(path, val_split="x", shuffle="plain")
    text = path.read_text()
    path.unlink()
    path.write_text(text)
    read(path, build_tokenizer("chatml"))
    assert len(entries()) == len(told) == 1


def test_a_template_that_writes_the_date_is_good_for_a_day(path, monkeypatch):
    tokenizer = build_tokenizer("chatml")
    tokenizer.chat_template = "{{ strftime_now('%d') }}" + tokenizer.chat_template
    for date in ("2025-01-01", "2025-01-01", "2025-01-02"):
        clock = SimpleNamespace(time=time.time, strftime=lambda form, date=date: date)
        monkeypatch.setattr(cache, "time", clock)
        read(path, tokenizer)
    assert len(entries()) == 2


def test_a_change_of_this_package_meets_no_older_rows(path, monkeypatch, told):
    read(path)
    monkeypatch.setattr(cache, "_code_hash", lambda: "another")
    read(path)
    assert (len(entries()), told) == (2, [])
    monkeypatch.undo()
    names = [file.name for file in cache.Path(cache.__file__).parent.glob("*.py")]
    assert {"cache.py", "encode.py", "masks.py", "lengths.py"} <= set(names)


@pytest.mark.parametrize("harm", ["empty", "cut", "changed", "other", "header"])
def test_a_broken_entry_is_made_again(path, told, harm):
    first, _ = read(path, cache=False), read(path)
    [entry] = entries()
    content = bytearray(entry.read_bytes())
    if harm == "changed":
        content[200] ^= 1
    if harm == "header":
        content[20:40] = b"x" * 20
    harmed = {"empty": b"", "cut": content[:-10], "other": b"PAR1" * 99}.get(harm, content)
    entry.write_bytes(harmed)
    assert same(read(path), first)
    [line] = told
    assert line.startswith(f"{entry}: not a whole entry of the cache (")
    read(path)
    assert "taken from the cache" in told[-1]


def test_an_entry_with_any_byte_changed_is_made_again(path, told):
    first, _, [entry] = read(path, cache=False), read(path), entries()
    whole = entry.read_bytes()
    for at in [*range(60), *range(60, len(whole), 199)]:
        content = bytearray(whole)
        content[at] ^= 1 << at % 7
        entry.write_bytes(content)
        assert same(read(path), first)
    assert all("its content has changed" in line for line in told)


def test_a_folder_that_can_not_be_written_to_costs_only_the_cache(path, told, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    first = read(path)
    assert same(read(path, cache=False), first)
    [line] = told
    assert line.startswith("/proc/nowhere/ftrecipes/rows: the tokenised rows can not be kept there")


def test_the_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert str(cache.cache_folder()) == "/home/me/.cache/ftrecipes/rows"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert str(cache.cache_folder()) == "/home/me/.cache/ftrecipes/rows"


def test_a_user_without_a_home_gets_no_folder_named_tilde(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda name: name)
    assert len(read(path)) == 22
    assert list(tmp_path.iterdir()) == [path]


def test_rows_with_a_fault_are_not_kept(path):
    write(path, [{"messages": None}])
    with pytest.raises(DataError):
        read(path)
    assert entries() == []


def test_what_was_long_not_used_goes(path):
    read(path)
    [old] = entries()
    (old.parent / "x.part").write_text("an unfinished one")
    month_ago = time.time() - 31 * 24 * 3600
    for file in old.parent.iterdir():
        os.utime(file, (month_ago, month_ago))
    read(path, context_length=41)
    [new] = entries()
    assert new != old
    assert {file.name for file in new.parent.iterdir()} == {new.name, f"{new.stem}.findings"}


def test_an_entry_in_use_stays_and_the_folder_has_a_bound(path, monkeypatch):
    for context_length in (41, 42):
        read(path, context_length=context_length)
        for file in entries():
            before = file.stat().st_mtime - 100
            os.utime(file, (before, before))
    older, newer = sorted(entries(), key=lambda file: file.stat().st_mtime)
    read(path, context_length=41)  # used now
    monkeypatch.setattr(cache, "KEPT_BYTES", int(2.5 * older.stat().st_size))
    read(path, context_length=43)
    assert older in entries()
    assert newer not in entries()
    assert len(entries()) == 2


def read_often(path) -> None:
    """A tokenizer of its own: one can not be used by two threads at once."""
    tokenizer = build_tokenizer("chatml")
    for context_length in (40, 41) * 10:
        rows = read(path, tokenizer, context_length=context_length)
        assert (len(rows), rows.lengths.max()) == (22, context_length)
        for entry in cache.cache_folder().glob("*.rows"):
            entry.unlink(missing_ok=True)


def test_several_at_once(path, told):
    """All write, read and remove the same entries, and none sees half of one."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read_often, [path] * 4))
    assert all("taken from the cache" in line for line in told)
    assert entries() == []
