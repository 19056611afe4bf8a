"""The facts of rows are those of a count by hand, in whatever pieces the rows pass."""

import numpy as np

from ftrecipes.data.chain import ChainedArrays
from ftrecipes.data.facts import FactCounter, count_facts, join_facts

IDS = np.array([5, 7, 9, 5, 300, 7, 7], dtype=np.int32)
LABELS = np.array([5, 7, -100, -100, 300, -100, -100], dtype=np.int32)
OFFSETS = np.array([0, 3, 5, 7])


def test_facts_by_hand():
    facts = count_facts(IDS, LABELS, OFFSETS)
    assert facts.token_counts.tolist() == [1, 1, 0]  # the label of a first position counts nowhere
    assert facts.used_ids.tolist() == [5, 7, 9, 300]


def test_pieces_have_the_facts_of_the_whole():
    counter = FactCounter()
    for first, last in ((0, 1), (1, 1), (1, 3)):
        part = slice(OFFSETS[first], OFFSETS[last])
        counter.add(IDS[part], LABELS[part], np.diff(OFFSETS[first : last + 1]))
    whole, found = count_facts(IDS, LABELS, OFFSETS), counter.facts()
    assert found.digest == whole.digest
    assert found.token_counts.tolist() == whole.token_counts.tolist()
    assert found.used_ids.tolist() == whole.used_ids.tolist()


def test_the_digest_tells_ids_labels_and_borders():
    more = LABELS.copy()
    more[2] = 9
    digests = {
        count_facts(IDS, LABELS, OFFSETS).digest,
        count_facts(IDS, more, OFFSETS).digest,
        count_facts(IDS, LABELS, np.array([0, 3, 6, 7])).digest,
        count_facts(LABELS, IDS, OFFSETS).digest,
    }
    assert len(digests) == 4


def test_facts_of_rows_one_behind_another():
    first = count_facts(IDS[:5], LABELS[:5], OFFSETS[:3])
    second = count_facts(IDS[5:], LABELS[5:], OFFSETS[2:] - 5)
    joined, whole = join_facts([first, second]), count_facts(IDS, LABELS, OFFSETS)
    assert joined.token_counts.tolist() == whole.token_counts.tolist()
    assert joined.used_ids.tolist() == whole.used_ids.tolist()
    assert joined.digest != join_facts([second, first]).digest


def test_slices_of_a_chain_are_those_of_the_whole():
    chained = ChainedArrays([IDS[:2], IDS[2:2], IDS[2:3], IDS[3:]])
    assert len(chained) == 7
    for start in range(8):
        for stop in range(8):
            assert chained[start:stop].tolist() == IDS[start:stop].tolist(), (start, stop)
    assert np.shares_memory(chained[3:6], IDS)
    assert chained[:].tolist() == IDS.tolist()
