"""The recipe: flags become settings, rows, a model, a trained model, and a folder to keep.

`main` takes the flags from fire; `run` is the story, one line a stage. torch and the libraries on
it are imported inside the stages, because settings are checked before anything heavy is loaded.
"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fire.decorators import SetParseFn

from ftrecipes.config.adapter_folder import method_of, virtual_tokens
from ftrecipes.config.errors import ConfigError, DataError
from ftrecipes.config.parse import parse, to_mapping
from ftrecipes.config.precision import (
    Precision,
    cpu_has_bfloat16,
    precision_warnings,
    resolve_precision,
)
from ftrecipes.config.schema import RunConfig
from ftrecipes.runtime import log

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ftrecipes.checkpoint.record import RunRecord
    from ftrecipes.data.rows import TokenRows
    from ftrecipes.model.resolve import ModelSource
    from ftrecipes.runtime.world import World
    from ftrecipes.train.state import TrainState


# fire guesses types; the settings have types of their own, so every value arrives as text.
@SetParseFn(str)
def main(*stray: str, **flags: object) -> None:
    """Fine-tune a model as the flags say; `--help` lists them.

    From Python the flags are keyword arguments: `main(model_name="...", lr=1e-4)`. Raises
    ConfigError with every fault at once, and the other errors of ftrecipes.config.errors.
    """
    parsed = parse(flags, stray=stray)
    for warning in parsed.warnings:
        log.warning(warning)
    run(parsed.config)


def run(config: RunConfig) -> "TrainState":
    """Train as `config` says, leave the result in `output_dir`, return where training ended."""
    from ftrecipes.checkpoint.record import record_run
    from ftrecipes.checkpoint.result import rehearse_saving, save_result
    from ftrecipes.model.resolve import load_tokenizer, resolve_source, settle_quantization
    from ftrecipes.runtime.seed import seed_everything
    from ftrecipes.runtime.signals import stops_deferred
    from ftrecipes.runtime.world import start_world
    from ftrecipes.train.build import open_training
    from ftrecipes.train.loop import train
    from ftrecipes.train.state import TrainState

    world = start_world(config.train.device)
    # Absolute, because a custom data set may change the working directory.
    folder = Path(config.train.output_dir).expanduser().absolute()
    with record_run(
        folder,
        settings=to_mapping(config),
        origins=config.origins,
        world={"size": world.size, "device": str(world.device)},
    ) as record:
        seed_everything(config.train.seed)
        source = resolve_source(
            config.train.model_name,
            config.train.tokenizer_name,
            trust_remote_code=config.train.trust_remote_code,
        )
        config = settle_quantization(config, source)
        tokenizer = load_tokenizer(source)
        record.add(**fingerprints(source, tokenizer))
        config = settle_context_length(config, source)
        precision = settle_precision(config, source, world)
        rows, val_rows = read_rows(config, tokenizer, record)
        splits = [split for split in (rows, val_rows) if split]
        rehearse(config, source, precision, splits, tokenizer=tokenizer)
        model = build_model(config, source, precision, world, tokenizer=tokenizer)
        rehearse_saving(config, model, tokenizer, folder)
        state = TrainState()

        def save() -> None:
            result = (config, model, tokenizer, folder)
            with stops_deferred():
                if save_result(*result, base_name=source.location, state=asdict(state)):
                    record.settle()

        try:
            with open_training(
                *(config, model, rows, val_rows),
                metrics=record.folder / "metrics.jsonl",
                precision=precision,
                world=world,
                state=state,
            ) as training:
                train(training)
        except BaseException:
            # Whatever ended the training: its steps may be the work of hours.
            if state.updates:
                log.warning(f"training ended after step {state.step}; saving what was trained")
                save()
            raise
        save()
    return state


def fingerprints(source: "ModelSource", tokenizer: "PreTrainedTokenizerBase") -> dict[str, str]:
    """What run.json keeps of model and tokenizer, to tell later whether they are the same."""
    from ftrecipes.checkpoint.record import fingerprint
    from ftrecipes.model.resolve import identity

    parts = (tokenizer.get_vocab(), tokenizer.chat_template, tokenizer.special_tokens_map)
    return {
        "model_fingerprint": fingerprint(identity(source)),
        "tokenizer_fingerprint": fingerprint(*parts),
    }


def settle_context_length(config: RunConfig, source: "ModelSource") -> RunConfig:
    """`config` with a context length that the model can take."""
    if source.max_length is None:
        return config
    limit, virtual = source.max_length - virtual_tokens(config), virtual_tokens(config)
    if limit < 2:
        raise ConfigError(
            f"The virtual tokens leave no room for rows.\n  got: {virtual} of them\n"
            f"  expected: fewer than the {source.max_length} positions of this model\n"
            f"  do: lower --{method_of(config)}.num_virtual_tokens"
        )
    if config.train.context_length <= limit:
        return config
    beside = f" beside {virtual} virtual tokens" if virtual else ""
    log.info(f"context_length is {limit}, the longest row that this model takes{beside}")
    return replace(config, train=replace(config.train, context_length=limit))


def settle_precision(config: RunConfig, source: "ModelSource", world: "World") -> Precision:
    """The dtypes of this run on this device, with a warning where they will be slow."""
    kind = world.device.type
    precision = resolve_precision(
        config, device_type=kind, checkpoint_dtype=source.checkpoint_dtype
    )
    for warning in precision_warnings(
        precision, device_type=kind, cpu_has_bfloat16=cpu_has_bfloat16()
    ):
        log.warning(warning)
    return precision


def read_rows(
    config: RunConfig, tokenizer: "PreTrainedTokenizerBase", record: "RunRecord"
) -> "tuple[TokenRows, TokenRows | None]":
    """Training and validation rows as tokens and labels; a fault in them ends the run here."""
    from ftrecipes.checkpoint.record import fingerprint
    from ftrecipes.data.sources import load_split
    from ftrecipes.data.tokenize import tokenize_rows

    splits: list[TokenRows | None] = []
    faults: list[DataError] = []
    for split in ("train", "validation"):
        try:
            raw = load_split(config, tokenizer, split)
            rows = (
                None
                if raw is None
                else tokenize_rows(
                    raw,
                    tokenizer,
                    context_length=config.train.context_length,
                    truncation=config.data.truncation,
                )
            )
        except DataError as fault:
            faults.append(fault)
            continue
        splits.append(rows)
        if rows is None:
            continue
        log.info(
            f"{split}: {len(rows)} rows of {rows.input_ids.size} positions, "
            f"{rows.num_tokens} of them trained tokens"
        )
        for line in rows.report:
            log.warning(f"{split}: {line}")
        arrays = (rows.input_ids, rows.labels, rows.offsets)
        record.add(**{f"{split}_fingerprint": fingerprint(*(array.tobytes() for array in arrays))})
    if faults:
        raise DataError("\n\n".join(map(str, faults))) from faults[0]
    if splits[1] is None and config.train.run_validation:
        log.info(
            "there are no validation rows, so nothing is evaluated (--data.val_file names some)"
        )
    return splits[0], splits[1]


def rehearse(
    config: RunConfig,
    source: "ModelSource",
    precision: Precision,
    splits: "list[TokenRows]",
    *,
    tokenizer: "PreTrainedTokenizerBase",
) -> None:
    """Find out on a model without weights what would fail once the real ones are read."""
    from ftrecipes.model.adapters import rehearse_adapters
    from ftrecipes.model.load import sketch_model
    from ftrecipes.model.resolve import check_vocabulary

    sketch = sketch_model(source)
    check_vocabulary(max(int(rows.input_ids.max()) for rows in splits), sketch)
    if config.train.use_peft:
        rehearse_adapters(sketch, config, precision, tokenizer=tokenizer)


def build_model(
    config: RunConfig,
    source: "ModelSource",
    precision: Precision,
    world: "World",
    *,
    tokenizer: "PreTrainedTokenizerBase",
) -> "PreTrainedModel | PeftModel":
    """The model on its device, quantized as asked, with what is to be trained made trainable."""
    from ftrecipes.model.adapters import add_adapters, train_everything, trained_share
    from ftrecipes.model.load import load_model
    from ftrecipes.runtime.seed import seed_everything

    model = load_model(source, config, precision, world.device)
    # Adapters and dropout are the same whatever a custom data set has drawn.
    seed_everything(config.train.seed)
    if config.train.use_peft:
        model = add_adapters(model, config, precision, tokenizer=tokenizer)
    else:
        model = train_everything(model, precision)
    log.info(trained_share(model))
    return model
