"""The model card: README.md beside the weights."""

import json
import os
from collections.abc import Mapping

from ftrecipes.config.adapter_folder import method_of
from ftrecipes.config.flags import asked, flags_of, value_of
from ftrecipes.config.mixing import dataset_words
from ftrecipes.config.schema import RunConfig


def model_card(
    config: RunConfig, *, base: str, state: Mapping[str, int | float | None], processes: int = 1
) -> str:
    """Text of the card: base model, data, method, scores and the flags that were given.

    `state` are the numbers of a TrainState, by name; `processes` trained together. A folder is told
    by its name alone, and not as the base model that the hub would look up: where it lies on this
    machine is nobody's business.
    """
    is_path = os.path.isabs(base)
    name = os.path.basename(base) if is_path else base
    head = "" if is_path else f"base_model: {json.dumps(base)}\n"
    peft = config.train.use_peft
    method = f"{method_of(config)} adapter" if peft else "every parameter trained"
    if config.quantization.method != "none":
        method += f", base in {config.quantization.method} while training"
    given = [
        name
        for name in flags_of(RunConfig)
        if asked(config, name) and config.origins.get(name) != "default"
    ]
    values = {name: value_of(config, name) for name in given}
    if "dataset" in values:
        values["dataset"] = dataset_words(config)
    flags = "".join(f"    --{name} {value}\n" for name, value in values.items())
    measures = [*_scores(state), ("processes", f"{processes}")]
    scores = "".join(f"| {name} | {value} |\n" for name, value in measures)
    return (
        "---\n"
        f"{head}"
        f"library_name: {'peft' if peft else 'transformers'}\n"
        "pipeline_tag: text-generation\n"
        "tags: [ftrecipes]\n"
        "---\n\n"
        f"# {name}, fine-tuned\n\n"
        f"Trained with ftrecipes on `{dataset_words(config)}` ({method}).\n\n"
        f"| measure | value |\n|---|---|\n{scores}\n"
        "The flags that were given; `run.yaml` has every setting, `metrics.jsonl` every step:\n\n"
        f"{flags}"
    )


def _scores(state: Mapping[str, int | float | None]) -> list[tuple[str, str]]:
    scores = [("optimizer steps", f"{state['step']}"), ("trained tokens", f"{state['tokens']}")]
    for name, key in (("before", "first_eval_loss"), ("after", "last_eval_loss")):
        if state[key] is not None:
            scores.append((f"evaluation loss {name}", f"{state[key]:.4f}"))
    return scores
