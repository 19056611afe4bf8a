"""wandb and TensorBoard get the numbers of metrics.jsonl; read back from their own files."""

import io
import json
import logging
import math
import resource
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ftrecipes.config.errors import ConfigError
from ftrecipes.config.schema import RunConfig
from ftrecipes.config.sections import TrackingConfig
from ftrecipes.report.recorder import Recorder
from ftrecipes.report.trackers import Guarded, open_trackers, rehearse_trackers, scalars
from tests.report.event_files import curves, open_events, text
from tests.report.wandb_file import config_of, exit_code, finished_records, history

OFFLINE = TrackingConfig(wandb=True, tensorboard=True, mode="offline", tags=["a"], notes="why")
STEP = {"epoch": 1, "grad_norm": 0.1 + 0.2, "num_tokens": 2**24 + 1, "positions": 9, "rows": 2}


def settings(tracking: TrackingConfig) -> RunConfig:
    return replace(RunConfig(), tracking=tracking)


def recorder(folder: Path, tracking: TrackingConfig, *, rank: int = 0) -> Recorder:
    return Recorder(
        folder / "metrics.jsonl",
        rank=rank,
        device=torch.device("cpu"),
        total_steps=2,
        trackers=open_trackers(settings(tracking), folder, rank=rank),
    )


def write_run(folder: Path, *, fails: bool = False) -> None:
    evaluation = {"num_tokens": 3, "positions": 5, "rows": 1, "total_rows": 1, "seconds": 0.5}
    with recorder(folder, OFFLINE) as run:
        run.evaluation(step=0, epoch=0, loss=math.pi, perplexity=math.exp(math.pi), **evaluation)
        run.sample(step=0, prompt="# One?", answer="  two\n|three|")
        run.sample(step=0, prompt="Four?", answer="")
        run.step(step=1, loss=1 / 3, lr=1e-4 / 7, seconds=0.25, note="", **STEP)
        run.step(step=2, loss=None, lr=0.0, seconds=0.25, note="no label", **STEP)
        run.evaluation(step=2, epoch=1, loss=math.nan, perplexity=math.inf, **evaluation)
        run.epoch(step=2, epoch=1, loss=1 / 3, num_tokens=7)
        if fails:
            raise RuntimeError("out of luck")
        run.end(step=2, tokens=7, positions=18, seconds=0.5)


def expected(folder: Path) -> dict[int, dict[str, float]]:
    """Step -> name -> number, out of metrics.jsonl alone, without the code under test."""
    groups = {"step": "train", "evaluation": "eval", "epoch": "epoch", "end": "end"}
    steps: dict[int, dict[str, float]] = {}
    for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()):
        for name, value in line.items() if line["kind"] in groups else ():
            text = line.get(f"{name}_text")
            number = float(text) if text else value
            if name in ("step", "unix_seconds") or not isinstance(number, int | float):
                continue
            memory = line["kind"] == "epoch" and name.startswith("host")
            group = "memory" if memory else groups[line["kind"]]
            steps.setdefault(line["step"], {})[f"{group}/{name}"] = number
    return steps


def same(left: float, right: float) -> bool:
    return left == right or (math.isnan(left) and math.isnan(right))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_run(folder)
    return folder


def test_wandb_has_every_number_of_the_file_at_its_step(folder):
    logged = history(finished_records(folder))
    wanted = expected(folder)
    assert logged.keys() == wanted.keys() == {0, 1, 2}
    seen = 0
    for step, numbers in wanted.items():
        found = {name: value for name, value in logged[step].items() if name[0] != "_"}
        found = {name: value for name, value in found.items() if not name.startswith("samples/")}
        assert found.keys() == numbers.keys()
        assert [name for name in numbers if not same(found[name], numbers[name])] == []
        seen += len(numbers)
    assert seen > 40
    assert logged[1]["train/loss"] == 1 / 3


def test_tensorboard_has_every_number_of_the_file_at_its_step(folder):
    events = open_events(folder)
    found = curves(events)
    wanted = expected(folder)
    assert found.keys() == wanted.keys()
    for step, numbers in wanted.items():
        assert found[step].keys() == numbers.keys()
        assert [name for name in numbers if not same(found[step][name], numbers[name])] == []
    assert events.Tags()["scalars"] == []  # the older form is float32


def test_samples_are_texts_in_both(folder):
    first = text(open_events(folder), "samples/1")
    assert "    # One?" in first
    assert "      two\n    |three|" in first
    tables = sorted((folder / "wandb").glob("offline-run-*/files/media/table/samples/*.json"))
    rows = [json.loads(table.read_text())["data"] for table in tables]
    assert rows == [[[0, "# One?", "  two\n|three|"]], [[0, "Four?", ""]]]


def test_settings_go_along_and_neither_code_nor_packages_do(folder):
    records = finished_records(folder)
    config = config_of(records)
    assert config["tracking"]["notes"] == "why"
    assert config["lr"] == RunConfig().train.lr
    assert exit_code(records) == 0
    (run,) = [record.run for record in records if record.HasField("run")]
    assert (run.display_name, run.project, list(run.tags)) == (folder.name, "ftrecipes", ["a"])
    assert not run.git.remote_url
    assert not run.git.commit
    names = {path.name for path in (folder / "wandb").glob("offline-run-*/files/**/*")}
    assert not names & {"requirements.txt", "diff.patch", "code"}


def test_a_failed_run_is_one_there_too_and_the_console_is_left_alone(tmp_path, capfd):
    stdout, stderr = sys.stdout, sys.stderr
    with pytest.raises(RuntimeError, match="out of luck"):
        write_run(tmp_path, fails=True)
    assert (sys.stdout, sys.stderr) == (stdout, stderr)
    assert exit_code(finished_records(tmp_path)) == 1
    shown = capfd.readouterr()
    assert "wandb" not in shown.out
    assert "wandb:" not in shown.err


class Breaks:
    name = "wandb"

    def __init__(self):
        self.calls = 0

    def numbers(self, values, *, step):
        self.calls += 1
        if step == 2:
            raise OSError("disk full")

    def close(self, *, failed):
        self.calls += 1


def test_a_tracker_that_fails_is_told_once_and_the_run_goes_on(tmp_path, caplog):
    tracker = Breaks()
    shown = Recorder(
        tmp_path / "metrics.jsonl",
        rank=0,
        device=torch.device("cpu"),
        total_steps=4,
        trackers=[Guarded(tracker)],
    )
    with caplog.at_level(logging.WARNING, logger="ftrecipes"), shown as run:
        for step in range(1, 5):
            run.step(step=step, loss=0.5, lr=0.1, seconds=0.1, note="", **STEP)
    assert tracker.calls == 2
    (message,) = caplog.messages
    assert "wandb failed" in message
    assert "disk full" in message
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 4


def test_other_ranks_track_nothing(tmp_path):
    with recorder(tmp_path, OFFLINE, rank=1):
        pass
    assert list(tmp_path.iterdir()) == []


def test_no_key_is_an_error_before_weights_are_read(tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    rehearse_trackers(settings(OFFLINE), rank=0)
    with pytest.raises(ConfigError, match="wandb could not be started") as caught:
        rehearse_trackers(settings(replace(OFFLINE, mode="online")), rank=0)
    assert "wandb login" in str(caught.value)


def test_variables_that_wandb_refuses_are_told_before_weights_are_read(monkeypatch):
    def refuse():
        raise ValueError("mode: Input should be 'online', 'offline' or 'disabled'")

    monkeypatch.setattr("wandb.setup", refuse)  # it reads the environment once a process
    with pytest.raises(ConfigError, match="Input should be 'online'") as caught:
        rehearse_trackers(settings(TrackingConfig(wandb=True)), rank=0)
    assert "WANDB_" in str(caught.value)


def test_a_full_disk_ends_tensorboard_alone_and_leaves_whole_events(tmp_path, caplog, capfd):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    tracking = TrackingConfig(tensorboard=True)
    with caplog.at_level(logging.WARNING, logger="ftrecipes"), recorder(tmp_path, tracking) as run:
        run.step(step=1, loss=0.5, lr=0.1, seconds=0.1, note="", **STEP)
        (path,) = tmp_path.glob("tensorboard/*/*")
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, before[1]))
        run.step(step=2, loss=0.5, lr=0.1, seconds=0.1, note="", **STEP)
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [message for message in caplog.messages if "TensorBoard failed" in message]
    assert curves(open_events(tmp_path)).keys() == {1}
    assert "Traceback" not in capfd.readouterr().err


def test_what_is_no_number_is_no_curve():
    line = {"step": 3, "loss": 0.5, "grad_norm": None, "note": "why", "flag": True}
    assert scalars("step", line) == {"train/loss": 0.5}
    assert scalars("stopped", {"reason": "x"}) == {}
