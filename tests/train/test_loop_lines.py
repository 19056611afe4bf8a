"""What a run writes to metrics.jsonl and tells in the log, also when something is wrong."""

import math

import pytest
import torch

from ftrecipes.config.errors import TrainingError
from tests.train.toy import (
    VOCABULARY,
    Bigram,
    ToyLoader,
    plan_of,
    random_rows,
)
from tests.train.toy_run import Run


def test_epoch_line_is_the_token_weighted_mean_of_its_own_steps(tmp_path):
    loader = ToyLoader(
        random_rows([2, 40, 7]), plan_of(3, batch_size=1, accumulation=1, num_epochs=2)
    )
    run = Run(tmp_path, loader=loader, num_epochs=2)
    run.train()
    steps = run.lines("step")
    for number, line in enumerate(run.lines("epoch")):
        own = steps[3 * number : 3 * number + 3]
        assert line["num_tokens"] == 49
        mean = sum(step["loss"] * step["num_tokens"] for step in own) / 49
        assert line["loss"] == pytest.approx(mean)


def test_step_without_labels_is_written_as_null_and_counted(tmp_path, caplog):
    loader = ToyLoader(random_rows([5, 0, 6]), plan_of(3, batch_size=1, accumulation=1))
    with caplog.at_level("WARNING", logger="ftrecipes"):
        run = Run(tmp_path, loader=loader)
        state = run.train()
    assert (state.step, state.updates) == (3, 2)
    line = run.lines("step")[1]
    assert (line["loss"], line["grad_norm"], line["num_tokens"]) == (None, None, 0)
    assert "labels" in line["note"]
    assert "step 2: no update" in caplog.text


def test_run_that_changed_no_weight_is_told(tmp_path, caplog):
    loader = ToyLoader(random_rows([0, 0]), plan_of(2, batch_size=1, accumulation=1))
    with caplog.at_level("WARNING", logger="ftrecipes"):
        assert Run(tmp_path, loader=loader).train().updates == 0
    assert "None of the 2 steps changed the weights" in caplog.text


def test_loss_that_is_not_finite_ends_the_run_and_the_file_says_why(tmp_path):
    rows = random_rows([5, 5, 5])
    rows[2][0][0] = VOCABULARY
    rows[2][1][1] = rows[2][0][1]
    model = Bigram(vocab_size=VOCABULARY + 1)
    with torch.no_grad():
        model.embedding.weight[VOCABULARY] = math.inf
        model.embedding.weight[VOCABULARY, 0] = math.nan
    loader = ToyLoader(rows, plan_of(3, batch_size=1, accumulation=1))
    run = Run(tmp_path, loader=loader, model=model)
    with pytest.raises(TrainingError, match="Step 3: the loss is not finite"):
        run.train()
    assert run.state.step == 2
    last = run.lines()[-1]
    assert last["kind"] == "stopped"
    assert "row 2" in last["reason"]


def test_evaluation_that_is_not_finite_is_told_and_never_the_best(tmp_path, caplog):
    validation = [([0, VOCABULARY, 1], [-100, VOCABULARY, 1])]
    model = Bigram(vocab_size=VOCABULARY + 1)
    with torch.no_grad():
        model.embedding.weight[VOCABULARY] = math.nan
    loader = ToyLoader(random_rows([5]), plan_of(1, batch_size=1, accumulation=1))
    run = Run(tmp_path, loader=loader, model=model, validation=validation)
    with caplog.at_level("WARNING", logger="ftrecipes"):
        state = run.train()
    assert state.best_eval_loss is None
    assert math.isnan(state.last_eval_loss)
    line = run.lines("evaluation")[0]
    assert (line["loss"], line["loss_text"]) == (None, "nan")
    assert "evaluation loss after step 0 is nan" in caplog.text


def test_lines_hold_what_a_person_looks_for(tmp_path, caplog):
    loader = ToyLoader(random_rows([5, 6]), plan_of(2, batch_size=2, accumulation=1))
    run = Run(tmp_path, loader=loader)
    with caplog.at_level("INFO", logger="ftrecipes"):
        run.train()
    assert [line["kind"] for line in run.lines()] == [
        "evaluation",
        "step",
        "evaluation",
        "epoch",
        "end",
    ]
    step = run.lines("step")[0]
    assert (step["step"], step["epoch"], step["rows"]) == (1, 1, 2)
    assert (step["num_tokens"], step["positions"]) == (11, 15)
    assert step["tokens_per_second"] == pytest.approx(11 / step["seconds"])
    assert step["positions_per_second"] == pytest.approx(15 / step["seconds"])
    epoch = run.lines("epoch")[0]
    assert epoch["loss"] == pytest.approx(step["loss"])
    assert 10 * 2**20 < epoch["host_rss_bytes"] <= epoch["host_peak_rss_bytes"] < 2**40
    assert not [name for name in epoch if name.startswith("device_")]
    assert "pre-clip norm" in caplog.text
    assert "host peak" in caplog.text
    assert "GiB" in caplog.text
