"""Names that differ in numbers, written as one, are exactly those names."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrecipes.parallel.name_sets import compressed, numbers


@pytest.mark.parametrize(
    ("values", "text"),
    [([0], "0"), ([0, 1], "0,1"), ([0, 1, 2], "0-2"), ([0, 2, 3, 4, 5, 9], "0,2-5,9")],
)
def test_numbers(values, text):
    assert numbers(values) == text


def expand(pattern: str) -> list[str]:
    """All names that a pattern stands for, worked out by itself."""
    pieces = re.split(r"\{(.*?)\}", pattern)
    choices = [[piece] if at % 2 == 0 else _listed(piece) for at, piece in enumerate(pieces)]
    return ["".join(choice) for choice in itertools.product(*choices)]


def _listed(text: str) -> list[str]:
    ends = [[int(end) for end in part.split("-")] for part in text.split(",")]
    return [str(number) for end in ends for number in range(end[0], end[-1] + 1)]


@given(st.sets(st.tuples(st.integers(0, 4), st.sampled_from(["a2", "b"]), st.integers(0, 12))))
def test_compressed_names_are_exactly_the_names(places):
    names = [f"h.{block}.{part}.{expert}.w" for block, part, expert in places]
    again = [name for pattern in compressed(names) for name in expand(pattern)]
    assert sorted(again) == sorted(names)


def test_experts_are_compressed():
    names = [f"h.{b}.e.{e}" for b in range(3) for e in range(8) if (b, e) != (1, 0)]
    assert compressed(names) == ["h.{0,2}.e.{0-7}", "h.1.e.{1-7}"]
    assert compressed([]) == []
