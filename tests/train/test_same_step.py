"""The real loader, routes and step on tiny transformers models against the row-by-row reference.

Any way to cut the same rows into micro-batches must give one loss and one gradient.
"""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from ftrecipes.config.schema import TrainConfig
from ftrecipes.data.loader import Loader
from ftrecipes.data.rows import TokenRows
from ftrecipes.optim.optimizer import build_optimizer
from ftrecipes.train.evaluate import evaluate
from ftrecipes.train.probe import choose_route
from ftrecipes.train.step import BatchLoss, add_gradients
from ftrecipes.train.update import build_updater
from tests import reference, tiny_models
from tests.train.toy import CPU, FLOAT32, WORLD
from tests.train.toy_step import step_on

LENGTHS = [3, 40, 9, 2, 27, 16, 33, 12]
# name -> settings of the loader that make one step of all eight rows
SPLITS = {
    "batch of 8": {"strategy": "padding", "batch_size": 8, "accumulation": 1},
    "8 x 1": {"strategy": "padding", "batch_size": 1, "accumulation": 8},
    "4 x 2 in file order": {
        "strategy": "padding",
        "batch_size": 2,
        "accumulation": 4,
        "shuffle": "plain",
    },
    "one pack": {"strategy": "packing", "batch_size": 1, "accumulation": 1, "context_length": 256},
    "packs of 48": {
        "strategy": "packing",
        "batch_size": 1,
        "accumulation": 8,
        "context_length": 48,
    },
}
FLAT = {"llama": True, "qwen2": True, "gemma2": True, "gpt2": True, "bloom": False}


def token_rows(rows) -> TokenRows:
    return TokenRows(
        input_ids=np.array([token for ids, _ in rows for token in ids], dtype=np.int32),
        labels=np.array([label for _, labels in rows for label in labels], dtype=np.int32),
        offsets=np.cumsum([0, *(len(ids) for ids, _ in rows)]),
        sources=[f"row {number}" for number in range(len(rows))],
        report=[],
    )


def loader_of(rows, **settings) -> Loader:
    return Loader(token_rows(rows), **{"context_length": 48, "seed": 0} | settings)


@pytest.mark.parametrize("family", FLAT)
def test_every_split_of_a_step_is_the_reference(family):
    rows = tiny_models.random_rows(LENGTHS)
    model = tiny_models.build(family).train()
    model_ref = copy.deepcopy(model)
    expected_loss = reference.backward_step(model_ref, rows)
    expected = reference.gradients(model_ref)
    expected_eval = reference.evaluate(model_ref, rows)
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    route = choose_route(model, token_rows(rows), device=CPU)
    assert route.flat == FLAT[family], route.reason
    optimizer = build_optimizer(model.named_parameters(), TrainConfig())
    batch_loss = BatchLoss(model, route, FLOAT32, WORLD)
    updater = build_updater(optimizer, config=TrainConfig(), precision=FLOAT32, device=CPU)
    for name, settings in SPLITS.items():
        loader = loader_of(rows, **settings)
        (step,) = loader.step_plan(0)
        batches = [loader.micro_batch(row_ids) for row_ids in step]
        num_tokens = loader.totals(step).num_tokens
        loss_sums = add_gradients(batch_loss, updater, batches, num_tokens=num_tokens)
        assert num_tokens == reference.count_tokens(rows), name
        # float32 through two layers; sums in another order.
        assert sum(loss_sums).item() / num_tokens == pytest.approx(expected_loss, abs=1e-5), name
        found = reference.gradients(model)
        assert found.keys() == expected.keys()
        for parameter, gradient in found.items():
            error = (gradient - expected[parameter]).abs().max().item()
            assert error <= 1e-5 * max(1.0, largest), f"{name}: {parameter} is off by {error}"
        optimizer.zero_grad()
        assert evaluate(batch_loss, loader).loss == pytest.approx(expected_eval, abs=1e-5), name


@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_steps_without_rows_or_labels_are_safe(family):
    rows = tiny_models.random_rows([5, 9])
    rows.append((rows[0][0], [-100] * 5))
    model = tiny_models.build(family).train()
    model_ref = copy.deepcopy(model)
    expected_loss = reference.backward_step(model_ref, rows[:2])
    loader = loader_of(rows, strategy="padding", batch_size=1)
    batch_loss = BatchLoss(model, choose_route(model, loader.rows, device=CPU), FLOAT32, WORLD)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    updater = build_updater(
        optimizer,
        config=replace(TrainConfig(), gradient_clipping=False),
        precision=FLOAT32,
        device=CPU,
    )
    before = copy.deepcopy(model.state_dict())

    def step(*split):
        batches = [loader.micro_batch(row_ids) for row_ids in split]
        return step_on(batch_loss, updater, batches, sources=loader.rows.sources)

    for split in ([(2,)], [()], [(), (2,)]):
        result = step(*split)
        assert (result.loss, result.num_tokens) == (None, 0)
        assert result.note
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    result = step((0,), (2,), (), (1,))
    assert result.loss == pytest.approx(expected_loss, abs=1e-5)
    for name, gradient in reference.gradients(model_ref).items():
        moved = before[name] - model.get_parameter(name).detach()
        # Read off float32 weights of size about 1.
        torch.testing.assert_close(moved, gradient, rtol=1e-4, atol=1e-5)
