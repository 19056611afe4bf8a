"""The result of a run and its best: weights, tokenizer and model card, published whole."""

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ftrecipes.checkpoint.adapter import save_adapter, verify_adapter
from ftrecipes.checkpoint.card import model_card
from ftrecipes.checkpoint.full import save_full, verify_full
from ftrecipes.checkpoint.publish import publish, publish_folder, rehearse
from ftrecipes.config.errors import CheckpointError
from ftrecipes.config.run_files import BEST, CARD
from ftrecipes.config.schema import RunConfig
from ftrecipes.runtime import log

Numbers = Mapping[str, int | float | None]


def rehearse_saving(
    config: RunConfig,
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    keeps_best: bool,
) -> None:
    """Raise CheckpointError before training when `folder` could not take the result after it.

    With `keeps_best` there will be two: the best one, and the last one or the next best.
    """
    if config.train.save_model:
        saved = [p for p in model.parameters() if p.requires_grad or not _is_adapter(model)]
        rehearse(
            folder,
            lambda staging: tokenizer.save_pretrained(str(staging)),
            needed_bytes=(1 + keeps_best) * sum(parameter.nbytes for parameter in saved),
        )


@dataclass(frozen=True)
class Result:
    """What is saved of a run: the settings, the live model, its tokenizer, and where the base model
    was read from. Its methods are for rank 0."""

    config: RunConfig
    model: PreTrainedModel | PeftModel
    tokenizer: PreTrainedTokenizerBase
    base_name: str

    def save(self, folder: Path, *, state: Numbers, keep_best: bool = False) -> bool:
        """Put what was trained into `folder`, compared there with the live model.

        `state` are the numbers of the TrainState. A `best` in `folder` stays when `keep_best`: when
        it is of this run. False, and nothing is written, with `save_model` false. Raises
        CheckpointError when the files do not hold what was trained or can not be written; an
        earlier result is then untouched.
        """
        if not self.config.train.save_model:
            log.info("--save_model False: no weights are written")
            return False
        publish(*(folder, self._writer(state), self._verify), keep=(BEST,) if keep_best else ())
        log.info(f"saved to {folder}; read back, and equal to what was trained")
        return True

    def save_best(self, folder: Path, *, state: Numbers) -> None:
        """Put what is trained so far into `best` inside `folder`, in the place of what is there.

        A failure is a warning, because training is worth more: what is there then stays.
        """
        began = time.perf_counter()
        try:
            publish_folder(folder / BEST, self._writer(state), self._verify)
        except CheckpointError as error:
            log.warning(f"The best weights so far are not kept: {error}")
            return
        log.info(
            f"lowest evaluation loss so far: saved to {folder / BEST} in "
            f"{time.perf_counter() - began:.1f} s"
        )

    def _writer(self, state: Numbers) -> Callable[[Path], None]:
        def write(staging: Path) -> None:
            if _is_adapter(self.model):
                save_adapter(self.model, staging, base_name=self.base_name)
            else:
                save_full(self.model, staging)
            self.tokenizer.save_pretrained(str(staging))
            card = model_card(self.config, base=self.base_name, state=state)
            (staging / CARD).write_text(card, encoding="utf-8", errors="backslashreplace")
            for path in filter(Path.is_file, staging.rglob("*")):
                # safetensors lets nobody else read its files
                shutil.copymode(staging / CARD, path)

        return write

    def _verify(self, staging: Path) -> None:
        (verify_adapter if _is_adapter(self.model) else verify_full)(self.model, staging)


def _is_adapter(model: PreTrainedModel | PeftModel) -> bool:
    return isinstance(model, PeftModel)
