"""One rank with a process group: --enable_fsdp on one process."""

from ftrecipes.config.sections import FsdpConfig
from tests.distributed.sharded import Case, assert_steps_equal


def check_full(folder):
    assert_steps_equal(Case(peft=(), recomputing=True), accumulation=2)


def check_lora_no_shard(folder):
    assert_steps_equal(Case(fsdp=FsdpConfig(sharding_strategy="NO_SHARD")), accumulation=1)


def check_qlora_offloaded(folder):
    assert_steps_equal(Case(storage="uint8", fsdp=FsdpConfig(cpu_offload=True)), accumulation=2)
