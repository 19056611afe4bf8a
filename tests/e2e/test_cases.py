"""Cases of other tools that take a whole run and belong to no other room (tests/cases.yaml)."""

import math

import pytest
from safetensors.torch import load_file

from tests import tiny_models
from tests.e2e.runs import WEIGHTS, lines
from tests.tiny_tokenizers import build_tokenizer


def test_without_validation_the_adapter_is_on_disk(finetune, val_file):
    """R13: nothing waits for an evaluation that never comes."""
    out = finetune(run_validation=False, save_model=True, **{"data.val_file": val_file})
    assert lines(out, "evaluation") == []
    tensors = load_file(out / WEIGHTS)
    assert [name for name, tensor in tensors.items() if not tensor.any()] == []


@pytest.mark.parametrize("accumulation", [1, 4])
def test_the_first_loss_is_that_of_guessing_whatever_the_accumulation(
    accumulation, finetune, tmp_path
):
    """S09: an untrained model guesses among all tokens, which costs ln(vocabulary) a token.

    Weights of std 0.02 give logits near 0, hence within 2 %; divided by 4 it would be far off.
    """
    tokenizer = build_tokenizer("chatml")
    folder = tiny_models.save_folder(
        "llama", tmp_path / "model", tokenizer=tokenizer, initializer_range=0.02
    )
    out = finetune(
        model_name=folder,
        batching_strategy="padding",
        batch_size_training=1,
        gradient_accumulation_steps=accumulation,
        max_train_step=1,
    )
    [step] = lines(out, "step")
    assert step["rows"] == accumulation
    assert step["loss"] == pytest.approx(math.log(len(tokenizer)), rel=0.02)
