"""Four ranks: two replicas of two shares, by the sizes given or those of a machine, and others."""

from ftrecipes.config.sections import FsdpConfig
from tests.distributed.sharded import Case, assert_steps_equal, cut

MACHINES = FsdpConfig(sharding_strategy="HYBRID_SHARD")  # the tests' machines have two ranks each
REPLICAS = FsdpConfig(sharding_strategy="HYBRID_SHARD", replica_group_size=2)
ONE_REPLICA = FsdpConfig(sharding_strategy="HYBRID_SHARD", sharding_group_size=4)


def check_shares_repeat(folder):
    engine = cut(Case(fsdp=MACHINES)).engine
    assert (engine.replicas, engine.share.count, engine.squares_weight) == (2, 2, 0.5)
    assert engine.shard_group.size() == 2
    assert engine.shard_group.rank() == engine.share.index


def check_full(folder):
    assert_steps_equal(Case(peft=(), fsdp=MACHINES, recomputing=True), accumulation=2)


def check_lora(folder):
    assert_steps_equal(Case(fsdp=REPLICAS), accumulation=1)


def check_lora_accumulated(folder):
    assert_steps_equal(Case(fsdp=REPLICAS), accumulation=3)


def check_qlora(folder):
    assert_steps_equal(Case(storage="uint8", fsdp=MACHINES, recomputing=True), accumulation=2)


def check_one_replica(folder):
    assert_steps_equal(Case(fsdp=ONE_REPLICA), accumulation=2)


def check_qlora_on_all_ranks(folder):
    assert_steps_equal(Case(storage="uint8"), accumulation=1)
