"""The recipe: flags become settings, rows, a model, a trained model, and a folder to keep.

`main` takes the flags from fire; `run` is the story, one line a stage. torch and the libraries on
it are imported inside the stages, because settings are checked before anything heavy is loaded.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fire.decorators import SetParseFn

from ftrecipes.config.adapter_folder import method_of, virtual_tokens
from ftrecipes.config.check_fsdp import storage_fault
from ftrecipes.config.errors import ConfigError
from ftrecipes.config.parse import parse, to_mapping
from ftrecipes.config.precision import (
    Precision,
    cpu_has_bfloat16,
    policy_dtype,
    precision_warnings,
    resolve_precision,
)
from ftrecipes.config.schema import RunConfig
from ftrecipes.runtime import log

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from transformers import PreTrainedTokenizerBase

    from ftrecipes.checkpoint.record import RunRecord
    from ftrecipes.data.prompts import Prompt
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
    """Train as `config` says, leave the result in `output_dir`, return where training ended.

    Every process that torchrun started calls it, with the same settings.
    """
    from ftrecipes.checkpoint.record import record_run, versions
    from ftrecipes.optim.optimizer import check_device
    from ftrecipes.parallel.mesh import build_mesh
    from ftrecipes.runtime.nodes import check_same, check_shared_folder
    from ftrecipes.runtime.watch import told_by
    from ftrecipes.runtime.world import open_world

    train = config.train
    # Absolute, because a custom data set may change the working directory.
    folder = Path(train.output_dir).expanduser().absolute()
    with open_world(
        train.device, enable_fsdp=train.enable_fsdp, timeout_seconds=config.fsdp.timeout_seconds
    ) as world:
        check_same(world, settings=to_mapping(config), versions=versions())
        check_device(train.optimizer, world.device.type)
        mesh = build_mesh(config.fsdp, world) if train.enable_fsdp else None
        with record_run(
            folder, settings=to_mapping(config), origins=config.origins, world=world
        ) as record:
            world.watch.at_end(lambda reason: record.end("failed", error=reason))
            with told_by(world.watch):
                check_shared_folder(world, folder)
                return run_recorded(config, world, mesh, record=record, folder=folder)


def run_recorded(
    config: RunConfig,
    world: "World",
    mesh: "DeviceMesh | None",
    *,
    record: "RunRecord",
    folder: Path,
) -> "TrainState":
    """The story from the model's name to the result; `record` notes what goes in."""
    from ftrecipes.checkpoint.result import Result, rehearse_saving
    from ftrecipes.report.trackers import rehearse_trackers
    from ftrecipes.runtime.nodes import check_same, first_on_machine
    from ftrecipes.runtime.seed import seed_everything
    from ftrecipes.train.assemble import build_model, rehearse
    from ftrecipes.train.run import train_and_save

    rehearse_trackers(config, rank=world.rank)
    seed_everything(config.train.seed)
    world.watch.phase("reading model files and rows")
    with first_on_machine(world):
        given = read_inputs(config)
    config = given.config
    check_same(world, **given.fingerprints)
    record.add(**given.fingerprints)
    precision = settle_precision(config, given.source, world)
    rehearse(
        *(config, given.source, precision),
        highest_id=given.highest_id,
        tokenizer=given.tokenizer,
    )
    world.watch.phase("loading the model")
    model, engine = build_model(
        *(config, given.source, precision, world), mesh=mesh, tokenizer=given.tokenizer
    )
    result = Result(
        *(config, model, given.tokenizer, given.source.location), engine=engine, world=world
    )
    rehearse_saving(result, folder, keeps_best=config.saving.best and given.val_rows is not None)
    return train_and_save(
        *(result, given.rows, given.val_rows, given.prompts),
        folder=folder,
        record=record,
        precision=precision,
    )


@dataclass(frozen=True)
class Inputs:
    """What a run starts from: all but the weights. `config` has what model and files settle."""

    config: RunConfig
    source: "ModelSource"
    tokenizer: "PreTrainedTokenizerBase"
    rows: "TokenRows"
    val_rows: "TokenRows | None"
    prompts: "list[Prompt]"

    @property
    def highest_id(self) -> int:
        """Of all token ids of rows and prompts."""
        splits = [split for split in (self.rows, self.val_rows) if split]
        ids = [int(split.facts.used_ids.max()) for split in splits]
        return max(*ids, *(max(prompt.ids) for prompt in self.prompts), 0)

    @property
    def fingerprints(self) -> dict[str, str]:
        """What tells later whether model, tokenizer and rows are the same."""
        from ftrecipes.checkpoint.record import fingerprint
        from ftrecipes.model.resolve import identity

        tokenizer = self.tokenizer
        words = (tokenizer.get_vocab(), tokenizer.chat_template, tokenizer.special_tokens_map)
        found = {
            "model_fingerprint": fingerprint(identity(self.source)),
            "tokenizer_fingerprint": fingerprint(*words),
        }
        for split, rows in (("train", self.rows), ("validation", self.val_rows)):
            if rows is not None:
                found[f"{split}_fingerprint"] = fingerprint(rows.facts.digest)
        return found


def read_inputs(config: RunConfig) -> Inputs:
    """Model files but for the weights, tokenizer, rows and prompts; what hubs have is fetched."""
    from ftrecipes.data.prompts import read_prompts
    from ftrecipes.data.splits import read_splits, report_splits

    config, source, tokenizer = read_tokenizer(config)
    splits = read_splits(config, tokenizer)
    report_splits(config, splits)
    prompts = read_prompts(config.samples, tokenizer, limit=position_limit(config, source))
    return Inputs(config, source, tokenizer, splits.rows, splits.val_rows, prompts)


def read_tokenizer(
    config: RunConfig,
) -> "tuple[RunConfig, ModelSource, PreTrainedTokenizerBase]":
    """What rows are made with, as training and preview need it; the model's small files only.

    The settings that come back have what these files settle.
    """
    from ftrecipes.data.built_in_templates import settle_chat_template
    from ftrecipes.model.resolve import load_tokenizer, resolve_source, settle_quantization
    from ftrecipes.model.vocabulary import add_new_tokens

    train = config.train
    source = resolve_source(
        *(train.model_name, train.tokenizer_name), trust_remote_code=train.trust_remote_code
    )
    config = settle_quantization(config, source)
    tokenizer = load_tokenizer(source)
    add_new_tokens(tokenizer, train.new_tokens)
    settle_chat_template(tokenizer, config.data)
    return settle_context_length(config, source), source, tokenizer


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
    """The dtypes of this run on this device, with a warning where they will be slow.

    Raises ConfigError when sharding would cast packed weights.
    """
    kind = world.device.type
    precision = resolve_precision(
        config, device_type=kind, checkpoint_dtype=source.checkpoint_dtype
    )
    for warning in precision_warnings(
        precision, device_type=kind, cpu_has_bfloat16=cpu_has_bfloat16()
    ):
        log.warning(warning)
    casts = policy_dtype(precision) is not None
    fault = storage_fault(config, precision, casts=casts)
    if fault is not None:
        raise ConfigError(fault.text)
    return precision
