"""One process, as the functions of `checkpoint` are told of it."""

import torch

from ftrecipes.parallel.engine import OneProcess
from ftrecipes.runtime.world import World

ONE = World(rank=0, size=1, local_rank=0, device=torch.device("cpu"))
ALONE = {"engine": OneProcess(), "world": ONE}
