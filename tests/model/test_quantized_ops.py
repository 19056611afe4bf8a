"""Quantized products as operators: exact, kept by a selective recompute, and never done thrice."""

from collections import Counter

import bitsandbytes as bnb
import pytest
import torch
import torch.nn.functional as F
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from ftrecipes.config.schema import LoraConfig, QuantizationConfig, RunConfig, TrainConfig
from ftrecipes.model.adapters import add_adapters
from ftrecipes.model.experts import leave_recomputing_to
from ftrecipes.model.module_names import canonical_name
from ftrecipes.model.quantized_ops import linear_4bit, linear_8bit
from ftrecipes.parallel.recompute import recompute
from ftrecipes.parallel.selective import OpCounts, counting, keeping_ops
from ftrecipes.parallel.wrap import blocks_of, lora_aware_wrap_policy
from tests import reference, tiny_models
from tests.model.loading import FLOAT32, load

ROWS = tiny_models.random_rows([9, 6], vocab_size=32)
EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]
NUM_LINEAR = 2 * 7  # of a llama of two layers
METHODS = {
    "nf4 twice": QuantizationConfig(method="4bit"),
    "fp4 in bfloat16": QuantizationConfig(
        method="4bit", quant_type="fp4", use_double_quant=False, quant_storage="bfloat16"
    ),
    "int8": QuantizationConfig(method="8bit"),
}
DEQUANTIZE = {"nf4 twice": "dequantize_4bit", "fp4 in bfloat16": "dequantize_4bit"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    sizes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 32}
    return {
        family: tiny_models.save_folder(family, tmp_path_factory.mktemp(family), **sizes)
        for family in ("llama", "mixtral", "gpt_oss")
    }


class Watch(TorchDispatchMode):
    """Counts operators by name, below whatever else watches them."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[str(func.overloadpacket)] += 1
        return func(*args, **(kwargs or {}))


def adapted(folder, quantization, **settings):
    """The model with LoRA whose second matrices are not zero, and too narrow to be recomputed."""
    lora = LoraConfig(r=16, **settings)
    config = RunConfig(train=TrainConfig(use_peft=True), lora=lora)
    model = load(folder, quantization)
    torch.manual_seed(3)
    model = add_adapters(model, config, FLOAT32)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.1)
    return model.train()


def checkpointed(model, contexts) -> list:
    blocks = list(blocks_of(lora_aware_wrap_policy(model)))
    recompute(model, blocks, contexts=contexts)
    return blocks


def step(model) -> tuple[dict[str, torch.Tensor], Counter]:
    """Gradients of one step, and the operators of its backward alone."""
    torch.manual_seed(2)
    losses = sum(reference.row_loss_sum(model, row) for row in ROWS)
    with Watch() as watch:
        losses.backward()
    found = {canonical_name(name): grad for name, grad in reference.gradients(model).items()}
    return found, watch.counts


def equal(found, expected) -> bool:
    return found.keys() == expected.keys() and all(found[n].equal(expected[n]) for n in expected)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kept", [True, False], ids=["selective", "full"])
def test_a_selective_recompute_neither_dequantizes_nor_multiplies(name, kept, folders):
    """Gradients are those without checkpointing, bit for bit; one dequantization in the backward
    itself is for the gradient of the input."""
    quantization = METHODS[name]
    expected, without = step(adapted(folders["llama"], quantization, lora_dropout=0.3))
    model, counts = adapted(folders["llama"], quantization, lora_dropout=0.3), OpCounts()
    checkpointed(model, keeping_ops((), counts) if kept else counting(counts))
    found, watched = step(model)
    assert equal(found, expected)
    operator = f"ftrecipes.linear_{quantization.method}"
    calls = NUM_LINEAR * len(ROWS)
    assert watched[operator] == (0 if kept else calls)
    assert counts.recomputed[operator] == (0 if kept else calls)
    assert counts.kept[operator] == (calls if kept else 0)
    dequantize = f"bitsandbytes.{DEQUANTIZE.get(name, 'int8_vectorwise_dequant')}"
    assert watched[dequantize] == without[dequantize]
    assert counts.recomputed[dequantize] == counts.recomputed["bitsandbytes.gemm_4bit"] == 0
    if kept:
        assert counts.recomputed["aten.mm"] == 0
        assert watched["aten.mm"] == without["aten.mm"]


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("storage", ["uint8", "float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_operator_of_4_bits_is_linear_on_the_dequantized_weight(kind, storage, double):
    """Also for a plain tensor, as FSDP2 gathers it: the statistics lie elsewhere."""
    packed = bnb.nn.Params4bit(
        torch.randn(48, 64),
        requires_grad=False,
        quant_type=kind,
        compress_statistics=double,
        quant_storage=getattr(torch, storage),
    ).to("cpu")
    x, bias = torch.randn(2, 3, 64), torch.randn(48)
    state = packed.quant_state
    weight = bnb.functional.dequantize_4bit(packed.data, state)
    for given in (packed, packed.data.clone()):
        for each in (bias, None):
            output = linear_4bit(x, given, each, shape=state.shape, state=state)
            assert output.equal(F.linear(x, weight, each))
    half = linear_4bit(x.bfloat16(), packed, None, shape=state.shape, state=state)
    assert half.equal(F.linear(x.bfloat16(), weight.bfloat16()))


def test_operators_know_their_shapes_without_numbers():
    x = torch.empty(2, 3, 64, dtype=torch.bfloat16, device="meta")
    packed = torch.empty(48 * 32, 1, dtype=torch.uint8, device="meta")
    eight = torch.empty(48, 64, dtype=torch.int8, device="meta")
    for output in (
        linear_4bit(x, packed, None, shape=torch.Size((48, 64)), state=None),
        linear_8bit(x, eight, None, scale=None),
    ):
        assert (output.shape, output.dtype, output.device.type) == ((2, 3, 48), x.dtype, "meta")


@pytest.mark.parametrize("contexts", [keeping_ops, lambda: counting(OpCounts())])
@pytest.mark.parametrize("targets", [[], EXPERTS], ids=["attention", "experts"])
@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_packed_experts_in_a_block_are_computed_twice(family, targets, contexts, folders):
    """Each computing of the experts of a layer dequantizes two weights: one in the forward, one in
    the backward. A graph with gradients of experts dequantizes no more than that."""
    settings = {"target_modules": ["q_proj"], "target_parameters": targets}
    expected, alone = step(adapted(folders[family], METHODS["nf4 twice"], **settings))
    model = adapted(folders[family], METHODS["nf4 twice"], **settings)
    leave_recomputing_to(checkpointed(model, contexts()))
    found, watched = step(model)
    assert equal(found, expected)
    assert watched["bitsandbytes.dequantize_4bit"] == alone["bitsandbytes.dequantize_4bit"]
    if contexts is keeping_ops:
        products = alone["aten._grouped_mm"] - watched["aten._grouped_mm"]
        assert products == 2 * 2 * len(ROWS)  # those that the experts alone would do once more


def test_dequantized_experts_of_one_layer_at_a_time(folders):
    """While the backward dequantizes, at most both weights of one layer of three are there."""
    model = adapted(folders["mixtral"], METHODS["nf4 twice"], target_modules=["q_proj"])
    leave_recomputing_to(checkpointed(model, keeping_ops()))
    made, most = [], []

    class Alive(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func is torch.ops.bitsandbytes.dequantize_4bit.default and result.dim() == 3:
                made.append(StorageWeakRef(result.untyped_storage()))
                most.append(sum(not each.expired() for each in made))
            return result

    loss = reference.row_loss_sum(model, ROWS[0])
    with Alive():
        loss.backward()
    assert len(most) == 2 * 2
    assert max(most) == 2
