"""run.yaml, run.json and error.txt: what they say while a run goes on, and how it ended."""

import json
import resource
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
import torch
import yaml

from ftrecipes.checkpoint.record import PACKAGES, RunRecord, record_run
from ftrecipes.config.errors import CheckpointError, DataError
from ftrecipes.runtime.world import World

ONE = World(rank=0, size=1, local_rank=0, device=torch.device("cpu"), host="here")


def open_record(folder):
    settings = {"lr": 1e-5, "lora": {"r": 4}}
    return record_run(folder, settings=settings, origins={"lr": "--lr"}, world=ONE)


def status(folder):
    return json.loads((folder / "run.json").read_text())["status"]


def test_a_run_is_running_then_finished(tmp_path):
    folder = tmp_path / "new" / "run"
    with open_record(folder) as record:
        record.add(train_fingerprint="abc")
        assert status(folder) == "running"
    content = json.loads((folder / "run.json").read_text())
    assert content["status"] == "finished"
    assert content["train_fingerprint"] == "abc"
    assert content["origins"] == {"lr": "--lr"}
    assert content["world"] == {"size": 1, "device": "cpu", "hosts": ["here"]}
    assert set(PACKAGES) | {"ftrecipes", "python"} == content["versions"].keys()
    assert content["started"] <= content["ended"]
    assert yaml.safe_load((folder / "run.yaml").read_text()) == {"lr": 1e-5, "lora": {"r": 4}}
    assert sorted(path.name for path in folder.iterdir()) == ["run.json", "run.yaml"]


@pytest.mark.parametrize("error", [DataError("row 3 is bad"), RuntimeError("row 3 is bad")])
def test_a_failed_run_keeps_its_traceback(tmp_path, error):
    with pytest.raises(type(error)) as caught, open_record(tmp_path):
        raise error
    assert status(tmp_path) == "failed"
    assert json.loads((tmp_path / "run.json").read_text())["error"] == "row 3 is bad"
    text = (tmp_path / "error.txt").read_text()
    assert "Traceback" in text
    assert "row 3 is bad" in text
    assert caught.value.__notes__ == [f"The traceback is in {tmp_path / 'error.txt'}"]


@contextmanager
def room_for(size: int):
    """Inside, no file grows beyond `size` bytes: like a full disk, with a little room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def fail_on_a_full_disk(folder):
    with ExitStack() as stack, open_record(folder):
        stack.enter_context(room_for((folder / "run.json").stat().st_size + 200))
        raise DataError("x") from ValueError("long " * 400)


def finish_on_a_full_disk(folder):
    with ExitStack() as stack, open_record(folder):
        stack.enter_context(room_for(10))


def test_on_a_full_disk_the_status_comes_before_the_traceback(tmp_path):
    with pytest.raises(DataError):
        fail_on_a_full_disk(tmp_path)
    assert status(tmp_path) == "failed"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json", "run.yaml"]


def test_a_record_that_can_not_be_written_is_told_in_our_words(tmp_path):
    with pytest.raises(CheckpointError, match=r"run\.json could not be written"):
        finish_on_a_full_disk(tmp_path)
    assert status(tmp_path) == "running"


def test_an_interrupted_run_says_so_and_is_no_failure(tmp_path):
    with pytest.raises(KeyboardInterrupt), open_record(tmp_path):
        raise KeyboardInterrupt
    assert status(tmp_path) == "interrupted"
    assert not (tmp_path / "error.txt").exists()


def test_the_traceback_of_an_earlier_run_goes(tmp_path):
    (tmp_path / "error.txt").write_text("old")
    with open_record(tmp_path):
        assert not (tmp_path / "error.txt").exists()


def test_a_folder_that_can_not_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(CheckpointError, match=r"--output_dir .*can not be written"),
        open_record(tmp_path / "file" / "run"),
    ):
        pytest.fail("the run must not start")


def test_another_rank_notes_the_end_where_rank_0_has_died(tmp_path):
    """Only then: rank 0 holds the folder for as long as it lives, and knows better."""
    second = RunRecord(tmp_path, {}, replace(ONE, rank=1, size=2))
    with open_record(tmp_path):
        second.end("failed", error="rank 0 died")
        assert status(tmp_path) == "running"
    second.end("failed", error="rank 0 died")
    assert status(tmp_path) == "finished"
    started = {"status": "running", "started": "today"}
    (tmp_path / "run.json").write_text(json.dumps(started))
    second.end("failed", error="rank 0 died")
    content = json.loads((tmp_path / "run.json").read_text())
    assert content.pop("ended")
    assert content == started | {"status": "failed", "error": "rank 0 died"}
    assert not (tmp_path / ".lock").exists()
