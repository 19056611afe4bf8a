"""Whose words of a dialog are trained: as `--data.train_on` says, less what a message takes out."""

from collections.abc import Sequence

from ftrecipes.data.kinds import ChatRow
from ftrecipes.data.masks import Span


def whose_words(row: ChatRow, train_on: str) -> tuple[list[int], list[int]]:
    """Indices of the messages that are trained, and of those that leave themselves out.

    `completion` is here as `assistant` is: where the completion begins, the row says itself.
    What a message says takes away and never adds: the last answer is the last one, and with
    `last_assistant` nothing is left when that one leaves itself out.
    """
    muted = [i for i, message in enumerate(row.messages) if message.get("train") is False]
    chosen = list(range(len(row.messages)))
    if train_on != "all":
        roles = [message["role"] for message in row.messages]
        chosen = [i for i in chosen if i >= row.first_trained and roles[i] == "assistant"]
    if train_on == "last_assistant":
        chosen = chosen[-1:]
    return [i for i in chosen if i not in muted], muted


def gaps(spans: Sequence[Span], *, start: int, end: int) -> list[Span]:
    """What `spans`, which are in order, leave of [start, end)."""
    bounds = [start, *(bound for span in spans for bound in span), end]
    pairs = zip(bounds[::2], bounds[1::2], strict=True)
    return [(first, last) for first, last in pairs if first < last]
