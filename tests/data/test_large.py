"""P12: time grows with the rows, and memory with what is in work, not with the whole set."""

import time

from ftrecipes.data.encode import Encoder
from tests.data.dialogs import chat, tokenize
from tests.tiny_tokenizers import build_tokenizer

TOKENIZER = build_tokenizer("chatml")


def cpu_seconds(count: int) -> float:
    """Of this process, whatever else the machine does; the best of two."""
    rows = [chat(f"What is {n}?", "the fox sees it") for n in range(count)]
    taken = []
    for _ in range(2):
        start = time.process_time()
        assert len(tokenize(rows, TOKENIZER)) == count
        taken.append(time.process_time() - start)
    return min(taken)


def test_four_times_the_rows_take_about_four_times_as_long():
    assert cpu_seconds(8_000) < 6 * cpu_seconds(2_000)


def test_one_very_long_row():
    """Half a million tokens; a search over the row for each token would take hours."""
    start = time.process_time()
    rows = tokenize([chat("q", "fox " * 250_000)], TOKENIZER, context_length=4096)
    assert rows.lengths.tolist() == [4096]
    assert time.process_time() - start < 30


def test_long_rows_are_not_all_in_work_at_once(monkeypatch):
    """A batch of offsets as Python objects takes some hundred bytes a token."""
    characters = []
    encode = Encoder.encode

    def watch(encoder, batch):
        characters.append(sum(len(row.text) for row in batch))
        return encode(encoder, batch)

    monkeypatch.setattr(Encoder, "encode", watch)
    rows = [chat("q", "fox " * 50_000)] * 12
    assert len(tokenize(rows, TOKENIZER)) == 12
    assert sum(characters) > 2_400_000
    assert max(characters) < 1_300_000
