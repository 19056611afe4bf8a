"""What the flags of a run become: steps, rates, batches, clipping, and the file of metrics."""

import json
from dataclasses import replace

import pytest

from ftrecipes.config.errors import ModelError
from ftrecipes.config.schema import DataConfig, RunConfig, TrainConfig
from ftrecipes.train.build import open_training
from ftrecipes.train.loop import train
from ftrecipes.train.state import TrainState
from tests import reference, tiny_models
from tests.model.routes import token_rows
from tests.tiny_tokenizers import build_tokenizer
from tests.train.toy import FLOAT32, WORLD


def opened(tmp_path, rows, val_rows=None, *, model=None, state=None, data=None, **settings):
    config = RunConfig(
        train=replace(TrainConfig(), output_dir=str(tmp_path), **settings),
        data=data or DataConfig(),
    )
    return open_training(
        config,
        model or tiny_models.build("llama"),
        token_rows(rows),
        val_rows and token_rows(val_rows),
        tokenizer=build_tokenizer("chatml"),
        metrics=tmp_path / "metrics.jsonl",
        precision=FLOAT32,
        world=WORLD,
        state=state or TrainState(),
    )


def test_the_schedule_counts_optimizer_steps(tmp_path):
    """160 micro-batches and an accumulation of 10: 16 steps to the end of the rate."""
    rows = tiny_models.random_rows([4] * 160, masked=0.0)
    settings = {"batching_strategy": "padding", "batch_size_training": 1, "num_epochs": 1}
    with opened(tmp_path, rows, gradient_accumulation_steps=10, **settings) as training:
        assert training.schedule.total_steps == 16
        assert training.schedule.lr_at(15) > training.schedule.lr_at(16) == 0
        assert [len(step) for step in training.loader.step_plan(0)] == [10] * 16


def test_every_flag_arrives(tmp_path):
    rows, val_rows = (tiny_models.random_rows([9] * count, masked=0.0) for count in (12, 7))
    with opened(
        tmp_path,
        rows,
        val_rows,
        batching_strategy="padding",
        batch_size_training=2,
        val_batch_size=3,
        gradient_accumulation_steps=4,
        num_epochs=5,
        max_train_step=7,
        lr=0.25,
        weight_decay=0.5,
        scheduler="linear",
        warmup_steps=3,
        gradient_clipping_threshold=0.75,
        seed=9,
        data=DataConfig(shuffle="plain"),
    ) as training:
        # 6 micro-batches of 2 rows are steps of 4 and 2.
        assert training.schedule.epoch_ends == (2, 4, 6, 7)
        assert (training.schedule.peak_lr, training.schedule.warmup_steps) == (0.25, 3)
        assert training.schedule.kind == "linear"
        assert [len(batch) for batch in training.val_loader.evaluation_plan()] == [3, 3, 1]
        groups = training.updater.optimizer.param_groups
        assert [group["weight_decay"] for group in groups] == [0.5, 0.0]
        assert training.updater.max_norm == 0.75
        assert (training.loader.seed, training.loader.shuffle) == (9, "plain")
        assert len(training.sources) == 12


@pytest.mark.parametrize(("family", "flat"), [("llama", True), ("bloom", False)])
def test_the_log_tells_the_route_and_why(tmp_path, caplog, family, flat):
    rows = tiny_models.random_rows([9, 12])
    with (
        caplog.at_level("INFO", logger="ftrecipes"),
        opened(tmp_path, rows, model=tiny_models.build(family)) as training,
    ):
        assert training.batch_loss.route.flat is flat
    reason = "rows are laid flat" if flat else "rows are padded, because its attention does not go"
    assert reason in caplog.text


def test_without_clipping_or_validation_there_is_none(tmp_path):
    rows = tiny_models.random_rows([9])
    with opened(tmp_path, rows, gradient_clipping=False) as training:
        assert training.updater.max_norm is None
        assert training.val_loader is None


def test_a_run_by_flags_equals_the_reference(tmp_path):
    """Real loader, route, step and loop: two epochs of accumulated, clipped steps."""
    rows = tiny_models.random_rows([3, 40, 9, 27, 16, 33, 12])
    val_rows = tiny_models.random_rows([20, 5, 11], seed=1)
    model, model_ref = tiny_models.build("llama"), tiny_models.build("llama")
    settings = {"batching_strategy": "padding", "batch_size_training": 2, "num_epochs": 2}
    settings |= {"gradient_accumulation_steps": 3, "scheduler": "constant", "warmup_steps": 0}
    state = TrainState()
    with opened(
        tmp_path, rows, val_rows, model=model, state=state, lr=1e-3, **settings
    ) as training:
        epochs = [training.loader.step_plan(epoch) for epoch in (0, 1)]
        train(training)
    steps = [[rows[row] for batch in step for row in batch] for plan in epochs for step in plan]
    # 4 micro-batches an epoch, one of them a single row: windows of 3 and 1.
    assert [sum(map(len, steps[:2])), sum(map(len, steps[2:]))] == [7, 7]
    losses = reference.train(model_ref, steps, lr=1e-3, max_norm=1.0)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    found = [line["loss"] for line in lines if line["kind"] == "step"]
    # float32 through two layers and four updates; sums in another order.
    assert found == pytest.approx(losses, abs=2e-5)
    assert state.last_eval_loss == pytest.approx(reference.evaluate(model_ref, val_rows), abs=2e-5)


def test_a_frozen_model_is_an_error_before_the_first_step(tmp_path):
    model = tiny_models.build("llama").requires_grad_(False)
    with (
        pytest.raises(ModelError, match="Nothing is trainable"),
        opened(tmp_path, tiny_models.random_rows([9]), model=model),
    ):
        pytest.fail("the run must not start")


def test_an_error_inside_closes_the_file_and_says_why(tmp_path):
    with (
        pytest.raises(RuntimeError, match="out of luck"),
        opened(tmp_path, tiny_models.random_rows([9])),
    ):
        raise RuntimeError("out of luck")
    [line] = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["reason"] == "RuntimeError: out of luck"


@pytest.mark.parametrize(
    ("num_rows", "context_length", "told"),
    [(40, 4, False), (40, 40, True), (4, 40, False)],
)
def test_an_epoch_of_few_steps_is_told_and_a_run_of_few_is_not(
    num_rows, context_length, told, tmp_path, caplog
):
    """40 rows of 4 positions are 40 micro-batches, or 4; `max_train_step` changes neither."""
    caplog.set_level("WARNING", logger="ftrecipes")
    rows = tiny_models.random_rows([4] * num_rows, masked=0.0)
    settings = {"batch_size_training": 1, "context_length": context_length, "max_train_step": 1}
    with opened(tmp_path, rows, **settings):
        pass
    warned = [text for text in caplog.messages if text.startswith(f"an epoch of {num_rows} rows")]
    assert [" is 4 steps, " in text for text in warned] == [True] * told
