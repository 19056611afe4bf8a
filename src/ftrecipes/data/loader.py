"""Which rows are trained together, and when: a pure function of seed, epoch, world and position."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import numpy as np
import torch

from ftrecipes.config.schema import RunConfig
from ftrecipes.data.facts import IGNORED
from ftrecipes.data.mix import draw_rows, has_weights, interleave, trained_rows
from ftrecipes.data.packing import RowIds, cut, group, pack, share_evenly
from ftrecipes.data.rows import MicroBatch, TokenRows, Totals

FEW_STEPS = 8
"""Fewer than these in an epoch of as many rows are worth a word."""


@dataclass(frozen=True)
class Loader:
    """Plans the micro-batches of an epoch and cuts them out of the rows.

    `packing` fills a micro-batch with whole rows up to `batch_size` x `context_length` positions;
    `padding` takes `batch_size` rows, of like length unless `shuffle` is `plain`. Both are run
    flattened. A step is `accumulation` micro-batches on each of `world_size` ranks; the last one of
    an epoch may be smaller. With `plain`, the rows of a step depend on the product of these three
    alone. Rows without a token to train on are in no micro-batch.

    An epoch has every other row once; of sets with weights as many of each as mix.py draws, some
    of them several times.

    Nothing is kept between calls, and nothing is asked of other ranks: each plans for all of them.
    All ranks have the same number of micro-batches in a step; when rows are few some hold none.
    """

    rows: TokenRows
    _: KW_ONLY
    strategy: Literal["packing", "padding"]
    batch_size: int
    context_length: int
    shuffle: Literal["grouped", "plain"] = "grouped"
    seed: int
    accumulation: int = 1
    world_size: int = 1
    rank: int = 0

    def steps_per_epoch(self, epoch: int) -> int:
        """Optimizer steps of this epoch; packs, and with them steps, may differ by epoch."""
        return len(self.world_plan(epoch))

    def step_plan(self, epoch: int) -> list[list[RowIds]]:
        """For each step, this rank's micro-batches as row ids."""
        return [self.own(step) for step in self.world_plan(epoch)]

    def own(self, batches: list[RowIds]) -> list[RowIds]:
        """This rank's micro-batches of those of all ranks."""
        return batches[self.rank :: self.world_size]

    def world_plan(self, epoch: int) -> list[list[RowIds]]:
        """For each step, the micro-batches of all ranks as row ids; each row drawn is in one.

        Rank r has those at r, r + `world_size`, ... (see `own`).
        """
        # MT19937's legacy stream is frozen by NumPy (NEP 19): a run can be resumed by a later one.
        random = np.random.RandomState([self.seed % 2**32, epoch])
        if has_weights(self.rows):
            drawn = draw_rows(self.rows, seed=self.seed, epoch=epoch)
            order = interleave(drawn, random)
        else:
            order = random.permutation(self._trained()).tolist()
        batches = self._batches(order)
        if self.shuffle != "plain":  # those of `plain` are in random order, and stay as they came
            batches = [batches[index] for index in random.permutation(len(batches))]
        window = self.accumulation * self.world_size
        steps = [batches[at : at + window] for at in range(0, len(batches), window)]
        if steps:
            steps[-1] = share_evenly(steps[-1], parts=self.world_size)
        return steps

    def evaluation_plan(self, limit: int = 0) -> list[RowIds]:
        """The micro-batches of all ranks (see `own`), in a fixed order that mixes the lengths.

        Every row once, each micro-batch of one data set. With `limit` > 0 only so many, spread
        evenly over the split before the ranks share them: the rows do not depend on the number of
        ranks.
        """
        members = trained_rows(self.rows) if self.set_names else [self._trained()]
        batches = [batch for own in members for batch in self._evaluation_batches(own)]
        if 0 < limit < len(batches):
            batches = [batches[index * len(batches) // limit] for index in range(limit)]
        return share_evenly(batches, parts=self.world_size)

    @property
    def set_names(self) -> tuple[str, ...]:
        """Of the data sets, where there are several."""
        names = tuple(one.name for one in self.rows.sets)
        return names if len(names) > 1 else ()

    def set_of(self, row_ids: RowIds) -> int:
        """Which of several data sets the rows of a micro-batch of an evaluation are of.

        0 for one without rows.
        """
        if not row_ids:
            return 0
        ends = np.cumsum([one.num_rows for one in self.rows.sets])
        return int(np.searchsorted(ends, row_ids[0], side="right"))

    def totals(self, batches: list[RowIds]) -> Totals:
        """What micro-batches hold together."""
        rows = np.array([row for batch in batches for row in batch], dtype=np.int64)
        return Totals(
            num_tokens=int(self.rows.token_counts[rows].sum()),
            lengths=tuple(self.rows.lengths[rows].tolist()),
        )

    @property
    def num_rows(self) -> int:
        """Rows that have something to train on."""
        return len(self._trained())

    def micro_batch(self, row_ids: RowIds) -> MicroBatch:
        """The rows one after another. Among several ranks one without rows gets a placeholder."""
        if self.world_size > 1 and not row_ids:
            return self._placeholder()
        offsets = self.rows.offsets
        places = [slice(offsets[row], offsets[row + 1]) for row in row_ids]
        lengths = tuple(int(place.stop - place.start) for place in places)
        input_ids = _gather(self.rows.input_ids, places)
        labels = _gather(self.rows.labels, places)
        first_positions = torch.tensor([0, *lengths]).cumsum(0)[:-1]
        labels[first_positions] = IGNORED
        return MicroBatch(
            row_ids=tuple(row_ids),
            lengths=lengths,
            input_ids=input_ids,
            labels=labels,
            num_tokens=int((labels != IGNORED).sum()),
        )

    def _placeholder(self) -> MicroBatch:
        """Two positions without a label that counts, and no row.

        A forward gathers what the other ranks share, so that a rank takes part although it has
        nothing to compute.
        """
        start = self.rows.offsets[self._trained()[0]]
        return MicroBatch(
            row_ids=(),
            lengths=(2,),
            input_ids=_gather(self.rows.input_ids, [slice(start, start + 2)]),
            labels=torch.full((2,), IGNORED),
            num_tokens=0,
        )

    def _trained(self) -> np.ndarray:
        return np.flatnonzero(self.rows.token_counts)

    def _evaluation_batches(self, rows: np.ndarray) -> list[RowIds]:
        if self.strategy == "packing":
            return self._batches(rows.tolist())
        rows = rows[np.argsort(-self.rows.lengths[rows], kind="stable")]
        # By first row of the file, so that the first few micro-batches are not the longest.
        return sorted(cut(rows.tolist(), batch_size=self.batch_size), key=min)

    def _batches(self, order: list[int]) -> list[RowIds]:
        if self.strategy == "packing":
            capacity = self.batch_size * self.context_length
            return pack(order, self.rows.lengths, capacity=capacity)
        if self.shuffle == "plain":
            return cut(order, batch_size=self.batch_size)
        return group(order, self.rows.lengths, batch_size=self.batch_size)


def loader_of(
    config: RunConfig,
    rows: TokenRows,
    *,
    batch_size: int | None = None,
    rank: int = 0,
    world_size: int = 1,
) -> Loader:
    """The loader of a run over these rows; `batch_size` is that of training unless it is given."""
    train = config.train
    return Loader(
        rows,
        strategy=train.batching_strategy,
        batch_size=train.batch_size_training if batch_size is None else batch_size,
        context_length=train.context_length,
        shuffle=config.data.shuffle,
        seed=train.seed,
        accumulation=train.gradient_accumulation_steps,
        world_size=world_size,
        rank=rank,
    )


def _gather(flat: np.ndarray, places: list[slice]) -> torch.Tensor:
    """int64 [T] of the chosen places."""
    parts = [flat[place] for place in places]
    return torch.from_numpy(np.concatenate(parts or [flat[:0]]).astype(np.int64))
