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
