"""Speed, time left and what is shown of them."""

import logging

import pytest

from ftrecipes.report.progress import Progress, progress_kind
from ftrecipes.report.throughput import Throughput, clock


def test_speed_is_over_the_window_only():
    speed = Throughput(window=2)
    speed.add(seconds=100.0, num_tokens=1, positions=1)
    speed.add(seconds=1.0, num_tokens=10, positions=40)
    speed.add(seconds=3.0, num_tokens=30, positions=80)
    assert speed.tokens_per_second == pytest.approx(10)
    assert speed.positions_per_second == pytest.approx(30)
    assert speed.seconds_for(5) == pytest.approx(10)


def test_speed_before_the_first_step_is_zero():
    assert Throughput().tokens_per_second == 0
    assert Throughput().seconds_for(5) == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.6, "1:00"), (123, "2:03"), (3599.7, "1:00:00"), (3723.4, "1:02:03")],
)
def test_clock(seconds, text):
    assert clock(seconds) == text


def test_without_a_terminal_there_are_lines_at_the_ends_and_no_carriage_return(capsys, caplog):
    assert progress_kind(0) == "lines"  # pytest captures standard error
    with (
        caplog.at_level("INFO", logger="ftrecipes"),
        Progress(total_steps=5, first_step=0, kind="lines") as progress,
    ):
        for step in range(1, 6):
            progress.show(step, values={"loss": f"{1 / step:.2f}"}, seconds_left=65.0 * (5 - step))
    assert caplog.messages == ["step 1 of 5: loss 1.00, 4:20 left", "step 5 of 5: loss 0.20"]
    assert "\r" not in capsys.readouterr().err


def test_lines_come_again_after_a_while(caplog, monkeypatch):
    now = iter([0.0, 1.0, 5.0, 12.0, 13.0])
    monkeypatch.setattr("ftrecipes.report.progress.time.monotonic", lambda: next(now))
    with caplog.at_level("INFO", logger="ftrecipes"):
        progress = Progress(total_steps=9, first_step=0, kind="lines")
        for step in range(1, 5):
            progress.show(step, values={}, seconds_left=1.0)
    assert [message.split(" of")[0] for message in caplog.messages] == ["step 1", "step 3"]


def test_on_a_terminal_there_is_a_bar_and_log_lines_stand_above_it(capsys):
    logger = logging.getLogger("ftrecipes")
    with Progress(total_steps=3, first_step=1, kind="bar") as progress:
        progress.show(2, values={"loss": "0.5000", "lr": "1.00e-04"}, seconds_left=1.0)
        logger.warning("look here")
        progress.show(3, values={"loss": "0.2500", "lr": "0.00e+00"}, seconds_left=0.0)
    shown = capsys.readouterr()
    text = shown.err + shown.out
    assert "3/3" in text
    assert "loss=0.2500" in text
    assert "look here" in text


def test_other_ranks_are_silent(capsys, caplog):
    assert progress_kind(1) == "silent"
    with Progress(total_steps=1, first_step=0, kind="silent") as progress:
        progress.show(1, values={"loss": "1"}, seconds_left=0.0)
    assert capsys.readouterr().err == ""
    assert caplog.messages == []
