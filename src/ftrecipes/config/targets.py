"""What is checkpointed, and in which blocks: a grammar that extends llm-foundry's.

A target is one name, a list of names, or a mapping from names to places. A place is `all`, an int k
(the first k blocks), `first-k`, `last-k`, `middle-k`, `range-i-j` (from i up to, without, j), the
number of a block in a list, several of these with commas between them, or a list of them.
Numbers below 0 count from the last block. Source: llm-foundry, models/utils/act_ckpt.py.
"""

import re
from typing import Any, NewType

Target = NewType("Target", dict[str, Any])  # name -> place
EXPECTED = (
    'block, attention, mlp, norm, class names or patterns such as "model.layers.*.mlp", with commas '
    'between them, or JSON such as {"attention": "first-2, last-1", "mlp": [1]}'
)
PLACES = (
    "all, first-k, last-k, middle-k, range-i-j, a whole number k (first k), or a list of blocks"
)
_WORD = re.compile(r"(first|last|middle)-(\d+)|range-(\d+)-(\d+)|(-?\d+)")


def read_target(value: object) -> Target:
    """The target that a text, a list or a mapping says. Raises ValueError with a hint."""
    raise NotImplementedError


def blocks_at(place: object, num_blocks: int) -> tuple[int, ...]:
    """The blocks, from 0 on and in order, that a place of a target names among `num_blocks`.

    Raises ValueError, with what is wrong, for anything that is no place, and for a block or a range
    that such a model does not have; `first`, `last` and `middle` take at most all.
    """
    raise NotImplementedError
