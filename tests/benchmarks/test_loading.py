"""The script of the loading table, and what the table says: a rank's peak is its share, and little.

Anonymous memory is what counts: pages of a mapped file are the disk's cache, one copy for all
processes, and go when somebody needs the room.
"""

import re

import pytest

from benchmarks.loading import HEAD, MODEL, PAGE, PLACE, SIZES, WAYS, WEIGHTS, build_model, measure

BLOCK = 4 * MODEL["hidden_size"] ** 2 + 3 * MODEL["hidden_size"] * MODEL["intermediate_size"]
LINEAR = MODEL["num_hidden_layers"] * BLOCK
ENDS = 2 * MODEL["vocab_size"] * MODEL["hidden_size"]
# embedding, head and norms besides; as stored in bfloat16
MODEL_BYTES = 2 * (LINEAR + ENDS)
BLOCK_BYTES = 2 * BLOCK


def expected_kept(method: str, ranks: int) -> float:
    """Bytes a rank keeps by the formulas of docs/memory.md."""
    if method == "none":
        return 4 * (LINEAR + ENDS) / ranks
    return LINEAR / 2 / ranks + LINEAR / 64 * (1 + 4 / 256) + 2 * ENDS / ranks


def test_the_model_is_large_enough_to_tell():
    assert MODEL_BYTES > 500e6


def test_the_table_of_the_page():
    lines = re.findall(
        r"^\| (\S+) \| (\d) \| (its share|everything) \| (\d+) \| (\d+) \| (\d+) \| [\d.]+ \|$",
        PLACE.search(PAGE.read_text(encoding="utf-8")).group(),
        re.M,
    )
    assert len(lines) == len(WEIGHTS) * len(SIZES) * len(WAYS)
    methods = {label: method for method, label in WEIGHTS.items()}
    for label, ranks, way, *numbers in lines:
        read, peak, kept = (1e6 * int(number) for number in numbers)
        whole = MODEL_BYTES / int(ranks) if way == "its share" else MODEL_BYTES
        assert read == pytest.approx(whole, rel=0.02)
        assert kept == pytest.approx(expected_kept(methods[label], int(ranks)), rel=0.02)
        if way == "its share":
            assert peak <= kept + BLOCK_BYTES


def test_the_table_is_put_between_its_marks():
    text = PAGE.read_text(encoding="utf-8")
    assert len(PLACE.findall(text)) == 1
    written = PLACE.sub(rf"\g<1>\n{HEAD}\n\g<2>", text)
    assert PLACE.sub(rf"\g<1>\n{HEAD}\n\g<2>", written) == written
    assert written.startswith(text[: text.index("<!-- loading")])


@pytest.mark.long
@pytest.mark.parametrize("method", WEIGHTS)
def test_the_peak_of_a_load_is_the_share_and_at_most_a_block(method, tmp_path):
    build_model(tmp_path)
    for load in measure(tmp_path, "on", method, size=2):
        assert load.kept_bytes == pytest.approx(expected_kept(method, 2), rel=0.02)
        assert load.peak_bytes <= load.kept_bytes + BLOCK_BYTES
        assert load.read_bytes <= 1.02 * MODEL_BYTES / 2
