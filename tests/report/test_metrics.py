"""metrics.jsonl: valid JSON whatever the numbers, on disk at once, rank 0 only."""

import json
import logging
import math
import resource
import signal

import pytest

from ftrecipes.report.metrics import MetricsFile


def no_constant(text):
    raise ValueError(f"{text} is not JSON")


def read(path):
    return [json.loads(line, parse_constant=no_constant) for line in path.read_text().splitlines()]


def test_lines_are_on_disk_as_they_are_written(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path, rank=0) as metrics:
        for step in (1, 2, 3):
            metrics.write("step", step=step, loss=0.5, note="a\nb")
            assert [line["step"] for line in read(path)] == list(range(1, step + 1))
    assert read(path)[0]["note"] == "a\nb"
    assert read(path)[0]["unix_seconds"] > 1.7e9


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_become_null_with_their_text(tmp_path, value):
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path, rank=0) as metrics:
        metrics.write("step", loss=value, lr=0.1)
    line = read(path)[0]
    assert line["loss"] is None
    assert line["loss_text"] == str(value)
    assert line["lr"] == 0.1
    assert "lr_text" not in line


def test_other_ranks_write_no_file(tmp_path):
    with MetricsFile(tmp_path / "metrics.jsonl", rank=1) as metrics:
        metrics.write("step", loss=1.0)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_costs_lines_and_not_the_training(tmp_path, caplog):
    """A limit on the size of files fails like a full disk: in the middle of a line."""
    path = tmp_path / "metrics.jsonl"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN
    with MetricsFile(path, rank=0) as metrics, caplog.at_level(logging.WARNING, "ftrecipes"):
        metrics.write("step", step=1)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 9, before[1]))
            metrics.write("step", step=2)
            metrics.write("step", step=3)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        metrics.write("step", step=4)
    assert [line["step"] for line in read(path)] == [1, 4]
    (message,) = caplog.messages
    assert "could not be written" in message
    assert str(path) in message
