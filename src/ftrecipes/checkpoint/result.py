"""The result of a run: weights, tokenizer and model card, published whole."""

from collections.abc import Mapping
from pathlib import Path

from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ftrecipes.checkpoint.adapter import save_adapter, verify_adapter
from ftrecipes.checkpoint.card import model_card
from ftrecipes.checkpoint.full import save_full, verify_full
from ftrecipes.checkpoint.publish import publish, rehearse
from ftrecipes.config.run_files import CARD
from ftrecipes.config.schema import RunConfig
from ftrecipes.runtime import log


def rehearse_saving(
    config: RunConfig,
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
) -> None:
    """Raise CheckpointError before training when `folder` could not take the result after it."""
    if config.train.save_model:
        saved = [p for p in model.parameters() if p.requires_grad or not _is_adapter(model)]
        rehearse(
            folder,
            lambda staging: tokenizer.save_pretrained(str(staging)),
            needed_bytes=sum(parameter.nbytes for parameter in saved),
        )


def save_result(
    config: RunConfig,
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    base_name: str,
    state: Mapping[str, int | float | None],
) -> bool:
    """Put what was trained into `folder`, compared there with the live model.

    `base_name` is where the base model was read from, `state` the numbers of the TrainState.
    False, and nothing is written, with `save_model` false. Rank 0 only. Raises CheckpointError when
    the files do not hold what was trained or can not be written; an earlier result is then
    untouched.
    """
    if not config.train.save_model:
        log.info("--save_model False: no weights are written")
        return False
    is_adapter = _is_adapter(model)

    def write(staging: Path) -> None:
        if is_adapter:
            save_adapter(model, staging, base_name=base_name)
        else:
            save_full(model, staging)
        tokenizer.save_pretrained(str(staging))
        card = model_card(config, base=base_name, state=state)
        (staging / CARD).write_text(card, encoding="utf-8", errors="backslashreplace")

    def verify(staging: Path) -> None:
        (verify_adapter if is_adapter else verify_full)(model, staging)

    publish(folder, write, verify)
    log.info(f"saved to {folder}; read back, and equal to what was trained")
    return True


def _is_adapter(model: PreTrainedModel | PeftModel) -> bool:
    return isinstance(model, PeftModel)
