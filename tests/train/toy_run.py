"""A run of the toy model in a folder, and the lines that it wrote."""

import json
from dataclasses import replace

from ftrecipes.config.schema import TrainConfig
from ftrecipes.optim.optimizer import build_optimizer
from ftrecipes.optim.schedule import build_schedule, count_steps
from ftrecipes.report.recorder import Recorder
from ftrecipes.train.loop import Training, train
from ftrecipes.train.state import TrainState
from ftrecipes.train.step import BatchLoss
from ftrecipes.train.update import build_updater
from tests.train.toy import (
    CPU,
    FLOAT32,
    WORLD,
    Bigram,
    ToyLoader,
    ToyRoute,
    random_rows,
)

VALIDATION = random_rows([3, 9, 5], seed=1)


class Run:
    """A training in a folder, and the lines it wrote."""

    def __init__(
        self, folder, *, loader, model=None, validation=VALIDATION, save_best=None, **settings
    ):
        self.path = folder / "metrics.jsonl"
        self.model = model or Bigram()
        self.config = replace(TrainConfig(), **{"lr": 0.05, "num_epochs": 1} | settings)
        self.optimizer = build_optimizer(self.model.named_parameters(), self.config)
        steps = count_steps(
            loader.steps_per_epoch,
            num_epochs=self.config.num_epochs,
            max_train_step=self.config.max_train_step,
        )
        self.schedule = build_schedule(self.config, steps)
        self.state = TrainState()
        self.save_best = save_best
        self.loader = loader
        self.val_loader = validation and ToyLoader(validation, plan=[])
        self.settings = {"config": self.config, "precision": FLOAT32, "device": CPU}

    def train(self):
        with Recorder(
            self.path, rank=0, device=CPU, total_steps=self.schedule.total_steps
        ) as recorder:
            training = Training(
                batch_loss=BatchLoss(self.model, ToyRoute(), FLOAT32, WORLD),
                updater=build_updater(self.optimizer, **self.settings),
                schedule=self.schedule,
                config=self.config,
                loader=self.loader,
                sources=[f"row {row}" for row in range(1000)],
                val_loader=self.val_loader,
                recorder=recorder,
                state=self.state,
                save_best=self.save_best,
            )
            train(training)
        return self.state

    def lines(self, kind=None):
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [line for line in lines if kind in (None, line["kind"])]

    def column(self, kind, name):
        return [line[name] for line in self.lines(kind)]


def weights(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}
