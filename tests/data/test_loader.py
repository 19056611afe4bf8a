"""The plan of an epoch and the tensors of a micro-batch."""

import random
from collections import Counter
from itertools import chain

import numpy as np
import pytest
import torch
from torch.nn import functional

from ftrecipes.data.loader import Loader
from ftrecipes.data.rows import IGNORED, TokenRows, Totals

STRATEGIES = [("packing", "grouped"), ("padding", "grouped"), ("padding", "plain")]


def make_rows(lengths, *, unlabelled=()) -> TokenRows:
    """Row r holds the ids 1000 r, 1000 r + 1, ...; all but its first third is trained."""
    ids = [np.arange(length) + 1000 * row for row, length in enumerate(lengths)]
    labels = [np.where(np.arange(len(row)) < len(row) // 3, IGNORED, row) for row in ids]
    for row in unlabelled:
        labels[row] = np.full_like(labels[row], IGNORED)
    return TokenRows(
        input_ids=np.concatenate(ids).astype(np.int32),
        labels=np.concatenate(labels).astype(np.int32),
        offsets=np.cumsum([0, *lengths]),
        sources=[f"row {row}" for row in range(len(lengths))],
        report=[],
    )


def make_loader(rows, **options) -> Loader:
    options = {"strategy": "packing", "batch_size": 2, "context_length": 64, "seed": 3} | options
    return Loader(rows, **options)


def draw_lengths(count, seed=0) -> list[int]:
    return np.random.RandomState(seed).randint(2, 64, count).tolist()


def all_rows(plan) -> list[int]:
    return sorted(chain.from_iterable(chain.from_iterable(plan)))


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


def test_a_micro_batch_is_its_rows_one_after_another():
    """P02, D15: ids and labels by hand; the first label of each row is off."""
    rows = make_rows([4, 3, 2])
    batch = make_loader(rows).micro_batch((2, 0))
    assert batch.row_ids == (2, 0)
    assert batch.lengths == (2, 4)
    assert batch.input_ids.tolist() == [2000, 2001, 0, 1, 2, 3]
    assert batch.labels.tolist() == [IGNORED, 2001, IGNORED, 1, 2, 3]
    assert batch.num_tokens == 4
    assert batch.input_ids.dtype == batch.labels.dtype == torch.int64
    # The rows themselves are as they were.
    assert rows.labels.tolist()[7:] == [2000, 2001]


def test_the_loss_of_a_micro_batch_is_the_rows_losses_each_by_itself():
    """M19, P02: shifting the flat batch by one equals shifting every row by itself."""
    rows = make_rows([4, 7, 2, 5])
    batch = make_loader(rows).micro_batch((1, 3, 0, 2))
    table = torch.randn(4000, 4000, generator=torch.Generator().manual_seed(0))
    flat = functional.cross_entropy(table[batch.input_ids[:-1]], batch.labels[1:], reduction="sum")
    each = 0.0
    for start, end in zip(rows.offsets, rows.offsets[1:], strict=False):
        ids = torch.from_numpy(rows.input_ids[start:end]).long()
        labels = torch.from_numpy(rows.labels[start:end]).long()
        each += functional.cross_entropy(table[ids[:-1]], labels[1:], reduction="sum")
    torch.testing.assert_close(flat, each, rtol=1e-6, atol=1e-4)
    assert batch.num_tokens == rows.num_tokens


@pytest.mark.parametrize("strategy", ["packing", "padding"])
def test_tokens_in_are_tokens_out(strategy):
    """P05: counted labels of all micro-batches, and positions."""
    rows = make_rows(draw_lengths(60), unlabelled=[3, 17])
    loader = make_loader(rows, strategy=strategy)
    batches = [loader.micro_batch(ids) for step in loader.step_plan(0) for ids in step]
    assert sum(batch.num_tokens for batch in batches) == rows.num_tokens
    kept = rows.lengths.sum() - rows.lengths[[3, 17]].sum()
    assert sum(len(batch.input_ids) for batch in batches) == kept


def test_rows_without_a_label_are_in_no_micro_batch():
    rows = make_rows([5, 6, 7, 1], unlabelled=[1])
    assert rows.token_counts.tolist() == [4, 0, 5, 0]
    loader = make_loader(rows)
    assert all_rows(loader.step_plan(0)) == [0, 2]
    assert sorted(chain.from_iterable(loader.evaluation_plan())) == [0, 2]


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
