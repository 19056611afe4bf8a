"""Models that several ranks build with their adapters, against one process that builds them whole.

Every rank compares all weights of the sharded model, gathered, and its output for a row.
C04: blocks are recomputed, and what is trained is the same, of new adapters and continued ones.
"""

from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file

from ftrecipes.config.precision import Precision
from ftrecipes.config.schema import LoraConfig, QuantizationConfig, RunConfig, TrainConfig
from ftrecipes.model.adapters import add_adapters, canonical_name, trainable_parameters
from ftrecipes.model.initial import initialise_adapter
from ftrecipes.model.packed import weight_counts
from ftrecipes.model.resolve import resolve_source
from ftrecipes.parallel.mesh import build_mesh
from ftrecipes.train.assemble import build_model
from tests import tiny_models
from tests.distributed.training import world_of
from tests.model.adapting import moved
from tests.model.loading import FLOAT32, load
from tests.model.test_initial import EXPERTS

ROW = torch.tensor([[5, 9, 3, 17, 11, 8]])
NF4 = QuantizationConfig(method="4bit")
FAMILY = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 32}


def saved(folder: Path, family: str) -> Path:
    """Written by rank 0."""
    if dist.get_rank() == 0 and not (folder / family).exists():
        tiny_models.save_folder(family, folder / family, **FAMILY)
    dist.barrier()
    return folder / family


def run_of(base: Path, method: str = "lora", *, hollow: bool = True, **settings) -> RunConfig:
    adapter = settings.pop("adapter", None)
    train = TrainConfig(
        model_name=str(base),
        use_peft=True,
        peft_method=method,
        enable_fsdp=True,
        low_cpu_fsdp=hollow,
        from_peft_checkpoint=None if adapter is None else str(adapter),
        seed=7,
    )
    quantization = settings.pop("quantization", QuantizationConfig())
    return RunConfig(train=train, lora=LoraConfig(r=3, **settings), quantization=quantization)


def alone(config: RunConfig, precision: Precision) -> torch.nn.Module:
    """As one process builds it."""
    folder = config.train.from_peft_checkpoint
    model = load(Path(config.train.model_name), config.quantization, precision)
    model = add_adapters(model, config, precision)
    initialise_adapter(model, seed=config.train.seed, folder=folder)
    return model


def compare(config: RunConfig, precision: Precision = FLOAT32) -> None:
    """The output only where both multiply in float32: one process would cast by autocast."""
    torch.manual_seed(dist.get_rank())  # nothing may follow from what a rank has drawn
    world = world_of(sharded=True)
    source = resolve_source(config.train.model_name, None, trust_remote_code=False)
    model, engine = build_model(
        *(config, source, precision, world), mesh=build_mesh(config.fsdp, world), tokenizer=None
    )
    expected = alone(config, precision)
    known = {canonical_name(n): p.detach() for n, p in expected.named_parameters()}
    found = {canonical_name(n): p for n, p in model.named_parameters()}
    assert found.keys() == known.keys()
    for name, parameter in found.items():
        # as bytes: packed storage has patterns that are no numbers
        whole = engine.gather(parameter.detach()).contiguous().view(torch.uint8)
        assert torch.equal(whole, known[name].contiguous().view(torch.uint8)), name
    trained, theirs = (dict(trainable_parameters(m)) for m in (model, expected))
    assert trained.keys() == theirs.keys()
    assert weight_counts(model) == weight_counts(expected)
    if precision.autocast:
        return
    with torch.no_grad():
        logits = engine.run(lambda: model.eval()(input_ids=ROW, use_cache=False).logits)
        told = expected.eval()(input_ids=ROW, use_cache=False).logits
    torch.testing.assert_close(logits, told, rtol=1e-5, atol=1e-5)


def check_lora_of_every_layer(folder):
    base = saved(folder, "llama")
    for hollow in (True, False):
        compare(run_of(base, hollow=hollow))


def check_other_starts(folder):
    base = saved(folder, "llama")
    for init in ("gaussian", "orthogonal"):
        config = run_of(base, init_lora_weights=init, target_modules=["q_proj", "down_proj"])
        compare(replace(config, lora=replace(config.lora, r=4)))


def check_embeddings_and_biases(folder):
    targets = ["q_proj", "embed_tokens", "lm_head"]
    compare(run_of(saved(folder, "qwen2"), target_modules=targets, bias="all"))


def check_packed_experts(folder):
    base = saved(folder, "mixtral")
    for storage in ("uint8", "float32"):
        quantization = replace(NF4, quant_storage=storage)
        for hollow in (True, False):
            compare(
                run_of(
                    base,
                    hollow=hollow,
                    quantization=quantization,
                    target_modules=["q_proj"],
                    target_parameters=EXPERTS,
                )
            )


def check_float32_adapters_on_a_bfloat16_base(folder):
    half = replace(FLOAT32, base="bfloat16", compute="bfloat16", autocast=True)
    compare(run_of(saved(folder, "llama"), quantization=NF4), half)


def check_ia3(folder):
    base = saved(folder, "llama")
    compare(run_of(base, "ia3"))
    compare(run_of(base, "ia3", quantization=NF4))


def check_going_on_from_an_adapter(folder):
    """With the values of the file, which rank 0 has written; and on packed weights."""
    for family, settings in (
        ("qwen2", {"bias": "lora_only", "target_modules": ["q_proj", "embed_tokens"]}),
        ("mixtral", {"target_modules": ["q_proj"], "target_parameters": EXPERTS}),
    ):
        base, adapter = saved(folder, family), folder / f"adapter-{family}"
        if dist.get_rank() == 0:
            model = moved(alone(run_of(base, **settings), FLOAT32))
            model.save_pretrained(adapter, save_embedding_layers=False)
        dist.barrier()
        values = load_file(adapter / "adapter_model.safetensors").values()
        assert all(value.any() for value in values)
        for quantization in (QuantizationConfig(), NF4):
            compare(run_of(base, adapter=adapter, quantization=quantization))
