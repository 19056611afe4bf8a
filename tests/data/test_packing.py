"""Packing: whole rows, none lost, little room left, work that grows with the rows."""

import random
from bisect import insort
from itertools import chain

import numpy as np
import pytest

from ftrecipes.data import packing
from ftrecipes.data.packing import MAX_OPEN, cut, group, pack, share_evenly


def draw_lengths(kind: str, count: int) -> np.ndarray:
    draw = np.random.RandomState(7)
    if kind == "mixed":  # 60 % short, 40 % long
        short = draw.rand(count) < 0.6
        return np.where(short, draw.randint(32, 129, count), draw.randint(192, 513, count))
    if kind == "lognormal":
        return np.clip(draw.lognormal(4.6, 0.9, count).astype(int), 4, 512)
    return draw.randint(1, 513, count)


def loads(packs, lengths) -> np.ndarray:
    return np.array([lengths[list(pack)].sum() for pack in packs])


@pytest.mark.parametrize("kind", ["mixed", "lognormal", "uniform"])
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("count", [1, 3, 100, 4000])
def test_every_row_is_in_one_pack_and_fits(kind, batch_size, count):
    lengths = draw_lengths(kind, count)
    order = random.Random(count).sample(range(count), count)
    packs = pack(order, lengths, capacity=batch_size * 512)
    assert sorted(chain.from_iterable(packs)) == list(range(count))
    assert loads(packs, lengths).max() <= batch_size * 512
    assert all(packs)


@pytest.mark.parametrize("kind", ["mixed", "lognormal", "uniform"])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_little_room_is_left(kind, batch_size):
    lengths = draw_lengths(kind, 4000)
    order = np.random.RandomState(1).permutation(4000).tolist()
    packs = pack(order, lengths, capacity=batch_size * 512)
    assert lengths.sum() / (len(packs) * batch_size * 512) > 0.95


def test_the_fullest_pack_with_room_is_taken():
    lengths = np.array([6, 7, 3, 4, 5])
    assert pack(range(5), lengths, capacity=10) == [(0, 3), (1, 2), (4,)]


@pytest.mark.parametrize(
    ("lengths", "capacity", "expected"),
    [
        ([8], 8, [(0,)]),  # S01: exactly the capacity
        ([5, 5, 5, 4], 10, [(0, 1), (2, 3)]),  # S02: 1.9 times the capacity
        ([40, 40, 40], 4096, [(0, 1, 2)]),  # P04: all rows in a corner of one pack
        ([4, 2, 3, 1], 3, [(0,), (1, 3), (2,)]),  # P05: a row over the capacity stands alone
        ([20, 20, 20], 32, [(0,), (1,), (2,)]),  # P14: rows are never split
        ([], 8, []),
    ],
)
def test_nothing_is_dropped_or_split(lengths, capacity, expected):
    assert pack(range(len(lengths)), np.array(lengths, dtype=int), capacity=capacity) == expected


def test_the_work_of_a_row_is_bounded(monkeypatch):
    """P12: four times the rows are less than six times the work, counted in entries looked at.

    Rows over half the capacity leave every pack half empty, so that all of them would stay open.
    One row of 2 million positions is no trouble.
    """
    work = []

    def counting_insort(entries, entry):
        work.append(len(entries))
        insort(entries, entry)

    monkeypatch.setattr(packing, "insort", counting_insort)
    total = {}
    for count in (5_000, 20_000):
        lengths = np.random.RandomState(3).randint(51, 70, count)
        lengths[::97] = 1
        lengths[count // 2] = 2_000_000
        work.clear()
        packs = pack(range(count), lengths, capacity=100)
        assert sum(map(len, packs)) == count
        total[count] = sum(work)
    assert max(work) == MAX_OPEN
    assert 0 < total[20_000] < 6 * total[5_000]


def test_a_bound_on_open_packs_loses_no_row(monkeypatch):
    monkeypatch.setattr(packing, "MAX_OPEN", 3)
    lengths = draw_lengths("uniform", 500)
    packs = pack(range(500), lengths, capacity=512)
    assert sorted(chain.from_iterable(packs)) == list(range(500))
    assert loads(packs, lengths).max() <= 512


def test_cut_keeps_the_order_and_a_smaller_last_batch():
    assert cut([4, 2, 0, 1, 3], batch_size=2) == [(4, 2), (0, 1), (3,)]


@pytest.mark.parametrize("count", [3, 10, 1003])
def test_groups_hold_rows_of_like_length(count):
    lengths = draw_lengths("mixed", count)
    order = np.random.RandomState(5).permutation(count).tolist()
    batches = group(order, lengths, batch_size=4)
    assert sorted(chain.from_iterable(batches)) == list(range(count))
    assert [len(batch) for batch in batches].count(4) == count // 4
    if count > 1000:
        longest = np.repeat(
            [lengths[list(batch)].max() for batch in batches], list(map(len, batches))
        )
        random_longest = [lengths[order[i // 4 * 4 : i // 4 * 4 + 4]].max() for i in range(count)]
        assert longest.sum() / lengths.sum() < 1.05
        assert sum(random_longest) / lengths.sum() > 1.5


def test_groups_change_with_the_order_even_in_a_small_set():
    lengths = draw_lengths("uniform", 40)
    made = {
        frozenset(group(np.random.RandomState(i).permutation(40).tolist(), lengths, batch_size=4))
        for i in range(3)
    }
    assert len(made) == 3


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(
    "batches", [[(1, 2)], [(1, 2), (3,)], [(1,), (2,), (3,)], [(1, 2, 3, 4, 5)]]
)
def test_shares_are_even(parts, batches):
    shared = share_evenly(batches, parts=parts)
    assert len(shared) % parts == 0
    assert len(shared) < len(batches) + parts
    assert list(chain.from_iterable(shared)) == list(chain.from_iterable(batches))
    # A rank is left without rows only when there are fewer rows than ranks.
    rows = sum(map(len, batches))
    assert shared.count(()) == max(0, len(shared) - rows)
