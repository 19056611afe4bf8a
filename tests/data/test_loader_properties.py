"""Whatever the rows and the ranks: shares are disjoint and complete, and as many for each."""

from itertools import chain

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.loader_rows import make_loader, make_rows

ROWS = st.lists(st.integers(2, 70), min_size=1, max_size=40)
OPTIONS = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(["packing", "padding"]),
        "shuffle": st.sampled_from(["grouped", "plain"]),
        "batch_size": st.integers(1, 4),
        "accumulation": st.integers(1, 3),
        "seed": st.integers(0, 2**40),
    }
)


@settings(max_examples=200, deadline=None)
@given(ROWS, OPTIONS, st.integers(1, 5), st.integers(0, 3), st.data())
def test_shares_of_ranks(lengths, options, world_size, epoch, data):
    unlabelled = data.draw(st.sets(st.sampled_from(range(len(lengths)))))
    rows = make_rows(lengths, unlabelled=unlabelled)
    trained = np.flatnonzero(rows.token_counts).tolist()
    shares = [
        make_loader(rows, rank=rank, world_size=world_size, **options).step_plan(epoch)
        for rank in range(world_size)
    ]
    # An epoch is a permutation of the rows with something to train on, over all ranks together.
    held = list(chain.from_iterable(chain.from_iterable(chain.from_iterable(shares))))
    assert sorted(held) == trained
    assert len({len(share) for share in shares}) == 1
    for steps in zip(*shares, strict=True):
        assert len({len(micro_batches) for micro_batches in steps}) == 1
        assert 1 <= len(steps[0]) <= options["accumulation"]
    if options["strategy"] == "packing":
        room = options["batch_size"] * 64
        sizes = [[lengths[row] for row in batch] for step in chain(*shares) for batch in step]
        assert all(sum(size) <= room or len(size) == 1 for size in sizes)


@settings(max_examples=100, deadline=None)
@given(ROWS, OPTIONS, st.integers(1, 5), st.integers(0, 6))
def test_shares_of_an_evaluation(lengths, options, world_size, limit):
    rows = make_rows(lengths)
    loaders = [
        make_loader(rows, rank=rank, world_size=world_size, **options) for rank in range(world_size)
    ]
    shares = [loader.own(loader.evaluation_plan(limit)) for loader in loaders]
    held = sorted(chain.from_iterable(chain.from_iterable(shares)))
    alone = make_loader(rows, **options).evaluation_plan(limit)
    assert held == sorted(chain.from_iterable(alone))
    assert limit or held == list(range(len(lengths)))
    assert len({len(share) for share in shares}) == 1
