"""Labels by position: which tokens of a text the model must produce."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

from ftrecipes.data.facts import IGNORED

Span = tuple[int, int]


def label_spans(
    input_ids: Sequence[int], *, text: str, offsets: Sequence[Span], spans: Sequence[Span]
) -> np.ndarray:
    """int32 [T]: the id itself where the model must produce it, -100 elsewhere.

    `offsets` are the characters of each token in `text`, `spans` those that the model must produce.
    A token is trained when it holds characters of a span: each part of a character that takes
    several tokens, and a token that begins before the span too, because without it the first word
    would never be trained. White space alone does not count for such a token: some special tokens
    swallow the blanks behind them and stay the template's. No token is judged by its id, so a pad
    token that is the end token too keeps its label where an answer ends.
    """
    labels = np.full(len(input_ids), IGNORED, dtype=np.int32)
    for start, end in spans:
        first = bisect_right(offsets, start, key=lambda offset: offset[1])
        last = bisect_left(offsets, end, key=lambda offset: offset[0])
        while first < last and offsets[first][0] < start:
            if text[start : offsets[first][1]].strip():
                break
            first += 1
        labels[first:last] = input_ids[first:last]
    return labels
