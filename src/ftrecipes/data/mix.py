"""Several data sets with weights: how many rows of each an epoch draws, and which ones.

Everything here is a pure function of seed, epoch and counts, so that any epoch can be had without
those before it. Legend: n rows of a set that can be trained, d of them drawn in an epoch.
"""

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import numpy as np

from ftrecipes.config.errors import DataError
from ftrecipes.data.rows import TokenRows

MOST_DRAWN = 10**8
"""Rows of an epoch; it is planned in memory."""
OFTEN = 10
BLOCK = 4096
"""Rows whose orders are drawn at once: those of a small set come many to a block."""


def count_draws(sizes: Sequence[int], weights: Sequence[float]) -> list[int]:
    """d of each set, exactly as its share of all says: the n of the relatively largest, once each.

    What is over of a row goes to the largest remainders, the first set first. No set has fewer than
    its n, because that with the most rows for its weight is the measure. Raises DataError when that
    is more than can be planned.
    """
    exact = [_exact(weight) for weight in weights]
    scale = max(size / weight for size, weight in zip(sizes, exact, strict=True))
    quotas = [weight * scale for weight in exact]
    if sum(quotas) > MOST_DRAWN:
        largest = quotas.index(max(quotas))
        total = Decimal(int(sum(quotas)))  # which may be more than a float can be
        raise DataError(
            f"--dataset: with these weights an epoch would be {total:.2e} rows.\n"
            f"  got: weights {', '.join(f'{weight:g}' for weight in weights)} of "
            f"{', '.join(map(str, sizes))} rows to train on\n"
            f"  expected: {MOST_DRAWN} rows or fewer\n"
            f"  do: lower the weight {weights[largest]:g}, or cap the rows of large sets (max_rows)"
        )
    draws = [int(quota) for quota in quotas]
    left = int(sum(quotas) + Fraction(1, 2)) - sum(draws)
    by_remainder = sorted(range(len(draws)), key=lambda at: draws[at] - quotas[at])
    for at in by_remainder[:left]:
        draws[at] += 1
    return draws


def draw_rows(rows: TokenRows, *, seed: int, epoch: int) -> list[np.ndarray]:
    """int64 [d]: of each set the row ids that an epoch draws, in order; small sets repeat.

    The order goes on from epoch to epoch: every row of the set once, in a new order, then every row
    once again. So no row is drawn a k + 2nd time before each other of its set was drawn k times.
    """
    drawn = []
    for key, (own, count) in enumerate(zip(trained_rows(rows), draws_of(rows), strict=True)):
        start = epoch * count
        drawn.append(own[_stream(len(own), start=start, count=count, seed=seed, key=key)])
    return drawn


def interleave(drawn: Sequence[np.ndarray], random: np.random.RandomState) -> list[int]:
    """The rows of all sets in random order, those of a set one after another as they were drawn."""
    of_set = np.repeat(np.arange(len(drawn)), [len(own) for own in drawn])
    random.shuffle(of_set)
    order = np.empty(len(of_set), dtype=np.int64)
    for at, own in enumerate(drawn):
        order[of_set == at] = own
    return order.tolist()


def draws_of(rows: TokenRows) -> list[int]:
    """Rows of each set that an epoch draws; without weights those that can be trained."""
    sizes = [len(own) for own in trained_rows(rows)]
    weights = [one.weight for one in rows.sets]
    return count_draws(sizes, weights) if has_weights(rows) else sizes


def has_weights(rows: TokenRows) -> bool:
    """Whether rows are drawn by weights; else each is trained once in an epoch."""
    return any(one.weight is not None for one in rows.sets)


def trained_rows(rows: TokenRows) -> list[np.ndarray]:
    """int64 [n]: of each set the ids of the rows that have something to train on."""
    trained = np.flatnonzero(rows.token_counts)
    bounds = np.cumsum([0, *(one.num_rows for one in rows.sets)])
    cuts = np.searchsorted(trained, bounds)
    return [trained[start:end] for start, end in pairwise(cuts)]


def describe_draws(rows: TokenRows, *, seed: int) -> list[tuple[str, str]]:
    """Name of each set, and what the first epoch draws of it, in rows and in trained tokens."""
    members = trained_rows(rows)
    drawn = draw_rows(rows, seed=seed, epoch=0) if has_weights(rows) else members
    counts = [len(own) for own in drawn]
    tokens = [int(rows.token_counts[own].sum()) for own in drawn]
    whole = sum(_exact(one.weight or 0) for one in rows.sets)
    lines = []
    for at, one in enumerate(rows.sets):
        times = counts[at] / len(members[at])
        asked = "" if one.weight is None else f"{float(_exact(one.weight) / whole):.1%} asked, "
        told = (
            f"{len(members[at])} rows, {counts[at]} drawn an epoch ({times:.2f} times each): "
            f"{asked}{counts[at] / sum(counts):.1%} of the rows drawn, "
            f"{tokens[at] / sum(tokens):.1%} of the trained tokens"
        )
        lines.append((one.name, told))
    return lines


def often_drawn(rows: TokenRows) -> list[str]:
    """Names of the sets whose rows an epoch repeats so often that they may be learnt by heart."""
    pairs = zip(rows.sets, trained_rows(rows), draws_of(rows), strict=True)
    return [one.name for one, own, count in pairs if count >= OFTEN * len(own)]


def _exact(weight: float) -> Fraction:
    """A weight as it is written: 0.7 is 7/10."""
    return Fraction(repr(float(weight)))


def _stream(size: int, *, start: int, count: int, seed: int, key: int) -> np.ndarray:
    """int64 [count]: places [start, start + count) of one permutation of `size` after another."""
    passes = max(1, BLOCK // size)
    block = passes * size
    parts = [
        _block(size, passes, seed=seed, key=key, number=number)
        for number in range(start // block, -(-(start + count) // block))
    ]
    first = start - start // block * block
    return np.concatenate(parts)[first : first + count]


def _block(size: int, passes: int, *, seed: int, key: int, number: int) -> np.ndarray:
    """So many permutations of `size`, one behind another."""
    random = np.random.RandomState([seed % 2**32, key, number])
    return random.random_sample((passes, size)).argsort(axis=1, kind="stable").ravel()
