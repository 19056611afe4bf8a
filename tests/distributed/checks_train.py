"""Training on the shares of any number of ranks equals one process on the same rows."""

from dataclasses import replace

import torch
import torch.distributed as dist

from ftrecipes.config.sections import FsdpConfig
from ftrecipes.data.rows import RowSet
from ftrecipes.train.evaluate import evaluate
from tests.distributed.sharded import Case
from tests.distributed.training import ROWS, VALIDATION, Plan, assert_same

FULL = Plan(Case(peft=()))


def check_full(folder):
    """S19, S20, E01: losses, norms, evaluations, the means of epochs and the weights."""
    assert_same(*replace(FULL, val_rows=VALIDATION).run_both(folder / "full"))


def check_lora_accumulated_and_recomputed(folder):
    plan = Plan(Case(recomputing=True), val_rows=VALIDATION, accumulation=4)
    assert_same(*plan.run_both(folder / "lora"))


def check_qlora(folder):
    assert_same(*Plan(Case(storage="uint8", recomputing=True)).run_both(folder / "qlora"))


def check_replicas_of_shares(folder):
    """2 x 2 of four ranks."""
    shards = max(1, dist.get_world_size() // 2)
    fsdp = FsdpConfig(sharding_strategy="HYBRID_SHARD", sharding_group_size=shards)
    assert_same(*Plan(Case(fsdp=fsdp), accumulation=2).run_both(folder / "hybrid"))


def check_few_rows(folder):
    """D12: in some steps a rank has fewer rows than others, or none."""
    for count in (5, 1):
        assert_same(*Plan(rows=ROWS[:count]).run_both(folder / f"{count}rows"))


def check_a_mix_of_sets(folder):
    """Rows of small sets come several times in an epoch; each set has an evaluation loss."""
    plan = replace(
        FULL,
        sets=(RowSet("a", 3, 0.5), RowSet("b", 8, 0.5)),
        val_rows=VALIDATION,
        val_sets=(RowSet("a", 1), RowSet("b", 4)),
        accumulation=2,
    )
    found, expected = plan.run_both(folder / "mix")
    assert_same(found, expected)
    for name in ("loss/a", "loss/b"):
        losses = found.column("evaluation", name)
        assert len(losses) > 1
        torch.testing.assert_close(losses, expected.column("evaluation", name), rtol=1e-5, atol=0)
    assert found.column("evaluation", "loss/a") != found.column("evaluation", "loss/b")


def check_evaluation_does_not_depend_on_the_ranks(folder):
    """S20: also on fewer rows than ranks, and with a limit; every rank has the same number."""
    for count, limit in ((5, 0), (1, 0), (5, 2), (5, 1)):
        plan = replace(FULL, val_rows=VALIDATION[:count])
        results = []
        for sharded in (True, False):
            own = folder / "evaluation" / str(dist.get_rank())
            with plan.open(own, sharded=sharded) as training:
                loader = training.val_loader
                results.append(evaluate(training.batch_loss, loader, max_eval_step=limit))
        found, expected = results
        torch.testing.assert_close(found.loss, expected.loss, rtol=1e-6, atol=0)
        counts = [(r.num_tokens, r.positions, r.rows, r.total_rows) for r in results]
        assert counts[0] == counts[1]
        losses = [None] * dist.get_world_size()
        dist.all_gather_object(losses, found.loss)
        assert set(losses) == {found.loss}
