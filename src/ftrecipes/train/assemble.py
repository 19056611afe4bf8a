"""The model that is trained, whole on its device or as the shares of several processes."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ftrecipes.config.precision import Precision, policy_dtype
from ftrecipes.config.schema import RunConfig
from ftrecipes.model.adapters import (
    add_adapters,
    rehearse_adapters,
    train_everything,
    trained_share,
)
from ftrecipes.model.converted import weight_paths
from ftrecipes.model.fill import fill
from ftrecipes.model.initial import initialise_adapter
from ftrecipes.model.load import load_model, sketch_model
from ftrecipes.model.resolve import ModelSource, check_vocabulary
from ftrecipes.model.skeleton import build_skeleton
from ftrecipes.model.vocabulary import resize
from ftrecipes.parallel.engine import Engine, OneProcess, Sharded
from ftrecipes.parallel.place import Places
from ftrecipes.parallel.shard import shard
from ftrecipes.parallel.wrap import lora_aware_wrap_policy
from ftrecipes.parallel.wrap_report import check_saved, kept_bytes, wrap_report
from ftrecipes.runtime import log
from ftrecipes.runtime.nodes import first_on_machine
from ftrecipes.runtime.seed import seed_everything
from ftrecipes.runtime.world import World
from ftrecipes.train.recomputing import checkpointed, recompute_as_asked


def rehearse(
    config: RunConfig,
    source: ModelSource,
    precision: Precision,
    *,
    highest_id: int,
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Find out on a model without weights what would fail once the real ones are read.

    `highest_id` is that of all rows and prompts.
    """
    sketch = sketch_model(source)
    new_token_ids = resize(sketch, tokenizer, config)
    check_vocabulary(highest_id, sketch)
    if config.train.use_peft:
        rehearse_adapters(
            sketch, config, precision, new_token_ids=new_token_ids, tokenizer=tokenizer
        )
    else:
        train_everything(sketch, precision, frozen_blocks=frozen_blocks(config))
    checkpointed(config, sketch)
    if config.train.enable_fsdp:
        lora_aware_wrap_policy(sketch, config.fsdp.wrap_classes)


def build_model(
    config: RunConfig,
    source: ModelSource,
    precision: Precision,
    world: World,
    *,
    mesh: DeviceMesh | None = None,
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[nn.Module, Engine]:
    """The model with what is to be trained made trainable, and how to compute with it.

    Without `mesh` all of it is on the device of this process. With it, it is cut into the shares of
    the mesh; unless `low_cpu_fsdp` is off, before its weights are read, so that no rank ever holds
    it whole. All ranks call it. Raises ModelError.
    """
    hollow = mesh is not None and config.train.low_cpu_fsdp
    if hollow:
        model = build_skeleton(source, config, precision)
    else:
        model = load_model(source, config, precision, world.device)
    log.info(_plan(config, precision, world))
    new_token_ids = resize(model, tokenizer, config)
    # What is drawn now is the same on all ranks, whatever a custom data set has drawn.
    seed_everything(config.train.seed)
    with torch.device("meta") if hollow else nullcontext():
        model = _make_trainable(
            model, config, precision, new_token_ids=new_token_ids, tokenizer=tokenizer
        )
    log.info(trained_share(model))
    if config.train.use_peft and not hollow:
        _initialise(model, config)
    recompute_as_asked(config, model, world.device)
    if mesh is None:
        engine: Engine = OneProcess()
    else:
        engine = _share_out(model, config, source, precision, world, mesh=mesh)
    # Dropout is another on each rank, as its rows are.
    seed_everything(config.train.seed + world.rank)
    return model, engine


def _plan(config: RunConfig, precision: Precision, world: World) -> str:
    """On what, and how, this run computes; for the log."""
    train = config.train
    parts = [f"{world.size} process{'es' if world.size > 1 else ''} on {world.device.type}"]
    if train.enable_fsdp:
        parts.append(config.fsdp.sharding_strategy)
        parts += ["shares in the memory of the host"] if config.fsdp.cpu_offload else []
    parts.append(f"computing in {precision.compute}")
    step = train.gradient_accumulation_steps * world.size
    parts.append(f"{step} micro-batch{'es' if step > 1 else ''} a step")
    return "; ".join(parts)


def frozen_blocks(config: RunConfig) -> int:
    """Decoder blocks at the bottom that full fine-tuning leaves as they are."""
    return config.train.num_freeze_layers if config.train.freeze_layers else 0


def _make_trainable(
    model: PreTrainedModel,
    config: RunConfig,
    precision: Precision,
    *,
    new_token_ids: Sequence[int],
    tokenizer: PreTrainedTokenizerBase,
) -> nn.Module:
    if config.train.use_peft:
        return add_adapters(
            model, config, precision, new_token_ids=new_token_ids, tokenizer=tokenizer
        )
    return train_everything(model, precision, frozen_blocks=frozen_blocks(config))


def _initialise(
    model: nn.Module, config: RunConfig, set_value: Callable[[str, Tensor], None] | None = None
) -> None:
    folder = config.train.from_peft_checkpoint
    initialise_adapter(model, seed=config.train.seed, folder=folder, set_value=set_value)


def _share_out(
    model: nn.Module,
    config: RunConfig,
    source: ModelSource,
    precision: Precision,
    world: World,
    *,
    mesh: DeviceMesh,
) -> Sharded:
    """Cut the model into shares, read them where it has no weights yet, and report them."""
    units = lora_aware_wrap_policy(model, config.fsdp.wrap_classes)
    compute = policy_dtype(precision)
    engine = shard(
        *(model, units),
        mesh=mesh,
        fsdp=config.fsdp,
        compute=None if compute is None else getattr(torch, compute),
    )
    check_saved(kept_bytes(model, ranks=engine.share.count), ranks=engine.share.count)
    if not engine.sums_once and config.train.gradient_accumulation_steps > 1:
        log.info(
            "each micro-batch sums its gradients over the processes: kept whole until the last one "
            "they would take more memory than all shares"
        )
    if config.train.low_cpu_fsdp:
        with first_on_machine(world):
            if config.fsdp.load_from == "each" or engine.share.index == 0:
                weight_paths(source, precision)  # fetched, or converted: once on each machine
        places = Places(model, engine)
        began = time.perf_counter()
        filled = fill(
            *(model, source, config, precision),
            device=world.device,
            put=places.put,
            share=engine.share,
            group=engine.shard_group,
            beat=world.watch.beat,
        )
        if config.train.use_peft:
            _initialise(model, config, places.put_whole)
        log.info(
            f"{filled.num_weights} weights read as shares in {time.perf_counter() - began:.1f} s"
        )
    for line in wrap_report(model, units, engine).lines():
        log.info(line)
    return engine
