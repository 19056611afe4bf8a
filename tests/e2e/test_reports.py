"""What whole runs leave in wandb, TensorBoard, a trace and metrics.jsonl."""

import json

import pytest

from ftrecipes.config.errors import ConfigError
from ftrecipes.report import trackers
from ftrecipes.report.recorder import Recorder
from tests.e2e.runs import WEIGHTS, chat, lines, status
from tests.report.event_files import curves, open_events
from tests.report.test_fields import table, written
from tests.report.wandb_file import config_of, exit_code, finished_records, history

SMALL = {"batching_strategy": "padding", "batch_size_training": 2, "context_length": 256}


def test_a_run_with_everything_on(finetune, tmp_path):
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text(json.dumps(chat("What is up?", "The sky is up.")) + "\n")
    out = finetune(
        **{"use_wandb": True, "tracking.tensorboard": True, "tracking.mode": "offline"},
        **{"data.val_file": held_out, "use_profiler": True, "profiler_start": 2},
        **{"profiler_steps": 1, "flop_counter": True, "flop_counter_start": 1},
        **{"num_epochs": 2, "eval_every_steps": 1} | SMALL,
    )
    steps = lines(out, "step")
    records = finished_records(out)
    logged = history(records)
    shown = curves(open_events(out))
    assert len(steps) >= 2
    for step in steps:
        number = step["step"]
        assert logged[number]["train/loss"] == step["loss"] == shown[number]["train/loss"]
    for evaluation in lines(out, "evaluation"):
        number = evaluation["step"]
        assert logged[number]["eval/loss"] == evaluation["loss"] == shown[number]["eval/loss"]
    assert config_of(records)["num_epochs"] == 2
    assert exit_code(records) == 0

    (count,) = lines(out, "flop_count")
    assert count["step"] == 1
    # fused attention computes its scores twice; k_proj and v_proj are not known to be first
    assert count["flops"] == pytest.approx(steps[0]["flops"], rel=0.05)
    assert len(list((out / "profile").glob("trace-*.json"))) == 1
    listed = table()
    listed["end"] |= {name for name in listed["epoch"] if name.startswith("host_")}
    for kind, fields in written(out / "metrics.jsonl").items():
        assert fields <= listed[kind]
    (end,) = lines(out, "end")
    spent = end["seconds"] + end["evaluation_seconds"] + end["saving_seconds"]
    assert 0 < spent <= end["wall_seconds"]
    assert end["tokens_per_second"] == pytest.approx(end["tokens"] / end["seconds"])


@pytest.mark.parametrize("ends", ["well", "by a signal"])
def test_weights_are_saved_before_a_tracker_takes_its_time(finetune, tmp_path, monkeypatch, ends):
    """Closing wandb may take a minute; after a SIGTERM a cluster may give half of one."""
    saved = []

    def look(self, *, failed):
        saved.append((tmp_path / "out" / WEIGHTS).exists())
        assert failed == (ends == "by a signal")

    def stop(self, *, step, **fields):
        raise KeyboardInterrupt

    monkeypatch.setattr(trackers.TensorBoardTracker, "close", look)
    flags = {"tracking.tensorboard": True, "max_train_step": 1} | SMALL
    if ends == "well":
        finetune(**flags)
    else:
        monkeypatch.setattr(Recorder, "step", stop)
        with pytest.raises(KeyboardInterrupt):
            finetune(**flags)
    assert saved == [True]
    assert status(tmp_path / "out") == ("finished" if ends == "well" else "interrupted")


def test_a_second_run_replaces_no_trace_and_no_events(finetune):
    flags = {"tracking.tensorboard": True, "use_profiler": True, "profiler_start": 1}
    flags |= {"profiler_steps": 1, "max_train_step": 1} | SMALL

    def left(out):
        return {path for name in ("profile", "tensorboard") for path in (out / name).rglob("*.*")}

    first = left(finetune(**flags))
    assert len(first) == 3
    assert first < left(finetune(**flags, overwrite_output_dir=True))


def test_a_run_shorter_than_its_flop_counter_trains_and_says_so(finetune, caplog):
    out = finetune(flop_counter=True, flop_counter_start=1000, max_train_step=1, **SMALL)
    assert lines(out, "end")
    assert any("nothing was counted" in message for message in caplog.messages)


def test_no_wandb_key_ends_the_run_before_the_model_is_looked_at(finetune, tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(ConfigError, match="wandb could not be started"):
        finetune(**{"tracking.wandb": True, "model_name": "nobody/nothing"})
