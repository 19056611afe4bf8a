"""The recipe: flags become settings, rows, a model, a trained model, and a folder to keep.

`main` takes the flags from fire; `run` is the story, one line a stage. torch and the libraries on
it are imported inside the stages, because settings are checked before anything heavy is loaded.
"""

from dataclasses import replace
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
    from ftrecipes.checkpoint.result import Result, rehearse_saving
    from ftrecipes.data.prompts import read_prompts
    from ftrecipes.model.resolve import load_tokenizer, resolve_source, settle_quantization
    from ftrecipes.model.vocabulary import add_new_tokens
    from ftrecipes.optim.optimizer import check_device
    from ftrecipes.report.trackers import rehearse_trackers
    from ftrecipes.runtime.seed import seed_everything
    from ftrecipes.runtime.world import start_world
    from ftrecipes.train.run import train_and_save

    world = start_world(config.train.device)
    check_device(config.train.optimizer, world.device.type)
    # Absolute, because a custom data set may change the working directory.
    folder = Path(config.train.output_dir).expanduser().absolute()
    with record_run(
        folder,
        settings=to_mapping(config),
        origins=config.origins,
        world={"size": world.size, "device": str(world.device)},
    ) as record:
        rehearse_trackers(config, rank=world.rank)
        seed_everything(config.train.seed)
        source = resolve_source(
            config.train.model_name,
            config.train.tokenizer_name,
            trust_remote_code=config.train.trust_remote_code,
        )
        config = settle_quantization(config, source)
        tokenizer = load_tokenizer(source)
        add_new_tokens(tokenizer, config.train.new_tokens)
        record.add(**fingerprints(source, tokenizer))
        config = settle_context_length(config, source)
        precision = settle_precision(config, source, world)
        rows, val_rows = splits = read_rows(config, tokenizer, record)
        prompts = read_prompts(config.samples, tokenizer, limit=position_limit(config, source))
        highest_id = max(
            *(int(split.input_ids.max()) for split in splits if split),
            *(max(prompt.ids) for prompt in prompts),
            0,
        )
        rehearse(config, source, precision, highest_id=highest_id, tokenizer=tokenizer)
        model = build_model(config, source, precision, world, tokenizer=tokenizer)
        keeps_best = config.saving.best and val_rows is not None
        rehearse_saving(config, model, tokenizer, folder, keeps_best=keeps_best)
        return train_and_save(
            Result(config, model, tokenizer, source.location),
            *(rows, val_rows, prompts),
            folder=folder,
            record=record,
            precision=precision,
            world=world,
        )


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
    limit, virtual = position_limit(config, source), virtual_tokens(config)
    if limit is None:
        return config
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


def position_limit(config: RunConfig, source: "ModelSource") -> int | None:
    """Positions of the model that virtual tokens leave for others; None = no limit known."""
    return None if source.max_length is None else source.max_length - virtual_tokens(config)


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
    from ftrecipes.data.splits import read_splits

    splits = read_splits(config, tokenizer)
    for split, rows in zip(("train", "validation"), splits, strict=True):
        if rows is None:
            continue
        log.info(
            f"{split}: {len(rows)} rows of {rows.input_ids.size} positions, "
            f"{rows.num_tokens} of them trained tokens"
        )
        for line in rows.report:
            log.warning(f"{split}: {line}")
        arrays = (rows.input_ids, rows.labels, rows.offsets)
        record.add(
            **{f"{split}_fingerprint": fingerprint(*(memoryview(a).cast("B") for a in arrays))}
        )
    patience = config.train.early_stopping_patience
    if splits[1] is None and patience:
        raise DataError(
            f"--early_stopping_patience {patience}: there are no validation rows to stop by.\n"
            "  do: name some with --data.val_file, or cut some off with --data.val_fraction"
        )
    if splits[1] is None and config.train.run_validation:
        log.info(
            "there are no validation rows, so nothing is evaluated (--data.val_fraction or "
            "--data.val_file makes some)"
        )
    return splits


def rehearse(
    config: RunConfig,
    source: "ModelSource",
    precision: Precision,
    *,
    highest_id: int,
    tokenizer: "PreTrainedTokenizerBase",
) -> None:
    """Find out on a model without weights what would fail once the real ones are read.

    `highest_id` is that of all rows and prompts.
    """
    from ftrecipes.model.adapters import rehearse_adapters, train_everything
    from ftrecipes.model.load import sketch_model
    from ftrecipes.model.resolve import check_vocabulary
    from ftrecipes.model.vocabulary import resize

    sketch = sketch_model(source)
    new_token_ids = resize(sketch, tokenizer, config)
    check_vocabulary(highest_id, sketch)
    if config.train.use_peft:
        rehearse_adapters(
            sketch, config, precision, new_token_ids=new_token_ids, tokenizer=tokenizer
        )
    else:
        train_everything(sketch, precision, frozen_blocks=frozen_blocks(config))


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
    from ftrecipes.model.vocabulary import resize
    from ftrecipes.runtime.seed import seed_everything

    model = load_model(source, config, precision, world.device)
    new_token_ids = resize(model, tokenizer, config)
    # Adapters and dropout are the same whatever a custom data set has drawn.
    seed_everything(config.train.seed)
    if config.train.use_peft:
        model = add_adapters(
            model, config, precision, new_token_ids=new_token_ids, tokenizer=tokenizer
        )
    else:
        model = train_everything(model, precision, frozen_blocks=frozen_blocks(config))
    log.info(trained_share(model))
    return model


def frozen_blocks(config: RunConfig) -> int:
    """Decoder blocks at the bottom that full fine-tuning leaves as they are."""
    return config.train.num_freeze_layers if config.train.freeze_layers else 0
