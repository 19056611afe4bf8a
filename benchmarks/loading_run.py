"""One rank of benchmarks/loading.py: load a model, cut or read in shares, and say what it took.

`python -m benchmarks.loading_run MODEL WAY QUANTIZATION FOLDER`, started once for each rank.
"""

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from ftrecipes.config.precision import Precision
from ftrecipes.config.schema import QuantizationConfig, RunConfig, TrainConfig
from ftrecipes.model.fill import fill
from ftrecipes.model.load import load_model
from ftrecipes.model.packed import packed_parameters
from ftrecipes.model.resolve import ModelSource, resolve_source
from ftrecipes.model.skeleton import build_skeleton
from ftrecipes.parallel.engine import Sharded
from ftrecipes.parallel.mesh import build_mesh
from ftrecipes.parallel.place import Places
from ftrecipes.parallel.shard import shard
from ftrecipes.parallel.wrap import lora_aware_wrap_policy
from ftrecipes.runtime.world import World

SAMPLE_SECONDS = 0.002
CPU = torch.device("cpu")
# weights as a run keeps them: packed from bfloat16, or trained whole in float32
BASE = {"4bit": "bfloat16", "none": "float32"}


@dataclass(frozen=True)
class Load:
    """What a rank's load took. Memory is anonymous: beyond what was held before, at its peak; and
    what is kept in the end."""

    read_bytes: int
    peak_bytes: int
    kept_bytes: int
    seconds: float


def main(model: str, way: str, method: str, folder: str) -> None:
    """Measure this rank's load, and write it where tests/ranks.py looks for it."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world = World(dist.get_rank(), dist.get_world_size(), dist.get_rank(), CPU)
    quantization = QuantizationConfig(method=method, quant_type="nf4", use_double_quant=True)
    config = RunConfig(train=TrainConfig(use_peft=method == "4bit"), quantization=quantization)
    precision = Precision(BASE[method], "float32", "bfloat16", "float32", False, False)
    source = resolve_source(model, None, trust_remote_code=False)
    dist.barrier()
    before, start = anonymous_bytes(), time.perf_counter()
    with peak_bytes() as peak:
        load = whole if way == "off" else by_share
        result, read_bytes = load(source, config, precision, world)
    done = Load(read_bytes, max(peak) - before, kept_bytes(result), time.perf_counter() - start)
    dist.barrier()
    (Path(folder) / f"rank{world.rank}.json").write_text(json.dumps({"load": asdict(done)}))
    dist.destroy_process_group()


def by_share(
    source: ModelSource, config: RunConfig, precision: Precision, world: World
) -> tuple[nn.Module, int]:
    """--low_cpu_fsdp True: (the sharded model, bytes of files that were read)."""
    model = build_skeleton(source, config, precision)
    engine = cut(model, config, world)
    done = fill(
        model,
        source,
        config,
        precision,
        device=CPU,
        put=Places(model, engine).put,
        share=engine.share,
        group=engine.shard_group,
        beat=lambda: None,
    )
    return model, done.bytes_read


def whole(
    source: ModelSource, config: RunConfig, precision: Precision, world: World
) -> tuple[nn.Module, int]:
    """--low_cpu_fsdp False: the same by from_pretrained, which reads all there is."""
    model = load_model(source, config, precision, CPU)
    cut(model, config, world)
    return model, sum(file.stat().st_size for file in Path(source.path).glob("*.safetensors"))


def cut(model: nn.Module, config: RunConfig, world: World) -> Sharded:
    """The model in shares, as a run cuts it."""
    model.requires_grad_(config.quantization.method == "none")
    units = lora_aware_wrap_policy(model)
    mesh = build_mesh(config.fsdp, world)
    return shard(model, units, mesh=mesh, fsdp=config.fsdp, compute=None)


def kept_bytes(model: nn.Module) -> int:
    """This rank's rows of all parameters, and the statistics of packed ones, which are whole."""
    states = [packed.state for packed in packed_parameters(model).values()]
    statistics = [tensor for state in states for tensor in state.as_dict(packed=True).values()]
    return sum(p.to_local().nbytes for p in model.parameters()) + sum(s.nbytes for s in statistics)


def anonymous_bytes() -> int:
    """Memory of this process that no file backs (Linux)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


@contextmanager
def peak_bytes() -> Iterator[list[int]]:
    """Collects samples of the anonymous memory while the body runs."""
    samples, ended = [anonymous_bytes()], threading.Event()

    def sample() -> None:
        while not ended.wait(SAMPLE_SECONDS):
            samples.append(anonymous_bytes())

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()
        samples.append(anonymous_bytes())


if __name__ == "__main__":
    main(*sys.argv[1:])
