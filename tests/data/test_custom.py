"""A user's own function: its contract, and rows that break it."""

import pytest

from ftrecipes.config.errors import DataError
from ftrecipes.config.sections import DataConfig
from ftrecipes.data.facts import IGNORED
from ftrecipes.data.tokenize import tokenize_rows
from tests.data.conftest import TOKENIZER
from tests.data.dialogs import rows_of, trained_text

CHAT = "{'messages': [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Yo'}]}"


def tokenized(raw):
    return tokenize_rows(raw, TOKENIZER, data=DataConfig(), context_length=99)


def test_the_function_gets_the_section_the_tokenizer_and_the_split(load):
    raw = load(
        """
        def my_rows(dataset_config, tokenizer, split):
            c = dataset_config
            values = [c.dataset, c.train_split, c.test_split, c.data_path, c.colour, split]
            return [{"instruction": value, "output": tokenizer.eos_token} for value in values]
        """,
        function=":my_rows",
        train_split="a",
        test_split="b",
        data_path="c",
        options={"colour": "red"},
    )
    values = [row["instruction"] for row in raw.rows]
    assert values == ["custom_dataset", "a", "b", "c", "red", "a"]
    assert raw.rows[0]["output"] == "<|im_end|>"
    assert raw.sources[0] == "mine.py a row 1"


def test_the_default_function_and_the_validation_split(load):
    code = """
    def get_custom_dataset(dataset_config, tokenizer, split):
        return None if split == "test" else [{"instruction": split, "output": "x"}]
    """
    assert load(code, is_train=False).rows[0]["instruction"] == "validation"
    assert load(code, is_train=False, test_split="test") is None
    with pytest.raises(DataError, match=r"returned no rows for split 'test' \(None\)"):
        load(code, train_split="test")


@pytest.mark.parametrize(
    "made", ["rows", "(row for row in rows)", "datasets.Dataset.from_list(rows)", "Indexed()"]
)
def test_rows_may_come_in_any_shape(load, made):
    raw = load(
        f"""
        import datasets, torch
        rows = [{CHAT}, {CHAT}]
        class Indexed(torch.utils.data.Dataset):
            def __len__(self):
                return 2
            def __getitem__(self, index):
                return rows[index % 2]
        def get_custom_dataset(dataset_config, tokenizer, split):
            return {made}
        """
    )
    [first, second] = rows_of(tokenized(raw))
    assert first == second
    assert trained_text(TOKENIZER, first[1]) == "Yo<|im_end|>"


@pytest.mark.parametrize("made", ["ids, labels", "np.array(ids), np.array(labels)"])
def test_tokenised_rows_pass_as_they_are(load, made):
    raw = load(
        f"""
        import numpy as np
        def get_custom_dataset(dataset_config, tokenizer, split):
            ids, labels = [5, 6, 7, 0, 0], [-100, 6, 7, -100, -100]
            ids, labels = {made}
            return [{{"input_ids": ids, "labels": labels, "attention_mask": [1, 1, 1, 0, 0]}}]
        """
    )
    assert rows_of(tokenized(raw)) == [([5, 6, 7], [IGNORED, 6, 7])]


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("{'input_ids': [], 'labels': []}", "key 'input_ids' is empty; no tokens"),
        ("{'input_ids': [1, 2], 'labels': [1]}", "key 'labels' has 1 entries; input_ids has 2"),
        ("{'input_ids': [1, 999], 'labels': [1, 2]}", "outside the vocabulary of 340 tokens"),
        ("{'input_ids': [1, -1], 'labels': [1, 2]}", "outside the vocabulary"),
        ("{'input_ids': [1, 2], 'labels': [1, -1]}", "must hold -100 or ids below 340"),
        ("{'input_ids': [1, 2], 'labels': [1, 340]}", "must hold -100 or ids below 340"),
        ("{'input_ids': [1.5, 2], 'labels': [1, 2]}", "expected a list of whole numbers"),
        ("{'input_ids': [[1, 2]], 'labels': [1, 2]}", "expected a list of whole numbers"),
        ("{'input_ids': [1, [2]], 'labels': [1, 2]}", "not one flat list"),
        ("{'input_ids': [1, 2], 'labels': None}", "key 'labels' is null"),
        ("{'input_ids': [1, 2]}", "key 'labels' is missing"),
        (
            "{'input_ids': [5, 6, 7, 8], 'labels': [-100, 7, 8, 0]}",
            "key 'labels' is shifted: label i must be the token AT position i",
        ),
        (
            "{'input_ids': [5, 6, 7], 'labels': [5, 6, 7], 'attention_mask': [1, 0, 1]}",
            "one run of positions",
        ),
    ],
)
def test_a_faulty_tokenised_row_is_named(load, row, fault):
    """P08 and others"""
    raw = load(
        f"""
        def get_custom_dataset(dataset_config, tokenizer, split):
            return [{{"input_ids": [5, 6], "labels": [-100, 6]}}, {row}]
        """
    )
    with pytest.raises(DataError) as caught:
        tokenized(raw)
    assert "mine.py train row 2" in str(caught.value)
    assert fault in str(caught.value)


COLLATOR = """
import torch
def get_custom_dataset(dataset_config, tokenizer, split):
    return [{"text": "Paris"}, {"text": "the capital of France"}]
def get_data_collator(tokenizer):
    def collate(rows):
        assert len(rows) == 1
        ids = tokenizer([row["text"] for row in rows], padding="max_length", max_length=12)
        ids = {key: torch.tensor(value) for key, value in ids.items()}
        labels = ids["input_ids"].clone()
        labels[ids["attention_mask"] == 0] = -100
        return {**ids, "labels": labels, %s}
    return collate
"""


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_collator_finishes_rows_one_at_a_time(load, monkeypatch, side):
    code = COLLATOR % '"position_ids": (ids["attention_mask"].cumsum(-1) - 1).clamp(0)'
    monkeypatch.setattr(TOKENIZER, "padding_side", side)
    results = rows_of(tokenized(load(code)))
    for text, (ids, labels) in zip(["Paris", "the capital of France"], results, strict=True):
        assert ids == labels == TOKENIZER(text)["input_ids"]


def test_a_collator_may_not_return_what_batches_can_not_hold(load):
    with pytest.raises(DataError, match="returns pixel_values") as caught:
        load(COLLATOR % '"pixel_values": torch.zeros(1, 3)')
    assert "attention_mask, input_ids, labels, position_ids" in str(caught.value)
    with pytest.raises(DataError, match="position_ids do not count from 0"):
        load(COLLATOR % '"position_ids": torch.ones_like(labels)')


@pytest.mark.parametrize("rows", [0, 2])
def test_a_collator_makes_one_row_of_one(load, rows):
    """The second of two would be lost."""
    code = COLLATOR % f'"input_ids": ids["input_ids"].repeat({rows}, 1)'
    with pytest.raises(DataError, match=f"returns {rows} rows of input_ids for one"):
        load(code)


def test_a_dataclass_in_the_users_file(load):
    """dataclasses look their module up in sys.modules."""
    raw = load(
        """
        from __future__ import annotations
        from dataclasses import asdict, dataclass
        @dataclass
        class Row:
            instruction: str
            output: str
        def get_custom_dataset(dataset_config, tokenizer, split):
            return [asdict(Row("a", "b"))]
        """
    )
    assert raw.columns == ["instruction", "output"]
