"""Places against lists of the blocks that are cut as one would by hand; and anything at all."""

import json

from hypothesis import given
from hypothesis import strategies as st

from ftrecipes.config.targets import blocks_at, read_target

COUNTS = st.integers(0, 15)


def cut(word: str, first: int, second: int, blocks: list[int]) -> list[int]:
    middle = max((len(blocks) - 1) // 2 - first // 2, 0)
    return {
        "all": blocks,
        f"first-{first}": blocks[:first],
        f"last-{first}": blocks[::-1][:first],
        f"middle-{first}": blocks[middle : middle + first],
        f"range-{first}-{second}": blocks[first:second],
        str(first): [blocks[first]] if first < len(blocks) else [],
        str(-first): [blocks[-first]] if 0 < first <= len(blocks) else blocks[:1],
    }[word]


@st.composite
def places(draw: st.DrawFn, num_blocks: int) -> tuple[list, set[int]]:
    """Words and numbers of a place, and the blocks that they name."""
    words, named = [], set()
    for _ in range(draw(st.integers(1, 5))):
        first = draw(st.integers(0, num_blocks - 1))
        second = draw(st.integers(first + 1, num_blocks))
        count = draw(COUNTS)
        kinds = ["all", f"first-{count}", f"last-{count}", f"middle-{count}"]
        near = [f"range-{first}-{second}", str(first), str(-first)]
        kind = draw(st.integers(0, 6))
        word = [*kinds, *near][kind]
        words.append(word)
        named |= set(cut(word, count if kind < 4 else first, second, list(range(num_blocks))))
    return words, named


@given(st.data(), st.integers(1, 12))
def test_every_place_is_what_its_words_name(data, num_blocks):
    words, named = data.draw(places(num_blocks))
    numbers = [int(word) if word.lstrip("-").isdigit() else word for word in words]
    for place in (numbers, words, [", ".join(words)], [*numbers, *words]):
        assert read_target({"m": place}) == {"m": place}
        assert blocks_at(place, num_blocks) == tuple(sorted(named))
    if len(words) > 1:
        assert blocks_at(" , ".join(words), num_blocks) == tuple(sorted(named))


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


@given(TREES)
def test_anything_is_a_target_or_a_value_error(value):
    """And what is a target reads back from JSON, as from run.yaml."""
    try:
        target = read_target(value)
    except ValueError:
        return
    assert read_target(json.loads(json.dumps(target))) == target
    assert read_target(json.dumps(target)) == target
