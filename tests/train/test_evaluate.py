"""Evaluation against the row-by-row reference."""

import gc
import math
from dataclasses import replace

import pytest
import torch

from ftrecipes.config.errors import DataError
from ftrecipes.data.loader import Loader
from ftrecipes.data.rows import RowSet
from ftrecipes.train.evaluate import _CompensatedSum, evaluate, perplexity
from ftrecipes.train.step import BatchLoss
from tests import reference
from tests.model.routes import token_rows
from tests.train.toy import CPU, FLOAT32, WORLD, Bigram, ToyLoader, ToyRoute, random_rows

LENGTHS = [2, 60, 7, 31, 0, 15, 44, 9]


def loss_of(model):
    return BatchLoss(model, ToyRoute(), FLOAT32, WORLD)


def loader_of(rows, val_batch_size):
    return ToyLoader(rows, plan=[], val_batch_size=val_batch_size)


@pytest.mark.parametrize("val_batch_size", [1, 2, 4, 8])
def test_loss_does_not_depend_on_the_batch_size(val_batch_size):
    rows = random_rows(LENGTHS)
    model = Bigram(dropout=0.5)
    result = evaluate(loss_of(model), loader_of(rows, val_batch_size))
    # float32 sums in another order.
    assert result.loss == pytest.approx(reference.evaluate(model, rows), abs=1e-6)
    assert result.perplexity == pytest.approx(math.exp(result.loss), rel=1e-12)
    assert (result.rows, result.total_rows) == (8, 8)
    assert (result.num_tokens, result.positions) == (sum(LENGTHS), sum(LENGTHS) + 16)


@pytest.mark.parametrize("strategy", ["packing", "padding"])
def test_each_of_several_data_sets_has_its_loss(strategy):
    rows = random_rows([2, 60, 7, 31, 15, 44, 9])
    sets = (RowSet("a", 2), RowSet("b", 4, 3.0), RowSet("c", 1, 0.5))
    split = replace(token_rows(rows), sets=sets)
    loader = Loader(split, strategy=strategy, batch_size=3, context_length=64, seed=1)
    model = Bigram()
    result = evaluate(loss_of(model), loader)
    assert result.loss == pytest.approx(reference.evaluate(model, rows), abs=1e-6)
    expected = {"a": rows[:2], "b": rows[2:6], "c": rows[6:]}
    assert list(result.set_losses) == ["a", "b", "c"]
    for name, own in expected.items():
        assert result.set_losses[name] == pytest.approx(reference.evaluate(model, own), abs=1e-6)
    assert sorted(row for batch in loader.evaluation_plan() for row in batch) == list(range(7))
    first = evaluate(loss_of(model), loader, max_eval_step=1)
    assert list(first.set_losses) == ["a"]
    one = Loader(
        replace(split, sets=()), strategy=strategy, batch_size=3, context_length=64, seed=1
    )
    assert evaluate(loss_of(model), one).set_losses == {}


class KnownRoute(ToyRoute):
    """Each counted label costs its own token."""

    def loss_sum(self, model, input_ids, labels, lengths):
        return labels[labels != -100].sum().float()


def test_mean_is_over_tokens_not_over_batches():
    rows = [([0, 1], [-100, 1]), ([0, 2, 3], [-100, 2, 3]), ([0, 4, 4], [-100, 4, 4])]
    batch_loss = replace(loss_of(Bigram()), route=KnownRoute())
    result = evaluate(batch_loss, loader_of(rows, 1))
    assert result.loss == pytest.approx((1 + 2 + 3 + 4 + 4) / 5)
    assert result.perplexity == pytest.approx(math.e**2.8)


def test_max_eval_step_takes_micro_batches_over_the_whole_split_and_says_how_many_rows():
    rows = random_rows([3] * 20)
    model = Bigram()
    result = evaluate(loss_of(model), loader_of(rows, 2), max_eval_step=5)
    assert (result.rows, result.total_rows, result.num_tokens) == (10, 20, 30)
    # Ten micro-batches of two rows; every second one, not the first five.
    taken = [rows[2 * batch + row] for batch in range(0, 10, 2) for row in range(2)]
    assert result.loss == pytest.approx(reference.evaluate(model, taken), abs=1e-6)
    assert evaluate(loss_of(model), loader_of(rows, 2), max_eval_step=99).rows == 20


def test_every_module_gets_its_mode_back_even_after_an_error():
    model = Bigram(dropout=0.5).train()
    model.head.eval()
    evaluate(loss_of(model), loader_of(random_rows([3, 4]), 1))
    with pytest.raises(DataError):
        evaluate(loss_of(model), loader_of(random_rows([0]), 1))
    assert (model.training, model.dropout.training, model.head.training) == (True, True, False)


class Watching(ToyRoute):
    """Counts the tensors alive at two micro-batches, and sees whether a graph is built."""

    def __init__(self, counted_at):
        self.counted_at = counted_at
        self.alive = []
        self.graphs = []

    def loss_sum(self, model, input_ids, labels, lengths):
        loss_sum = super().loss_sum(model, input_ids, labels, lengths)
        if len(self.graphs) in self.counted_at:
            self.alive.append(sum(type(thing) is torch.Tensor for thing in gc.get_objects()))
        self.graphs.append(loss_sum.requires_grad)
        return loss_sum


def test_nothing_is_kept_from_one_micro_batch_to_the_next_and_no_graph_is_built():
    route = Watching(counted_at=(2, 199))
    evaluate(replace(loss_of(Bigram()), route=route), loader_of(random_rows([4] * 200), 1))
    assert route.alive[0] == route.alive[1]
    assert route.graphs == [False] * 200


def test_split_without_counted_labels_is_an_error():
    with pytest.raises(DataError, match="No label of the validation rows counts"):
        evaluate(loss_of(Bigram()), loader_of(random_rows([0, 0]), 1))


def test_perplexity_of_a_huge_loss_is_infinite():
    assert perplexity(710.0) == math.inf
    assert perplexity(math.inf) == math.inf
    assert math.isnan(perplexity(math.nan))


def test_running_sum_stays_exact_over_many_micro_batches():
    terms = (torch.rand(20_000, generator=torch.Generator().manual_seed(0)) * 100).float()
    running = _CompensatedSum(CPU)
    for term in terms:
        running.add(term)
    # One rounding of a float32 is 6e-8 of it; adding them up naively is off by far more.
    assert running.item() == pytest.approx(terms.double().sum().item(), rel=1.2e-7)
