"""Each number of a preview's totals against a count by plain Python over the rows as lists."""

from itertools import chain, groupby, pairwise
from random import Random

import pytest

from ftrecipes.data.facts import IGNORED
from ftrecipes.data.preview_totals import count, count_batches, histogram, leaks
from tests.data.dialogs import rows_of, tokenize
from tests.data.loader_rows import draw_lengths, make_loader, make_rows
from tests.tiny_tokenizers import build_tokenizer

TOKENIZER = build_tokenizer("none")
CONTEXT = 24
BLANKS = [TOKENIZER.convert_tokens_to_ids(token) for token in ("\u0120", "\u010a", "</s>")]


def draw_rows(number: int, seed: int) -> list[dict]:
    """Finished rows: some too long, some twice, some without labels or with empty answers."""
    random, rows = Random(seed), []
    for _ in range(number):
        labels = []
        for _ in range(random.randint(1, 3)):
            labels += [IGNORED] * random.randint(1, 6)
            words = BLANKS if random.random() < 0.2 else range(40, 60)
            labels += [random.choice(words) for _ in range(random.choice([0, 1, 4, 9, 30]))]
        ids = [random.randint(40, 43) if label == IGNORED else label for label in labels]
        rows.append({"input_ids": ids, "labels": labels})
        if random.random() < 0.2:
            rows.append(random.choice(rows))
    return rows


def answers_of(labels: list[int]) -> list[list[int]]:
    stretches = groupby(labels, lambda label: label != IGNORED)
    return [list(stretch) for is_trained, stretch in stretches if is_trained]


@pytest.mark.parametrize("truncation", ["right", "left", "split", "drop"])
@pytest.mark.parametrize("seed", [1, 2])
def test_every_number(truncation, seed):
    given = draw_rows(60, seed)
    bad = [{"input_ids": [1, 2], "labels": [1]}, {"input_ids": [], "labels": []}]
    made = tokenize(
        given + bad, TOKENIZER, context_length=CONTEXT, truncation=truncation, on_bad_row="skip"
    )
    totals = count(made, TOKENIZER, name="train")
    kept = rows_of(made)
    lengths = [len(ids) for ids, _ in kept]
    long = [row for row in given if len(row["labels"]) > CONTEXT]
    trained = [sum(label != IGNORED for label in labels[1:]) for _, labels in kept]
    before = sum(label != IGNORED for row in given for label in row["labels"][1:])
    assert (totals.read, totals.kept) == (len(given) + 2, len(kept))
    assert [line.partition(":")[0] for line in totals.skipped] == [
        f"test rows row {len(given) + number}" for number in (1, 2)
    ]
    assert 0 < len(totals.long) == len(long)
    assert (
        0
        < len(totals.long_answers)
        == sum(
            any(len(answer) > CONTEXT for answer in answers_of(row["labels"]))
            # Where all is trained, it is a text.
            and IGNORED in row["labels"][1:]
            for row in given
        )
    )
    assert len(totals.untrained) == trained.count(0)
    assert totals.positions == sum(lengths)
    assert totals.tokens == sum(trained)
    assert totals.share == sum(trained) / sum(lengths)
    assert totals.lost_tokens == before - sum(trained)
    assert totals.lengths[0::3] == (min(lengths), max(lengths))
    for share, value in zip((0.5, 0.95), totals.lengths[1:3], strict=True):
        assert value == min(n for n in lengths if sum(m <= n for m in lengths) >= share * len(kept))
    seen, repeated = [], 0
    for ids, _ in kept:
        repeated += ids in seen
        seen.append(ids)
    assert 0 < len(totals.duplicates) == repeated
    assert (
        0
        < len(totals.empty_answers)
        == sum(
            any(set(answer) <= set(BLANKS) for answer in answers_of(labels)) for _, labels in kept
        )
    )


def test_duplicates_name_the_row_that_was_first():
    rows = [
        {"input_ids": ids, "labels": ids} for ids in ([5, 6], [7, 8], [5, 6], [7, 8, 9], [5, 6])
    ]
    pairs = count(tokenize(rows, TOKENIZER), TOKENIZER, name="train").duplicates
    assert pairs == [(f"test rows row {n}", "test rows row 1") for n in (3, 5)]


def test_validation_rows_that_are_trained_on():
    train, val = (
        tokenize([{"input_ids": ids, "labels": ids} for ids in rows], TOKENIZER)
        for rows in (([5, 6], [7, 8], [7, 8]), ([9, 9], [7, 8], [5, 6, 7]))
    )
    assert leaks(train, val) == [("test rows row 2", "test rows row 2")]
    assert leaks(val, train) == [
        ("test rows row 2", "test rows row 2"),
        ("test rows row 3", "test rows row 2"),
    ]


@pytest.mark.parametrize("lengths", [[1], [3, 3], [1, 2, 5, 900], draw_lengths(500), [4096] * 3])
def test_each_row_is_in_one_bin(lengths):
    rows = make_rows(lengths)
    bins = histogram(rows.lengths)
    for each in bins:
        assert each.rows == sum(each.low <= length <= each.high for length in lengths)
    assert sum(each.rows for each in bins) == len(lengths)
    assert all(after.low == one.high + 1 for one, after in pairwise(bins))
    assert bins[0].rows
    assert bins[-1].rows
    assert len(bins) <= 26


@pytest.mark.parametrize("strategy", ["packing", "padding"])
@pytest.mark.parametrize("options", [{}, {"accumulation": 3, "world_size": 2}])
def test_micro_batches_and_what_padding_would_cost(strategy, options):
    lengths = draw_lengths(200)
    rows = make_rows(lengths, unlabelled=(3, 4))
    loader = make_loader(rows, strategy=strategy, batch_size=4, **options)
    found = count_batches(loader)
    plan = loader.world_plan(0)
    batches = list(chain.from_iterable(plan))
    assert (found.steps, found.micro_batches) == (len(plan), len(batches))
    used = sum(lengths) - lengths[3] - lengths[4]
    if strategy == "packing":
        assert found.capacity == 4 * 64
        assert found.fill == pytest.approx(used / (4 * 64 * len(batches)), rel=1e-12)
    else:
        assert (found.capacity, found.fill) == (0, 1.0)
    for shuffle, share in (("plain", found.padding_random), ("grouped", found.padding_grouped)):
        padded = make_loader(rows, strategy="padding", batch_size=4, shuffle=shuffle, **options)
        held = [[lengths[row] for row in batch] for step in padded.world_plan(0) for batch in step]
        room = sum(max(batch, default=0) * len(batch) for batch in held)
        assert share == pytest.approx(1 - used / room, rel=1e-12)
    assert found.padding_grouped < found.padding_random
