"""One rank that opens a world and writes down what it is: `python -m ... FOLDER`."""

import json
import sys
from pathlib import Path

import torch.distributed as dist

from ftrecipes.runtime.collectives import gather_objects, sum_floats
from ftrecipes.runtime.nodes import first_on_machine
from ftrecipes.runtime.world import open_world


def main(folder: Path) -> None:
    """Write `world<rank>.json` into the folder."""
    with open_world("cpu", enable_fsdp=True, timeout_seconds=60) as world:
        with first_on_machine(world):
            pass
        found = {
            "place": [world.rank, world.size, world.local_rank, world.local_size],
            "device": str(world.device),
            "sums": sum_floats([1.0, world.rank], world),
            "machines": gather_objects(world.machine, world),
        }
        (folder / f"world{world.rank}.json").write_text(json.dumps(found))
    assert not dist.is_initialized()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
