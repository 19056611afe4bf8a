"""A trace of the steps asked for, and what is said where there is none."""

import json
import logging
import resource
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from ftrecipes.report.flop_counter import FlopCounter
from ftrecipes.report.profiler import Profiler
from ftrecipes.report.recorder import Recorder

CPU = torch.device("cpu")
STEP = {"epoch": 1, "lr": 0.1, "loss": 1.0, "grad_norm": 1.0, "rows": 1, "note": ""}
STEP |= {"num_tokens": 1, "positions": 1, "seconds": 0.1}


def run_steps(folder: Path, *, steps: int, start: int, length: int, others=(), fails: int = 0):
    profiler = Profiler(folder / "profile", device=CPU, start=start, steps=length)
    path = folder / "metrics.jsonl"
    watchers = [profiler, *others]
    with Recorder(path, rank=0, device=CPU, total_steps=steps, watchers=watchers) as run:
        for number in range(1, steps + 1):
            with run.watch(number):
                torch.ones(number, 8) @ torch.ones(8, 2)
                if number == fails:
                    raise RuntimeError("out of luck")
            run.step(step=number, **STEP)


def trace(folder: Path) -> dict[str, list]:
    """Steps of the trace, and the first shapes of its products."""
    (path,) = (folder / "profile").glob("trace-*.json")
    events = json.loads(path.read_text())["traceEvents"]
    names = [event["name"] for event in events if event["name"].startswith("step ")]
    products = [event for event in events if event["name"] == "aten::mm"]
    return {
        "steps": sorted(set(names)),
        "rows": sorted(event["args"]["Input Dims"][0][0] for event in products),
    }


def test_the_steps_asked_for_are_in_the_trace_and_no_other(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="ftrecipes"):
        run_steps(tmp_path, steps=6, start=3, length=2)
    assert trace(tmp_path) == {"steps": ["step 3", "step 4"], "rows": [3, 4]}
    (table,) = (tmp_path / "profile").glob("operators-*.txt")
    assert "aten::mm" in table.read_text()
    assert "trace of 2 steps" in "".join(caplog.messages)


def test_a_trace_cut_short_is_kept_as_far_as_it_came(tmp_path):
    run_steps(tmp_path, steps=2, start=1, length=5)
    assert trace(tmp_path)["rows"] == [1, 2]


def test_a_failure_inside_the_trace_stays_the_failure(tmp_path):
    with pytest.raises(RuntimeError, match="out of luck"):
        run_steps(tmp_path, steps=4, start=1, length=4, fails=2)
    assert "step 1" in trace(tmp_path)["steps"]


def test_a_run_too_short_for_a_trace_says_so(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="ftrecipes"):
        run_steps(tmp_path, steps=2, start=3, length=1)
    (message,) = caplog.messages
    assert "there is no trace" in message
    assert "--profiler_start" in message
    assert not (tmp_path / "profile").exists()


def test_a_folder_that_can_not_be_written_costs_the_trace_only(tmp_path, caplog):
    (tmp_path / "profile").write_text("a file")
    with caplog.at_level(logging.WARNING, logger="ftrecipes"):
        run_steps(tmp_path, steps=3, start=1, length=1)
    (message,) = caplog.messages
    assert "the trace could not be written" in message
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


def test_a_trace_that_could_not_be_finished_is_none(tmp_path, caplog):
    profiler = Profiler(tmp_path, device=CPU, start=1, steps=1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with caplog.at_level(logging.INFO, logger="ftrecipes"), ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_FSIZE, before)
        # room for the table, not for the trace
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, before[1]))
        with profiler.watch(1, lambda kind, **fields: None):
            for _ in range(40):
                torch.ones(4, 8) @ torch.ones(8, 2)
    (message,) = caplog.messages
    assert "the trace could not be written" in message
    assert list(tmp_path.iterdir()) == []


def test_a_trace_beside_a_count_of_another_step(tmp_path):
    run_steps(tmp_path, steps=3, start=2, length=1, others=[FlopCounter(3)])
    assert trace(tmp_path) == {"steps": ["step 2"], "rows": [2]}
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    (count,) = [line for line in lines if line["kind"] == "flop_count"]
    assert (count["step"], count["flops"]) == (3, 2 * 3 * 8 * 2)
