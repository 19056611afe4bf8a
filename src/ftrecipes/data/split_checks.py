"""Checks of a whole split by its ids and labels alone: what begins rows, and what ends answers."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from ftrecipes.data.encode import opening_ids
from ftrecipes.data.findings import Finding, finding
from ftrecipes.data.split_ids import Split, known_ids
from ftrecipes.data.template import QUESTION, Messages, Template

ANSWER = {"role": "assistant", "content": "!"}
BLANKS = 3
"""Tokens of white space that may stand behind the last end token, where all is trained."""


def check_split(split: Split) -> Iterator[Finding]:
    """Whatever there is to say of the split."""
    yield from _ends(split)
    yield from _cut(split)
    yield from _marks(split)
    yield from _bos(split)
    yield from _pads(split)


def _ends(split: Split) -> Iterator[Finding]:
    ids, ends = split.rows.input_ids, split.last_ends
    rows = split.row_of(ends)
    unended = ~split.is_mark[ids[_words_end(split, ends)]]
    is_cut = split.is_long[rows] | (split.data.truncation == "split")
    if split.kind == "tokens":
        # Where all is trained, a row may be any piece of a text.
        starts = split.rows.offsets[:-1][rows]
        is_whole = split.rows.token_counts[rows] == split.lasts[rows] - starts
        unended &= ~is_whole
    # Of dialogs the labels are ours: such a token opens the next turn.
    followed = _before_end(split, split.ends) if split.kind == "tokens" else ends[:0]
    open_ends = ends[unended & ~is_cut & ~np.isin(ends, followed)]
    if len(followed):
        text = "in {rows} the end token behind an answer has no label"
        yield split.found("end-not-trained", text, followed)
    if len(open_ends):
        text = "{rows} end without an end token that is trained"
        yield split.found("no-end-token", text, open_ends)
    # Where all is trained, the last turn may be a user's.
    is_answer = split.kind == "chat" and split.data.train_on != "all"
    if is_answer and split.tokenizer.eos_token_id is not None:
        last = ids[ends]
        others = ends[split.is_mark[last] & (last != split.tokenizer.eos_token_id)]
        if len(others):
            mark, eos = split.word(ids[others[0]]), split.tokenizer.eos_token
            text = f"answers of {{rows}} end with {mark}, and the tokenizer's end token is {eos}"
            yield split.found("end-is-not-eos", text, others)


def _words_end(split: Split, ends: np.ndarray) -> np.ndarray:
    """`ends`, or the last position before that is not white space where all is trained."""
    ends = ends.copy()
    is_all = split.kind == "text" or split.data.train_on == "all"
    for _ in range(BLANKS if is_all else 0):
        ids = split.rows.input_ids[ends]
        known = [token for token in np.unique(ids) if not split.tokenizer.decode([token]).strip()]
        inside = ends > split.rows.offsets[split.row_of(ends)]
        ends -= np.isin(ids, known) & ~split.is_mark[ids] & inside
    return ends


def _before_end(split: Split, ends: np.ndarray) -> np.ndarray:
    """Those of `ends` that are no end token and have one without a label right behind."""
    ids = split.rows.input_ids
    inner = ends[ends != split.lasts[split.row_of(ends)]]
    return inner[~split.is_mark[ids[inner]] & split.is_one_of(split.end_ids, inner + 1)]


def _cut(split: Split) -> Iterator[Finding]:
    if split.data.truncation != "right" or not split.is_long.any():
        return
    lasts = split.lasts[split.is_long]
    long = split.rows.intake.long
    in_answer = lasts[split.is_trained[lasts] & ~split.is_one_of(split.end_ids, lasts)]
    limit = f"--context_length {split.context_length}"
    if len(in_answer):
        yield split.found("answer-cut", f"answers of {{rows}} are cut by {limit}", in_answer)
    empty = split.lasts[split.is_long & (split.rows.token_counts == 0)]
    if len(empty):
        source = split.rows.sources[int(split.row_of(empty[:1])[0])]
        text = (
            f"prompts of {{rows}} fill all of {limit} (the first of them has "
            f"{long[source]} positions): nothing of these rows is trained"
        )
        yield split.found("prompt-too-long", text, empty)


def _marks(split: Split) -> Iterator[Finding]:
    """Marks of a user's turn that are trained."""
    if split.data.train_on == "all":
        return
    opening = _write(split, QUESTION).partition(QUESTION[0]["content"])[0]
    ids = np.unique(split.tokenizer(opening, add_special_tokens=False)["input_ids"]).astype(int)
    bos = [] if _bos_opens_turns(split) else known_ids(split.tokenizer.bos_token_id)
    others = [*bos, *split.end_ids]
    headers = np.setdiff1d(ids[split.is_mark[ids]], others)
    trained = np.flatnonzero(split.is_trained & split.is_one_of(headers))
    if len(trained):
        mark = split.word(split.rows.input_ids[trained[0]])
        text = f"{mark}, which opens the turn of a user, is trained in {{rows}}"
        yield split.found("marks-trained", text, trained)


def _bos(split: Split) -> Iterator[Finding]:
    bos, ids = split.tokenizer.bos_token_id, split.rows.input_ids
    if bos is None:
        return
    starts = split.rows.offsets[:-1]
    is_bos = ids == bos
    if bos in split.end_ids:  # one token for both: only two at the beginning are one too many
        more = starts[split.rows.lengths > 1]
        more = more[is_bos[more] & is_bos[more + 1]] + 1
    else:
        is_inner = is_bos.copy()
        is_inner[starts] = False
        more = np.flatnonzero(is_inner)
        if _bos_opens_turns(split):
            more = more[is_bos[more - 1]]
    if len(more):
        text = f"{split.tokenizer.bos_token} stands where no row begins in {{rows}}"
        yield split.found("bos-repeated", text, more)
    if split.kind == "text" or bos not in opening_ids(split.tokenizer):
        return
    lacking = starts[~is_bos[starts] & ~split.is_long]
    if len(lacking) and split.data.truncation != "split":
        is_asked = split.kind == "chat" and split.data.chat_template is not None
        text = f"{{rows}} do not begin with {split.tokenizer.bos_token}, which the tokenizer adds"
        yield split.found("no-bos", text, lacking, severity=None if is_asked else "info")


def _bos_opens_turns(split: Split) -> bool:
    """Whether the template writes BOS before each turn, as those of Llama 2 and SmolLM2 do."""
    text = _write(split, [*QUESTION, ANSWER, *QUESTION, ANSWER])
    is_bos = [
        token == split.tokenizer.bos_token_id
        for token in split.tokenizer(text, add_special_tokens=False)["input_ids"]
    ]
    return any(here and not before for before, here in pairwise(is_bos))


def _write(split: Split, messages: Messages) -> str:
    """What the template makes of them; nothing where there is none, or it refuses."""
    if not isinstance(split.tokenizer.chat_template, str):
        return ""
    return Template(split.tokenizer, None).try_write(messages) or ""


def _pads(split: Split) -> Iterator[Finding]:
    pad, tokenizer = split.tokenizer.pad_token_id, split.tokenizer
    if pad is None:
        return
    if pad in split.end_ids:
        text = f"the pad token {tokenizer.pad_token} is an end token too"
        yield finding("pad-is-end", f"{text}; it keeps its labels, which follow positions")
        return
    padded = np.flatnonzero(split.rows.input_ids == pad)
    if len(padded):
        text = f"{{rows}} hold the pad token {tokenizer.pad_token}; labels follow positions"
        yield split.found("pad-in-text", text, padded)
