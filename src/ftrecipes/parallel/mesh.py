"""How the ranks of a world are grouped: by rows of shards, by columns of replicas."""

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ftrecipes.config.errors import ConfigError
from ftrecipes.config.sections import FsdpConfig
from ftrecipes.runtime.world import World


def build_mesh(fsdp: FsdpConfig, world: World) -> DeviceMesh:
    """The ranks of `world` in the order of their numbers, with a process group for each dimension.

    ("shard",) of all ranks for FULL_SHARD and SHARD_GRAD_OP; ("replicate", "shard") for
    HYBRID_SHARD, and for NO_SHARD with shards of one rank. Called by all ranks. Raises ConfigError
    when the group sizes do not fit the world.
    """
    if fsdp.sharding_strategy == "HYBRID_SHARD":
        shape = hybrid_shape(fsdp, size=world.size, local_size=world.local_size)
    elif fsdp.sharding_strategy == "NO_SHARD":
        shape = (world.size, 1)
    else:
        return init_device_mesh(world.device.type, (world.size,), mesh_dim_names=("shard",))
    return init_device_mesh(world.device.type, shape, mesh_dim_names=("replicate", "shard"))


def hybrid_shape(fsdp: FsdpConfig, *, size: int, local_size: int) -> tuple[int, int]:
    """(replicas, ranks that share one) for HYBRID_SHARD in a world of `size` ranks.

    What is 0 in `fsdp` follows from the other, or from the `local_size` ranks of one machine.
    Raises ConfigError when the product is not `size`.
    """
    replicas, shards = fsdp.replica_group_size, fsdp.sharding_group_size
    shards = shards or (size // replicas if replicas else local_size)
    replicas = replicas or size // shards
    if replicas * shards == size:
        return replicas, shards
    flags = [
        f"--fsdp.{name} {value}"
        for name, value in (
            ("sharding_group_size", fsdp.sharding_group_size),
            ("replica_group_size", fsdp.replica_group_size),
        )
        if value
    ]
    fitting = ", ".join(f"{n} x {size // n}" for n in range(1, size + 1) if size % n == 0)
    raise ConfigError(
        f"--fsdp.sharding_strategy HYBRID_SHARD: the groups do not fit {size} processes.\n"
        f"  got: {' '.join(flags) or 'no group sizes'}, {local_size} processes on this machine\n"
        f"  expected: replicas x processes that share one = {size}, so {fitting}\n"
        "  do: set --fsdp.sharding_group_size to the second of one of these pairs"
    )
