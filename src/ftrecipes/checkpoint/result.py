"""The result of a run and its best: weights, tokenizer and model card, published whole."""

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ftrecipes.checkpoint.adapter import save_adapter, verify_adapter
from ftrecipes.checkpoint.card import model_card
from ftrecipes.checkpoint.full import rehearse_full, save_full, verify_full
from ftrecipes.checkpoint.publish import publish, publish_folder, rehearse
from ftrecipes.checkpoint.together import first_does
from ftrecipes.config.errors import CheckpointError
from ftrecipes.config.run_files import BEST, CARD
from ftrecipes.config.schema import RunConfig
from ftrecipes.parallel.engine import Engine
from ftrecipes.runtime import log
from ftrecipes.runtime.world import World

Numbers = Mapping[str, int | float | None]


@dataclass(frozen=True)
class Result:
    """What is saved of a run: the settings, the live model, its tokenizer, and where the base model
    was read from; and how the model is reached. Its methods are called by all ranks."""

    config: RunConfig
    model: PreTrainedModel | PeftModel
    tokenizer: PreTrainedTokenizerBase
    base_name: str
    engine: Engine
    world: World

    def save(self, folder: Path, *, state: Numbers, keep_best: bool = False) -> bool:
        """Put what was trained into `folder`, compared there with the live model.

        `state` are the numbers of the TrainState. A `best` in `folder` stays when `keep_best`: when
        it is of this run. False, and nothing is written, with `save_model` false. Raises
        CheckpointError, on all ranks, when the files do not hold what was trained or can not be
        written; an earlier result is then untouched.
        """
        if not self.config.train.save_model:
            log.info("--save_model False: no weights are written")
            return False
        keep = (BEST,) if keep_best else ()
        publish(folder, self._writer(state), self._verify, keep=keep, world=self.world)
        log.info(f"saved to {folder}; read back, and equal to what was trained")
        return True

    def save_best(self, folder: Path, *, state: Numbers) -> None:
        """Put what is trained so far into `best` inside `folder`, in the place of what is there.

        A failure is a warning, because training is worth more: what is there then stays, and all
        ranks go on.
        """
        began = time.perf_counter()
        try:
            publish_folder(folder / BEST, self._writer(state), self._verify, world=self.world)
        except CheckpointError as error:
            log.warning(f"The best weights so far are not kept: {error}")
            return
        log.info(
            f"lowest evaluation loss so far: saved to {folder / BEST} in "
            f"{time.perf_counter() - began:.1f} s"
        )

    def _writer(self, state: Numbers) -> Callable[[Path], None]:
        def write(staging: Path) -> None:
            ranks = {"engine": self.engine, "world": self.world}
            if _is_adapter(self.model):
                save_adapter(self.model, staging, base_name=self.base_name, **ranks)
            else:
                save_full(self.model, staging, **ranks)
            first_does(partial(self._write_rest, staging, state), self.world)

        return write

    def _write_rest(self, staging: Path, state: Numbers) -> None:
        """What is beside the weights. Rank 0 only."""
        self.tokenizer.save_pretrained(str(staging))
        card = model_card(self.config, base=self.base_name, state=state, processes=self.world.size)
        (staging / CARD).write_text(card, encoding="utf-8", errors="backslashreplace")
        for path in filter(Path.is_file, staging.rglob("*")):
            # safetensors lets nobody else read its files
            shutil.copymode(staging / CARD, path)

    def _verify(self, staging: Path) -> None:
        verify = verify_adapter if _is_adapter(self.model) else verify_full
        verify(self.model, staging, engine=self.engine, world=self.world)


def rehearse_saving(result: Result, folder: Path, *, keeps_best: bool) -> None:
    """Raise CheckpointError before training when `folder` could not take the result after it.

    With `keeps_best` there will be two: the best one, and the last one or the next best. Called by
    all ranks: rank 0 tries, and all raise.
    """
    if not result.config.train.save_model:
        return
    model = result.model
    is_adapter = _is_adapter(model)
    saved = [p.nbytes for p in model.parameters() if p.requires_grad or not is_adapter]

    def write(staging: Path) -> None:
        result.tokenizer.save_pretrained(str(staging))
        if not is_adapter:
            rehearse_full(model, staging)

    trial = partial(rehearse, folder, write, needed_bytes=(1 + keeps_best) * sum(saved))
    first_does(trial, result.world)


def _is_adapter(model: PreTrainedModel | PeftModel) -> bool:
    return isinstance(model, PeftModel)
