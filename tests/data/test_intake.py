"""What came in before rows were skipped and cut: counted against lengths known beforehand."""

import json

from ftrecipes.config.sections import DataConfig
from ftrecipes.data.cache import tokenize_cached
from ftrecipes.data.facts import IGNORED
from ftrecipes.data.files import read_file
from tests.data.dialogs import tokenize
from tests.tiny_tokenizers import build_tokenizer

TOKENIZER = build_tokenizer("none")


def token_row(prompt: int, *answers: int) -> dict:
    """Positions of a prompt that is not trained, then answers with one position between them."""
    labels = [IGNORED] * prompt
    for answer in answers:
        labels += [5] * answer + [IGNORED]
    return {"input_ids": [5] * len(labels), "labels": labels}


def test_rows_before_they_are_cut_or_skipped():
    rows = [token_row(2, 3), token_row(4, 10), token_row(1, 8), {"input_ids": [1], "labels": 7}]
    rows.append({"input_ids": [5] * 9, "labels": [IGNORED] + [5] * 8})  # no answer, but a text
    made = tokenize(rows, TOKENIZER, context_length=8, on_bad_row="skip")
    intake = made.intake
    assert (intake.num_read, len(made)) == (5, 4)
    assert (intake.num_positions, intake.num_tokens) == (6 + 15 + 10 + 9, 3 + 10 + 8 + 8)
    assert intake.long == {f"test rows row {n}": length for n, length in ((2, 15), (3, 10), (5, 9))}
    assert intake.long_answers == ["test rows row 2"]
    assert len(intake.skipped) == 1
    assert intake.skipped[0].startswith("test rows row 4: key 'labels' is")


def test_it_comes_back_from_the_cache(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps(token_row(2, 30)), json.dumps(token_row(2, 3)), "{cut"]
    path.write_text("\n".join(lines))
    data = DataConfig(on_bad_row="skip")
    made, again = (
        tokenize_cached(read_file(path), TOKENIZER, data=data, context_length=8) for _ in range(2)
    )
    assert again.input_ids.base is not None  # mapped from the file, not made again
    assert made.intake == again.intake
    assert (again.intake.num_read, again.intake.long) == (3, {"rows.jsonl line 1": 33})
