"""A small model, its loss route and a loader with a given plan: real tensors, no transformers.

The model predicts each token from the one before it, so that rows need no attention; it answers the
same call as transformers' models, which lets tests/reference.py train it row by row.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

from ftrecipes.config.precision import Precision
from ftrecipes.data.rows import MicroBatch, Totals
from ftrecipes.runtime.world import World

VOCABULARY = 17
FLOAT32 = Precision(
    base="float32",
    trainable="float32",
    compute="float32",
    reduce="float32",
    autocast=False,
    loss_scaling=False,
)
CPU = torch.device("cpu")
WORLD = World(rank=0, size=1, local_rank=0, device=CPU)

Row = tuple[list[int], list[int]]


class Bigram(nn.Module):
    """Next token from this token: embedding, dropout, tanh, head."""

    def __init__(self, *, vocab_size: int = VOCABULARY, dropout: float = 0.0, seed: int = 0):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(vocab_size, 8)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, vocab_size)

    def forward(self, input_ids, attention_mask=None, use_cache=False):
        hidden = torch.tanh(self.dropout(self.embedding(input_ids)))
        return SimpleNamespace(logits=self.head(hidden))


class ToyRoute:
    """Loss of flattened rows: the first label of a row is -100, so no row predicts the next."""

    def loss_sum(self, model, input_ids, labels, lengths):
        assert lengths, "like the real routes, this one wants a row"
        assert sum(lengths) == len(input_ids) == len(labels)
        logits = model(input_ids).logits.float()
        return F.cross_entropy(logits[:-1], labels[1:], ignore_index=-100, reduction="sum")


@dataclass
class ToyLoader:
    """`plan[epoch]` = steps -> micro-batches -> row ids; evaluation by `val_batch_size` rows."""

    rows: list[Row]
    plan: list[list[list[tuple[int, ...]]]]
    val_batch_size: int = 2
    set_names: tuple[str, ...] = ()

    def steps_per_epoch(self, epoch):
        return len(self.plan[epoch])

    def world_plan(self, epoch):
        return self.plan[epoch]

    def own(self, batches):
        return batches

    def micro_batch(self, row_ids):
        return micro_batch(self.rows, row_ids)

    def evaluation_plan(self, limit=0):
        ids = tuple(range(len(self.rows)))
        size = self.val_batch_size
        plan = [ids[i : i + size] for i in range(0, len(ids), size)]
        return plan[:: len(plan) // limit] if 0 < limit < len(plan) else plan

    def totals(self, batches):
        return totals_of([micro_batch(self.rows, row_ids) for row_ids in batches])

    @property
    def num_rows(self):
        return len(self.rows)


def totals_of(batches) -> Totals:
    """What they hold together."""
    return Totals(
        num_tokens=sum(batch.num_tokens for batch in batches),
        lengths=tuple(length for batch in batches for length in batch.lengths),
    )


def micro_batch(rows: list[Row], row_ids) -> MicroBatch:
    """The rows flattened, the first label of each masked."""
    input_ids = [token for row in row_ids for token in rows[row][0]]
    labels = [label for row in row_ids for label in [-100, *rows[row][1][1:]]]
    return MicroBatch(
        row_ids=tuple(row_ids),
        lengths=tuple(len(rows[row][0]) for row in row_ids),
        input_ids=torch.tensor(input_ids, dtype=torch.int64),
        labels=torch.tensor(labels, dtype=torch.int64),
        num_tokens=sum(label != -100 for label in labels),
    )


def plan_of(num_rows: int, *, batch_size: int, accumulation: int, num_epochs: int = 1):
    """Rows in file order; windows of `accumulation` micro-batches, the last one smaller."""
    ids = tuple(range(num_rows))
    batches = [ids[i : i + batch_size] for i in range(0, num_rows, batch_size)]
    steps = [batches[i : i + accumulation] for i in range(0, len(batches), accumulation)]
    return [steps] * num_epochs


def random_rows(token_counts, *, seed: int = 0, prompt: int = 2) -> list[Row]:
    """A row for each count: `prompt` masked positions, then that many labels that count."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for count in token_counts:
        ids = torch.randint(0, VOCABULARY, (prompt + count,), generator=generator).tolist()
        rows.append((ids, [-100] * prompt + ids[prompt:]))
    return rows
