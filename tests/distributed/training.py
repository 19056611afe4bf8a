"""Trainings of a tiny model: on the shares of all ranks, and the same in one process."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ftrecipes.config.precision import Precision, policy_dtype
from ftrecipes.config.schema import DataConfig, RunConfig, SamplesConfig, TrainConfig
from ftrecipes.data.prompts import Prompt
from ftrecipes.data.rows import RowSet
from ftrecipes.model.adapters import trainable_parameters
from ftrecipes.parallel.engine import Engine, OneProcess
from ftrecipes.parallel.mesh import build_mesh
from ftrecipes.parallel.recompute import recompute
from ftrecipes.parallel.shard import shard
from ftrecipes.parallel.wrap import blocks_of, lora_aware_wrap_policy
from ftrecipes.runtime.world import World
from ftrecipes.train.build import open_training
from ftrecipes.train.loop import Training, train
from ftrecipes.train.state import TrainState
from ftrecipes.train.stop import NEVER
from tests import reference, tiny_models
from tests.distributed.sharded import Case
from tests.distributed.worlds import this_world
from tests.model.routes import token_rows
from tests.tiny_tokenizers import build_tokenizer
from tests.train.toy import CPU, FLOAT32

# Rows of unlike length; half of their labels count.
ROWS = tiny_models.random_rows([9, 14, 7, 21, 11, 9, 5, 17, 12, 6, 10])
VALIDATION = tiny_models.random_rows([8, 5, 13, 9, 6], seed=2)


def world_of(*, sharded: bool) -> World:
    """All ranks; or this one by itself, which then has no others to wait for."""
    if not sharded:
        return World(rank=0, size=1, local_rank=0, device=CPU)
    return this_world()


@dataclass(frozen=True)
class Plan:
    """What is trained, on what. `accumulation` is that of each rank; one process takes as many
    micro-batches as all ranks together, so that its steps hold the same rows."""

    case: Case = field(default_factory=Case)
    rows: Sequence[reference.Row] = field(default_factory=lambda: ROWS)
    val_rows: Sequence[reference.Row] | None = None
    prompts: Sequence[Prompt] = ()
    accumulation: int = 1
    precision: Precision = FLOAT32
    prepare: Callable[[nn.Module], object] = lambda model: None
    settings: dict = field(default_factory=dict)
    sets: tuple[RowSet, ...] = ()
    val_sets: tuple[RowSet, ...] = ()

    def config(self, world: World) -> RunConfig:
        usual = {"batching_strategy": "padding", "batch_size_training": 2, "val_batch_size": 2}
        usual |= {"num_epochs": 9, "max_train_step": 5, "scheduler": "constant"}
        usual |= {"lr": 1e-3, "warmup_steps": 0, "gradient_clipping_threshold": 0.5}
        micro_batches = self.accumulation * dist.get_world_size() // world.size
        usual["gradient_accumulation_steps"] = micro_batches
        train_config = replace(TrainConfig(), **usual | self.settings)
        return RunConfig(
            train=train_config, data=DataConfig(shuffle="plain"), samples=SamplesConfig()
        )

    def build(self, world: World, *, sharded: bool) -> tuple[nn.Module, Engine]:
        """The same weights each time."""
        model = self.case.build()
        self.prepare(model)
        if not sharded:
            return model, OneProcess()
        if self.case.recomputing:
            recompute(model, blocks_of(lora_aware_wrap_policy(model)))
        units, fsdp = lora_aware_wrap_policy(model), self.case.fsdp
        compute = policy_dtype(self.precision)
        compute = None if compute is None else getattr(torch, compute)
        mesh = build_mesh(fsdp, world)
        return model, shard(model, units, mesh=mesh, fsdp=fsdp, compute=compute)

    def open(self, folder: Path, *, sharded: bool, stop=NEVER, state: TrainState | None = None):
        """Context of a training that all ranks open together, or (not `sharded`) this one alone."""
        folder.mkdir(parents=True, exist_ok=True)
        world = world_of(sharded=sharded)
        model, engine = self.build(world, sharded=sharded)
        rows = replace(token_rows(self.rows), sets=self.sets)
        val_rows = None
        if self.val_rows is not None:
            val_rows = replace(token_rows(self.val_rows), sets=self.val_sets)
        return open_training(
            *(self.config(world), model, rows, val_rows),
            tokenizer=build_tokenizer("chatml"),
            prompts=self.prompts,
            metrics=folder / "metrics.jsonl",
            precision=self.precision,
            world=world,
            state=state or TrainState(),
            engine=engine,
            stop=stop,
        )

    def run(self, folder: Path, *, sharded: bool = True) -> "Outcome":
        with self.open(folder, sharded=sharded) as training:
            train(training)
        weights = whole_weights(training)
        if sharded:
            dist.barrier()  # rank 0 has written
        text = (folder / "metrics.jsonl").read_text()
        return Outcome([json.loads(line) for line in text.splitlines()], weights, training.state)

    def run_both(self, folder: Path) -> tuple["Outcome", "Outcome"]:
        """On all ranks together, and on rank 0 alone."""
        found = self.run(folder / "together")
        told = [self.run(folder / "alone", sharded=False) if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(told)
        return found, told[0]


@dataclass(frozen=True)
class Outcome:
    """What a training told, and made."""

    lines: list[dict]
    weights: dict[str, Tensor]
    state: TrainState

    def column(self, kind: str, name: str) -> list:
        return [line[name] for line in self.lines if line["kind"] == kind]


def whole_weights(training: Training) -> dict[str, Tensor]:
    """All rows of what is trained, on all ranks."""
    model, engine = training.batch_loss.model, training.batch_loss.engine
    return {n: engine.gather(p.detach()).clone() for n, p in trainable_parameters(model)}


def assert_same(found: Outcome, expected: Outcome, *, tolerance: float = 1e-5) -> None:
    """Losses, norms, counts, evaluations and weights; float32 sums come in another order.

    lr is 1e-3, so that 5 steps of Adam move a weight by up to 5e-3.
    """
    for kind in ("step", "evaluation", "epoch"):
        for name in ("loss", "grad_norm", "num_tokens", "positions", "rows", "step"):
            lines = [
                [line.get(name) for line in outcome.lines if line["kind"] == kind]
                for outcome in (found, expected)
            ]
            torch.testing.assert_close(*map(_numbers, lines), rtol=tolerance, atol=tolerance)
    assert len(found.column("step", "loss")) == 5
    assert found.weights.keys() == expected.weights.keys()
    for name, value in expected.weights.items():
        torch.testing.assert_close(found.weights[name], value, rtol=tolerance, atol=tolerance)


def _numbers(values: list) -> Tensor:
    return torch.tensor([float("nan") if x is None else x for x in values]).nan_to_num(-1)
