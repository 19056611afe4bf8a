"""One seed for Python, NumPy and torch."""

import random

import numpy as np
import pytest
import torch

from ftrecipes.runtime.seed import seed_everything


def draws() -> list[float]:
    return [random.random(), np.random.rand(), torch.rand(()).item()]


@pytest.mark.parametrize("seed", [0, 42, 2**32 - 1])
def test_the_same_seed_gives_the_same_draws_everywhere(seed):
    seed_everything(seed)
    first = draws()
    seed_everything(seed)
    assert draws() == first
    seed_everything(seed // 2 + 1)
    assert not set(draws()) & set(first)
