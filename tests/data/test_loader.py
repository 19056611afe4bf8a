"""The plan of an epoch and the tensors of a micro-batch."""

import random
from collections import Counter
from itertools import chain

import numpy as np
import pytest
import torch

from ftrecipes.data.facts import IGNORED
from ftrecipes.data.rows import TokenRows, Totals
from tests.data.loader_rows import all_rows, draw_lengths, make_loader, make_rows

STRATEGIES = [("packing", "grouped"), ("padding", "grouped"), ("padding", "plain")]


@pytest.mark.parametrize(("strategy", "shuffle"), STRATEGIES)
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("count", [1, 3, 5, 77])
def test_each_epoch_holds_every_row_once_over_all_ranks(
    strategy, shuffle, world_size, accumulation, count
):
    """D12, S03, S04: disjoint and complete, another order each epoch, ranks in step."""
    rows = make_rows(draw_lengths(count))
    orders = set()
    for epoch in range(3):
        plans = [
            make_loader(
                rows,
                strategy=strategy,
                shuffle=shuffle,
                world_size=world_size,
                rank=rank,
                accumulation=accumulation,
            ).step_plan(epoch)
            for rank in range(world_size)
        ]
        assert all_rows(chain.from_iterable(plans)) == list(range(count))
        shapes = {tuple(map(len, plan)) for plan in plans}
        assert len(shapes) == 1
        [shape] = shapes
        assert set(shape[:-1]) <= {accumulation}
        assert 1 <= shape[-1] <= accumulation
        orders.add(str(plans))
    assert len(orders) == (3 if count > 5 else len(orders))


@pytest.mark.parametrize(("strategy", "shuffle"), STRATEGIES)
def test_the_plan_is_a_pure_function_of_its_arguments(strategy, shuffle):
    """S04, R04: nothing is drawn from a global generator, and nothing is remembered."""
    rows = make_rows(draw_lengths(50))
    first = make_loader(rows, strategy=strategy, shuffle=shuffle)
    expected = [first.step_plan(epoch) for epoch in range(3)]
    state = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    again = make_loader(rows, strategy=strategy, shuffle=shuffle)
    assert again.step_plan(2) == expected[2]
    assert first.step_plan(0) == expected[0]
    assert random.getstate() == state[0]
    assert np.random.get_state()[1].tolist() == state[1]
    assert torch.equal(torch.get_rng_state(), state[2])
    assert make_loader(rows, strategy=strategy, shuffle=shuffle, seed=4).step_plan(0) != expected[0]
    assert first.steps_per_epoch(1) == len(expected[1])


def test_a_known_plan():
    """Pinned, so that a resumed run of another version meets the same rows."""
    loader = make_loader(make_rows([10] * 8), strategy="padding", shuffle="plain")
    assert loader.step_plan(0) == [[(1, 4)], [(2, 0)], [(3, 5)], [(7, 6)]]
    assert loader.step_plan(1) == [[(1, 3)], [(6, 0)], [(7, 2)], [(4, 5)]]


@pytest.mark.parametrize("split", [(4, 3, 1), (12, 1, 1), (2, 3, 2), (1, 4, 3)])
def test_plain_steps_hold_the_same_rows_however_they_are_split(split):
    """G02: half the batch and twice the accumulation, or more ranks, is the same training."""
    batch_size, accumulation, world_size = split
    plans = [
        make_loader(
            make_rows(draw_lengths(50)),
            strategy="padding",
            shuffle="plain",
            batch_size=batch_size,
            accumulation=accumulation,
            world_size=world_size,
            rank=rank,
        ).step_plan(1)
        for rank in range(world_size)
    ]
    steps = [sorted(chain.from_iterable(chain(*step))) for step in zip(*plans, strict=True)]
    whole = make_loader(
        make_rows(draw_lengths(50)), strategy="padding", shuffle="plain", batch_size=12
    )
    assert steps == [sorted(*step) for step in whole.step_plan(1)]


def test_padding_takes_so_many_rows_and_packing_so_many_positions():
    """P09, P10, G04: 7 micro-batches in steps of 4 and 3."""
    rows = make_rows([20] * 14)
    padding = make_loader(rows, strategy="padding", accumulation=4)
    assert [len(step) for step in padding.step_plan(0)] == [4, 3]
    assert {len(batch) for step in padding.step_plan(0) for batch in step} == {2}
    packing = make_loader(rows, strategy="packing", accumulation=4)
    sizes = Counter(len(batch) for step in packing.step_plan(0) for batch in step)
    assert sizes == {6: 2, 2: 1}  # 6 x 20 of 2 x 64 positions


def test_few_rows_train():
    """D12: 3 rows and a batch of 4; and on 2 ranks, a share each."""
    rows = make_rows([9, 5, 7])
    for strategy in ("packing", "padding"):
        [[batch]] = make_loader(rows, strategy=strategy, batch_size=4).step_plan(0)
        assert sorted(batch) == [0, 1, 2]
        plans = [
            make_loader(rows, strategy=strategy, batch_size=4, world_size=2, rank=rank).step_plan(0)
            for rank in (0, 1)
        ]
        assert [[len(batch) for batch in plan[0]] for plan in plans] == [[2], [1]]


def test_a_rank_without_rows_gets_a_placeholder_that_counts_nowhere():
    """D12: the first row has nothing to train on, and may be of one token."""
    loader = make_loader(make_rows([1, 9], unlabelled=[0]), world_size=2, rank=1)
    assert loader.step_plan(0) == [[()]]
    batch = loader.micro_batch(())
    assert (batch.row_ids, batch.lengths, batch.num_tokens) == ((), (2,), 0)
    assert batch.input_ids.tolist() == [1000, 1001]
    assert batch.labels.tolist() == [IGNORED, IGNORED]
    assert batch.input_ids.dtype == batch.labels.dtype == torch.int64
    [step] = loader.world_plan(0)
    assert step == [(1,), ()]
    assert loader.totals(step) == Totals(num_tokens=6, lengths=(9,))


def test_no_rows_of_one_process_are_empty_tensors():
    batch = make_loader(make_rows([9])).micro_batch(())
    assert (batch.lengths, batch.num_tokens) == ((), 0)
    assert batch.input_ids.shape == batch.labels.shape == (0,)


@pytest.mark.parametrize("strategy", ["packing", "padding"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_evaluation_takes_every_row_once_in_a_fixed_order(strategy, world_size):
    """S03, P04"""
    rows = make_rows(draw_lengths(31))
    loaders = [
        make_loader(rows, strategy=strategy, world_size=world_size, rank=rank, seed=rank)
        for rank in range(world_size)
    ]
    plans = [loader.own(loader.evaluation_plan()) for loader in loaders]
    assert sorted(chain.from_iterable(chain.from_iterable(plans))) == list(range(31))
    assert len({len(plan) for plan in plans}) == 1
    assert plans == [loader.own(loader.evaluation_plan()) for loader in loaders]


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
@pytest.mark.parametrize("strategy", ["packing", "padding"])
def test_a_limited_evaluation_takes_the_same_rows_whatever_the_number_of_ranks(strategy, limit):
    rows = make_rows(draw_lengths(31))
    alone = make_loader(rows, strategy=strategy).evaluation_plan(limit)
    assert len(alone) == limit
    for world_size in (2, 3, 4):
        loader = make_loader(rows, strategy=strategy, world_size=world_size)
        plan = loader.evaluation_plan(limit)
        assert len(plan) % world_size == 0
        assert sorted(chain.from_iterable(plan)) == sorted(chain.from_iterable(alone))
        assert loader.totals(plan).num_tokens == loader.totals(alone).num_tokens


@pytest.mark.parametrize(("strategy", "shuffle"), STRATEGIES)
def test_totals_are_those_of_the_micro_batches_of_all_ranks(strategy, shuffle):
    rows = make_rows(draw_lengths(13), unlabelled=[2])
    options = {"strategy": strategy, "shuffle": shuffle, "world_size": 3}
    loaders = [make_loader(rows, rank=rank, **options) for rank in range(3)]
    for step in loaders[0].world_plan(0):
        batches = [loader.micro_batch(ids) for loader in loaders for ids in loader.own(step)]
        totals = loaders[0].totals(step)
        assert totals.num_tokens == sum(batch.num_tokens for batch in batches)
        assert totals.rows == sum(len(batch.row_ids) for batch in batches)
        lengths = [n for batch in batches for n in batch.lengths if batch.row_ids]
        assert sorted(totals.lengths) == sorted(lengths)
        assert totals.positions == sum(lengths)


def test_the_first_micro_batches_of_an_evaluation_are_not_the_longest():
    rows = make_rows(draw_lengths(400))
    for strategy in ("packing", "padding"):
        plan = make_loader(rows, strategy=strategy, batch_size=4).evaluation_plan()
        some = rows.lengths[list(chain.from_iterable(plan[: len(plan) // 4]))].mean()
        assert some == pytest.approx(rows.lengths.mean(), rel=0.15)


def test_an_epoch_of_200_000_rows_is_planned_with_all_of_them():
    """P12, with one row of 2 million positions among them."""
    lengths = np.full(200_000, 20)
    lengths[777] = 2_000_000
    rows = TokenRows(
        input_ids=np.zeros(lengths.sum(), dtype=np.int32),
        labels=np.zeros(lengths.sum(), dtype=np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        sources=[""] * len(lengths),
        report=[],
    )
    plan = make_loader(rows, batch_size=4, context_length=1000).step_plan(0)
    assert len(plan) == 1 + -(-199_999 // 200)
    assert all_rows(plan) == list(range(200_000))
