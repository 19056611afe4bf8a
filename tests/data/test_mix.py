"""How many rows of each set an epoch draws, which ones, and in which order."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrecipes.config.errors import DataError
from ftrecipes.data.mix import count_draws, describe_draws, draw_rows, often_drawn
from ftrecipes.data.rows import RowSet, TokenRows
from tests.data.loader_rows import all_rows, draw_lengths, make_loader, make_rows

THOROUGH = settings(max_examples=100, deadline=None, derandomize=True)
STRATEGIES = [("packing", "grouped"), ("padding", "grouped"), ("padding", "plain")]
SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=4)
WEIGHTS = st.sampled_from([0.1, 0.2, 0.3, 0.7, 1.0, 1.5, 3.0, 7.0])


def make_sets(sizes, weights, *, unlabelled=()) -> TokenRows:
    rows = make_rows(draw_lengths(sum(sizes)), unlabelled=unlabelled)
    pairs = zip(sizes, weights, strict=True)
    sets = (RowSet(f"set {at}", size, weight) for at, (size, weight) in enumerate(pairs))
    return replace(rows, sets=tuple(sets))


@pytest.mark.parametrize(
    ("sizes", "weights", "expected"),
    [
        ([700, 300], [0.7, 0.3], [700, 300]),
        ([100, 100], [0.7, 0.3], [233, 100]),  # 233 1/3
        ([100, 50], [2, 1], [100, 50]),
        ([1000, 10], [0.5, 0.5], [1000, 1000]),
        ([10, 10, 10], [1, 1, 3], [10, 10, 30]),
        ([7, 3, 3], [1, 1, 1], [7, 7, 7]),
        ([7, 4, 2], [0.9, 0.4, 0.2], [9, 4, 2]),
        ([3, 3, 3], [0.3, 0.35, 0.35], [3, 4, 3]),  # 3, 3.5 and 3.5: the first set first
        ([5], [2], [5]),
    ],
)
def test_counts_of_rows(sizes, weights, expected):
    assert count_draws(sizes, weights) == expected


@THOROUGH
@given(sizes=SIZES, data=st.data())
def test_counts_are_exact_to_less_than_a_row(sizes, data):
    """Each set is off by less than one row, all together by at most a half; none loses a row."""
    weights = [data.draw(WEIGHTS) for _ in sizes]
    draws = count_draws(sizes, weights)
    exact = [Fraction(str(weight)) for weight in weights]
    scale = max(size / weight for size, weight in zip(sizes, exact, strict=True))
    assert all(abs(n - weight * scale) < 1 for n, weight in zip(draws, exact, strict=True))
    assert abs(sum(draws) - sum(exact) * scale) <= Fraction(1, 2)
    assert all(n >= size for n, size in zip(draws, sizes, strict=True))
    largest = max(range(len(sizes)), key=lambda at: sizes[at] / exact[at])
    assert draws[largest] == sizes[largest]
    # Only their proportion matters.
    assert count_draws(sizes, [8 * weight for weight in weights]) == draws


@pytest.mark.parametrize(
    ("weights", "rows", "lower"),
    [([1e-6, 1], "1.00e+9", "1"), ([1e-300, 1e300], "1.00e+603", "1e+300")],
)
def test_an_epoch_that_can_not_be_planned_is_refused(weights, rows, lower):
    with pytest.raises(DataError) as caught:
        count_draws([1000, 10], weights)
    assert f"an epoch would be {rows} rows" in str(caught.value)
    assert f"lower the weight {lower}," in str(caught.value)


@pytest.mark.parametrize(("strategy", "shuffle"), STRATEGIES)
@THOROUGH
@given(
    sizes=SIZES,
    data=st.data(),
    world_size=st.integers(1, 3),
    accumulation=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
def test_epochs_of_several_ranks(strategy, shuffle, sizes, data, world_size, accumulation, seed):
    """Shares of ranks are disjoint and complete as multisets, and of equal numbers."""
    weights = [data.draw(WEIGHTS) for _ in sizes]
    rows = make_sets(sizes, weights)
    draws, bounds = count_draws(sizes, weights), np.cumsum([0, *sizes])
    options = {"strategy": strategy, "shuffle": shuffle, "seed": seed}
    options |= {"world_size": world_size, "accumulation": accumulation}
    seen = Counter()
    for epoch in range(3):
        loaders = [make_loader(rows, rank=rank, **options) for rank in range(world_size)]
        plans = [loader.step_plan(epoch) for loader in loaders]
        assert len({tuple(map(len, plan)) for plan in plans}) == 1
        found = all_rows(chain.from_iterable(plans))
        drawn = draw_rows(rows, seed=seed, epoch=epoch)
        assert found == sorted(chain.from_iterable(own.tolist() for own in drawn))
        seen.update(found)
        for at, (start, end) in enumerate(pairwise(bounds)):
            assert sum(start <= row < end for row in found) == draws[at]
            # After any epoch the rows of a set have been drawn equally often, to one time.
            times = [seen[row] for row in range(start, end)]
            assert max(times) - min(times) <= 1
            assert sum(times) == (epoch + 1) * draws[at]
    assert seen.keys() == set(range(sum(sizes)))


@THOROUGH
@given(sizes=SIZES, data=st.data(), seed=st.integers(0, 99))
def test_no_row_is_drawn_twice_more_than_another(sizes, data, seed):
    """At any point, not only between epochs; `plain` rows are trained in the order of the draw."""
    weights = [data.draw(WEIGHTS) for _ in sizes]
    rows, bounds = make_sets(sizes, weights), np.cumsum([0, *sizes])
    loader = make_loader(rows, strategy="padding", shuffle="plain", batch_size=1, seed=seed)
    times = np.zeros(sum(sizes), dtype=int)
    for row in chain.from_iterable(loader.step_plan(epoch) for epoch in range(3)):
        times[row[0][0]] += 1
        of_set = np.searchsorted(bounds, row[0][0], side="right")
        own = times[bounds[of_set - 1] : bounds[of_set]]
        assert own.max() - own.min() <= 1


def test_any_epoch_is_had_without_those_before_it():
    rows = make_sets([50, 9], [1.0, 1.0])
    first, again = make_loader(rows), make_loader(rows)
    expected = [first.step_plan(epoch) for epoch in range(6)]
    assert again.step_plan(5) == expected[5]
    assert len({str(plan) for plan in expected}) == 6
    assert make_loader(rows, seed=4).step_plan(0) != expected[0]


def test_each_repeat_has_an_order_of_its_own():
    rows = make_sets([60, 6], [1.0, 1.0])
    of_small = draw_rows(rows, seed=3, epoch=0)[1].reshape(10, 6)
    assert (np.sort(of_small) == np.arange(60, 66)).all()
    assert len({tuple(order) for order in of_small.tolist()}) > 7
    assert len({order[0] for order in of_small.tolist()}) > 2


def test_sets_are_mixed_all_through_an_epoch():
    rows = make_sets([400, 100], [0.8, 0.2])
    plan = make_loader(rows, strategy="padding", shuffle="plain", batch_size=25).step_plan(0)
    shares = [sum(row >= 400 for row in batch) / len(batch) for [batch] in plan]
    assert max(shares) < 0.5
    assert min(shares) > 0


def test_a_known_draw():
    """Pinned, so that a resumed run of another version meets the same rows."""
    rows = make_sets([4, 3], [0.5, 0.5])
    loader = make_loader(rows, strategy="padding", shuffle="plain")
    assert loader.step_plan(0) == [[(2, 5)], [(3, 1)], [(0, 6)], [(4, 6)]]
    assert loader.step_plan(7) == [[(6, 4)], [(6, 4)], [(1, 2)], [(3, 0)]]


def test_a_large_set_is_drawn_in_blocks():
    rows = TokenRows(
        input_ids=np.zeros(2 * 20_000, dtype=np.int32),
        labels=np.zeros(2 * 20_000, dtype=np.int32),
        offsets=np.arange(0, 2 * 20_000 + 1, 2),
        sources=[""] * 20_000,
        report=[],
        sets=(RowSet("a", 5_000, 2.0), RowSet("b", 15_000, 1.0)),
    )
    drawn = draw_rows(rows, seed=1, epoch=2)
    assert [len(own) for own in drawn] == [30_000, 15_000]
    assert set(Counter(drawn[0].tolist()).values()) == {6}
    assert sorted(drawn[1].tolist()) == list(range(5_000, 20_000))


def test_sets_without_weights_are_one_set():
    """The same plan as of a file that holds all of them."""
    rows = make_sets([30, 20], [None, None])
    plain = replace(rows, sets=())
    for strategy, shuffle in STRATEGIES:
        options = {"strategy": strategy, "shuffle": shuffle}
        plans = [make_loader(each, **options).step_plan(1) for each in (rows, plain)]
        assert plans[0] == plans[1]


def test_rows_without_a_token_count_nowhere():
    rows = make_sets([4, 6], [1.0, 1.0], unlabelled=[0, 9])
    times = Counter(all_rows(make_loader(rows).step_plan(0)))
    assert sorted(times.values()) == [1] * 6 + [2] * 2  # 5 of the 3 rows of the first set
    assert set(times) == {1, 2, 3, 4, 5, 6, 7, 8}


def test_what_is_told():
    rows = make_sets([20, 5], [0.75, 0.25])
    (_, first), (name, second) = describe_draws(rows, seed=1)
    assert name == "set 1"
    assert first.startswith("20 rows, 20 drawn an epoch (1.00 times each): 75.0% asked, 74")
    assert second.startswith("5 rows, 7 drawn an epoch (1.40 times each): 25.0% asked, 25.9")
    loader = make_loader(rows, seed=1)
    tokens = [0, 0]
    for row in all_rows(loader.step_plan(0)):
        tokens[row >= 20] += rows.token_counts[row]
    for line, share in zip((first, second), np.array(tokens) / sum(tokens), strict=True):
        assert line.endswith(f"{share:.1%} of the trained tokens")
    [(_, line), _] = describe_draws(make_sets([20, 5], [None, None]), seed=1)
    assert line.startswith("20 rows, 20 drawn an epoch (1.00 times each): 80.0% of the rows")
    assert describe_draws(make_rows([3, 4]), seed=1) == []
    [(_, line), _] = describe_draws(make_sets([3, 4], [1e308, 1.5e308]), seed=1)
    assert "40.0% asked" in line


def test_sets_that_are_learnt_by_heart_are_told():
    assert often_drawn(make_sets([30, 3], [1.0, 1.0])) == ["set 1"]
    assert often_drawn(make_sets([30, 4], [1.0, 1.0])) == []
    assert often_drawn(make_sets([30, 3], [None, None])) == []
