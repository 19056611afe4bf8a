"""A result gets into the run folder whole, or not at all."""

import os
import re
import shutil

import pytest
import torch
from safetensors import SafetensorError

from ftrecipes.checkpoint import publish as publishing
from ftrecipes.checkpoint.publish import publish, rehearse, write_json, write_text
from ftrecipes.checkpoint.record import fingerprint
from ftrecipes.checkpoint.verify import compare, difference
from ftrecipes.config.errors import CheckpointError, PeerError
from ftrecipes.config.run_files import ASIDE, STAGING
from ftrecipes.parallel.engine import OneProcess
from tests.checkpoint.alone import ONE


def write_adapter(text):
    def write(staging):
        (staging / "adapter_model.safetensors").write_text(text)
        (staging / "adapter_config.json").write_text("{}")

    return write


def accept(staging):
    assert (staging / "adapter_model.safetensors").exists()


def test_files_of_an_earlier_result_go_only_when_the_new_one_is_there(tmp_path):
    (tmp_path / "model.safetensors").write_text("old")
    (tmp_path / "config.json").write_text("old")
    (tmp_path / "chat_template.jinja").write_text("of another tokenizer")
    (tmp_path / "metrics.jsonl").write_text("kept")
    publish(tmp_path, write_adapter("new"), accept, world=ONE)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "metrics.jsonl",
    ]
    assert (tmp_path / "adapter_model.safetensors").read_text() == "new"


FAULTS = [
    CheckpointError("other bytes"),
    OSError(28, "No space left"),
    SafetensorError("incomplete metadata"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_write_or_check_leaves_the_earlier_result_alone(tmp_path, fault):
    publish(tmp_path, write_adapter("old"), accept, world=ONE)

    def refuse(staging):
        raise fault

    for write, verify, kept in (
        (write_adapter("new"), refuse, ["adapter_config.json", "adapter_model.safetensors"]),
        (refuse, accept, []),
    ):
        with pytest.raises(CheckpointError, match=re.escape(str(fault))) as caught:
            publish(tmp_path, write, verify, world=ONE)
        assert (tmp_path / "adapter_model.safetensors").read_text() == "old"
        (staging,) = tmp_path.glob(f"{STAGING}*")
        assert str(staging) in str(caught.value)
        assert sorted(path.name for path in staging.iterdir()) == kept
        shutil.rmtree(staging)


@pytest.mark.parametrize("ends_in", ["making", "writing", "comparing"])
def test_what_is_left_when_another_process_ends(tmp_path, monkeypatch, caplog, ends_in):
    """Nothing that is of no use; all files where they are whole, and where they are is told."""
    peer = PeerError("rank 1 died")

    def end(*args):
        raise peer

    def do_and_end(action, world):
        action()
        raise peer

    if ends_in == "making":
        monkeypatch.setattr(publishing, "first_does", do_and_end)
    write = end if ends_in == "writing" else write_adapter("new")
    with pytest.raises(PeerError):
        publish(tmp_path, write, end if ends_in == "comparing" else accept, world=ONE)
    left = [str(path) for path in tmp_path.iterdir()]
    assert len(left) == (ends_in == "comparing")
    assert all(f"All files of the new result are in {path}" in caplog.text for path in left)


def test_what_a_killed_or_failed_save_left_goes_with_the_next_result(tmp_path):
    (tmp_path / f"{STAGING}x").mkdir()
    (tmp_path / f"{STAGING}x" / "model.safetensors").write_text("half")
    publish(tmp_path, write_adapter("new"), accept, world=ONE)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["adapter_config.json", "adapter_model.safetensors"]


def test_a_move_that_fails_half_way_is_undone(tmp_path, monkeypatch):
    publish(tmp_path, write_adapter("old"), accept, world=ONE)
    (tmp_path / "tokenizer.json").write_text("old")
    replace = os.replace

    def fail_at_the_weights(source, target):
        if str(target) == str(tmp_path / "adapter_model.safetensors") and STAGING in str(source):
            raise OSError("no more")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_at_the_weights)
    with pytest.raises(CheckpointError, match="no more"):
        publish(tmp_path, write_adapter("new"), accept, world=ONE)
    monkeypatch.undo()
    assert (tmp_path / "adapter_model.safetensors").read_text() == "old"
    assert (tmp_path / "tokenizer.json").read_text() == "old"
    (staging,) = tmp_path.glob(f"{STAGING}*")
    assert (staging / "adapter_model.safetensors").read_text() == "new"
    assert not (tmp_path / ASIDE).exists()


def test_rehearsal_finds_what_can_not_be_written_and_a_full_disk(tmp_path):
    def refuse(folder):
        raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

    with pytest.raises(CheckpointError, match="surrogates not allowed"):
        rehearse(tmp_path, refuse, needed_bytes=0)
    with pytest.raises(CheckpointError, match="too full"):
        rehearse(tmp_path, lambda folder: None, needed_bytes=2**80)
    rehearse(tmp_path, write_adapter("trial"), needed_bytes=1)
    assert list(tmp_path.iterdir()) == []


def test_write_text_replaces_in_one_step(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    write_text(path, "old")

    def fail(source, target):
        raise OSError("killed here")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="killed here"):
        write_json(path, {"a": 1})
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_compare_names_what_is_lost_foreign_or_changed():
    live = {"a": torch.ones(2), "b": torch.zeros(3), "c": torch.tensor([float("nan")])}
    compare(dict(live), trained=live, known=live, engine=OneProcess())
    saved = {"a": torch.ones(2).half(), "c": live["c"].clone(), "d": torch.ones(1)}
    with pytest.raises(CheckpointError) as caught:
        compare(saved, trained=live, known=live, engine=OneProcess())
    text = str(caught.value)
    assert "b: trained, but not in the file" in text
    assert "d: in the file, but not in the model" in text
    assert "a: (2,) torch.float16 in the file, (2,) torch.float32 in the model" in text
    assert "c:" not in text


def differs(**pair) -> str:
    return difference(**pair, engine=OneProcess())


def test_difference_is_bit_for_bit():
    zero = torch.zeros(4)
    assert differs(live=zero, saved=zero.clone()) == ""
    assert "other values" in differs(live=zero, saved=-zero)
    one_bit = zero.clone()
    one_bit.view(torch.int32)[2] = 1
    assert "other values" in differs(live=zero, saved=one_bit)
    scalar = torch.tensor(3.0)
    assert differs(live=scalar, saved=scalar.clone()) == ""


def test_fingerprint_tells_parts_apart():
    assert fingerprint(b"ab", b"c") != fingerprint(b"a", b"bc")
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert len(fingerprint(b"")) == 64
