"""The global generators, seeded by one number of the configuration.

The order of the rows does not come from them: it is a pure function of the seed (data/loader.py).
"""

import random

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch (all devices): dropout and whatever a custom data set draws."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def part_seeds(seed: int, rank: int) -> None:
    """From here on the ranks draw different numbers: they drop out different parts of their rows.

    Rank 0 goes on where it is, so that one process draws the same as the first of several.
    """
    if rank:
        seed_everything(seed + rank)
