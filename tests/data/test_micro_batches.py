"""The tensors of a micro-batch, and which rows and tokens are in one."""

from itertools import chain

import pytest
import torch
from torch.nn import functional

from ftrecipes.data.facts import IGNORED
from tests.data.loader_rows import all_rows, draw_lengths, make_loader, make_rows


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
