"""Sizes of groups, with numbers by hand."""

import pytest

from ftrecipes.config.errors import ConfigError
from ftrecipes.config.sections import FsdpConfig
from ftrecipes.parallel.mesh import hybrid_shape


def hybrid(shards: int = 0, replicas: int = 0) -> FsdpConfig:
    return FsdpConfig(
        sharding_strategy="HYBRID_SHARD", sharding_group_size=shards, replica_group_size=replicas
    )


@pytest.mark.parametrize(
    ("fsdp", "size", "local_size", "shape"),
    [
        (hybrid(), 16, 8, (2, 8)),
        (hybrid(shards=4), 16, 8, (4, 4)),
        (hybrid(replicas=8), 16, 8, (8, 2)),
        (hybrid(shards=4, replicas=4), 16, 8, (4, 4)),
        (hybrid(), 4, 4, (1, 4)),
    ],
)
def test_sizes_that_fit(fsdp, size, local_size, shape):
    assert hybrid_shape(fsdp, size=size, local_size=local_size) == shape


@pytest.mark.parametrize(
    ("fsdp", "size", "local_size", "got"),
    [
        (hybrid(shards=3), 8, 8, "--fsdp.sharding_group_size 3"),
        (hybrid(shards=16), 8, 8, "--fsdp.sharding_group_size 16"),
        (hybrid(replicas=5), 8, 8, "--fsdp.replica_group_size 5"),
        (hybrid(replicas=9), 8, 8, "--fsdp.replica_group_size 9"),
        (hybrid(2, 2), 8, 8, "--fsdp.sharding_group_size 2 --fsdp.replica_group_size 2"),
        (hybrid(), 8, 3, "no group sizes, 3 processes on this machine"),
    ],
)
def test_sizes_that_do_not_fit(fsdp, size, local_size, got):
    with pytest.raises(ConfigError) as caught:
        hybrid_shape(fsdp, size=size, local_size=local_size)
    assert got in str(caught.value)
    assert "so 1 x 8, 2 x 4, 4 x 2, 8 x 1" in str(caught.value)
