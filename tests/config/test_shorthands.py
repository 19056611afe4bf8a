"""A section's own name takes words, and a mapping of names may be written without JSON."""

import pytest

from ftrecipes.config.parse import parse_words
from tests.config.faults import faults_of


@pytest.mark.parametrize(
    ("words", "wandb", "tensorboard"),
    [
        ("--tracking wandb", True, False),
        ("--tracking wandb,tensorboard", True, True),
        ("--tracking [tensorboard]", False, True),
        ("--tracking none", False, False),
        ("--use_wandb", True, False),
        ("--use_wandb --tracking.tensorboard", True, True),
    ],
)
def test_tracking_names_its_tools(words, wandb, tensorboard, needed):
    tracking = parse_words([*needed, *words.split()]).config.tracking
    assert (tracking.wandb, tracking.tensorboard) == (wandb, tensorboard)


@pytest.mark.parametrize("word", ["mlflow", "wandb,mlflow", "true", "wandb tensorboard"])
def test_other_tools_are_refused_with_the_list(word, needed):
    (fault,) = faults_of(lambda: parse_words([*needed, f"--tracking={word}"]))
    assert "expected: wandb, tensorboard, both with a comma between them, or none" in fault


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("instruction=question,output=answer", {"instruction": "question", "output": "answer"}),
        ('{"instruction": "the question"}', {"instruction": "the question"}),
        ("{}", {}),
    ],
)
def test_columns(text, columns, needed):
    config = parse_words([*needed, "--data.format", "instruction", "--data.columns", text]).config
    assert config.data.columns == columns


@pytest.mark.parametrize("text", ["question", "a=b,c", "a=b,a=c"])
def test_columns_that_are_no_pairs(text, needed):
    (fault,) = faults_of(lambda: parse_words([*needed, "--data.columns", text]))
    assert "expected: pairs such as instruction=question,output=answer, or JSON" in fault
