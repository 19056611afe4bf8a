"""Checks of models that several ranks fill, each its own share, against transformers' whole load.

Every rank loads the whole tiny model too, and compares its rows with it, byte by byte.
"""

from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path

import peft
import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from ftrecipes.config.errors import ModelError
from ftrecipes.model.fill import Filled, fill
from ftrecipes.model.skeleton import build_skeleton
from ftrecipes.parallel.engine import Sharded
from ftrecipes.parallel.mesh import build_mesh
from ftrecipes.parallel.place import Places
from ftrecipes.parallel.recompute import recompute
from ftrecipes.parallel.shard import shard
from ftrecipes.parallel.wrap import blocks_of, lora_aware_wrap_policy
from tests import tiny_models
from tests.distributed.worlds import this_world
from tests.model.filling import BFLOAT16, CPU, FLOAT32, assert_same, loaded, settings

NF4 = {"quant_type": "nf4", "use_double_quant": True}


@cache
def saved(folder: Path, family: str, dtype: torch.dtype = torch.float32, **options) -> Path:
    """A model in a folder, written by rank 0."""
    path = folder / "-".join(map(str, (family, dtype, *options.values())))
    if dist.get_rank() == 0:
        tiny_models.build(family).to(dtype).save_pretrained(path, **options)
    dist.barrier()
    return path


def filled(
    folder: Path,
    quantization=None,
    precision=FLOAT32,
    *,
    adapted=False,
    strategy="FULL_SHARD",
    **how,
) -> tuple[torch.nn.Module, Sharded, Filled, list]:
    """(the sharded model, its engine, what was done, beats)."""
    source, config = settings(folder, quantization, **how)
    model = build_skeleton(source, config, precision)
    if adapted:
        with torch.device("meta"):
            lora = peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
            model = peft.get_peft_model(model, lora)
        recompute(model, blocks_of(lora_aware_wrap_policy(model)))
    fsdp = replace(config.fsdp, sharding_strategy=strategy)
    engine = shard(
        model,
        lora_aware_wrap_policy(model),
        mesh=build_mesh(fsdp, this_world()),
        fsdp=fsdp,
        compute=None,
    )
    beats = []
    done = fill(
        model,
        source,
        config,
        precision,
        device=CPU,
        put=Places(model, engine).put,
        share=engine.share,
        group=engine.shard_group,
        beat=partial(beats.append, None),
    )
    return model, engine, done, beats


def compare(folder: Path, quantization=None, precision=FLOAT32, **how) -> Filled:
    model, engine, done, beats = filled(folder, quantization, precision, **how)
    assert engine.share.count == (1 if how.get("strategy") == "NO_SHARD" else dist.get_world_size())
    packed = assert_same(model, loaded(folder, quantization, precision), share=engine.share)
    assert (packed > 0) == (quantization is not None)
    assert len(beats) == done.num_weights
    return done


def check_packed_weights(folder):
    """Uneven rows, blocks over the borders of ranks, all storages, and files in other dtypes."""
    for family in ("llama_tied", "gpt2"):
        compare(saved(folder, family), NF4)
    for kind, double in product(("nf4", "fp4"), (True, False)):
        compare(saved(folder, "llama"), {"quant_type": kind, "use_double_quant": double})
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for storage in ("uint8", "bfloat16", "float32"):
            path = saved(folder, "llama", dtype)
            compare(path, NF4 | {"quant_storage": storage}, BFLOAT16)


def check_plain_weights(folder):
    for family in ("llama", "llama_tied", "gpt2", "bloom", "lfm2"):
        compare(saved(folder, family), None, BFLOAT16)


def check_experts(folder):
    """Of one parameter in the files, and of many that are put together."""
    for family in ("gpt_oss", "mixtral", "qwen3_moe"):
        for quantization in (None, NF4):
            done = compare(saved(folder, family), quantization)
            assert (done.num_converted > 0) == (family != "gpt_oss")


def check_every_rank_reads_little_more_than_its_share(folder):
    path = saved(folder, "llama")
    done = compare(path)
    size = (path / "model.safetensors").stat().st_size
    assert done.bytes_read <= 1.1 * size / dist.get_world_size()
    packed = compare(path, NF4)  # and the rest of rows that its packed bytes begin and end in
    assert packed.bytes_read <= 1.4 * size / dist.get_world_size()


def check_the_first_rank_reads(folder):
    """The others get by without files: theirs are hidden."""
    paths = [
        (saved(folder, "llama", torch.float32, max_shard_size="40KB"), NF4),
        (saved(folder, "llama_tied"), None),
        (saved(folder, "mixtral"), NF4),
        (saved(folder, "gpt2"), NF4),
    ]
    for path, quantization in paths:
        done = compare(path, quantization, load_from="rank0")
        assert (done.bytes_read > 0) == (dist.get_rank() == 0)


def check_files_that_are_packed_already(folder):
    path = folder / "packed"
    if dist.get_rank() == 0:
        four_bit = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
        )
        AutoModelForCausalLM.from_pretrained(
            saved_alone(folder), quantization_config=four_bit, dtype=torch.bfloat16
        ).save_pretrained(path)
    dist.barrier()
    for load_from in ("each", "rank0"):
        model, engine, _, _ = filled(path, None, BFLOAT16, load_from=load_from)
        assert assert_same(model, loaded(path, None, BFLOAT16), share=engine.share) == 14


def saved_alone(folder: Path) -> Path:
    tiny_models.build("llama").save_pretrained(folder / "alone")
    return folder / "alone"


def check_adapters_recomputing_and_replicas(folder):
    """Names are those of PEFT and of wrappers; what is tied stays one; adapters are left alone."""
    for family, quantization in (("llama", NF4), ("llama_tied", None), ("gpt_oss", NF4)):
        for strategy in ("FULL_SHARD", "NO_SHARD"):
            path = saved(folder, family)
            model, engine, _, _ = filled(path, quantization, adapted=True, strategy=strategy)
            assert_same(model, loaded(path, quantization), share=engine.share)
            left = [name for name, p in model.named_parameters() if p.to_local().is_meta]
            assert left
            assert all("lora_" in name for name in left)
            if family == "llama_tied":
                base = model.get_base_model()
                assert base.lm_head.weight is base.model.embed_tokens.weight


def check_files_that_are_damaged(folder):
    """All ranks say the same, whoever reads; before anything else was done together."""
    for load_from in ("each", "rank0"):
        path = saved(folder, "llama", max_shard_size="30KB")
        damaged = folder / f"damaged-{load_from}"
        if dist.get_rank() == 0:
            damaged.mkdir()
            for file in path.iterdir():
                content = file.read_bytes()
                cut = "00002" in file.name
                (damaged / file.name).write_bytes(content[:-7] if cut else content)
        dist.barrier()
        with pytest.raises(ModelError, match=r"model-00002-of-\d+\.safetensors can not be read"):
            filled(damaged, NF4, load_from=load_from)
        dist.barrier()
