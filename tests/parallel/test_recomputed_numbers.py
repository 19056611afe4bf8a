"""Every way to checkpoint changes no number: loss and gradients are those of a model without.

The reference is the same model, run the same way, that keeps its activations. The same kernels run
on the same numbers, so in float32 on a CPU equal means bit for bit, with dropout too.
"""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ftrecipes.config.schema import LoraConfig, RunConfig, TrainConfig
from ftrecipes.model.adapters import add_adapters, trainable_parameters
from ftrecipes.model.attention import ROW_ATTENTION
from ftrecipes.model.forward import LossRoute, causal_lm, decoder_of
from ftrecipes.model.initial import initialise_adapter
from ftrecipes.parallel.recompute import recompute
from ftrecipes.parallel.wrap import blocks_of, lora_aware_wrap_policy
from tests import reference, tiny_models
from tests.distributed.sharded import Case
from tests.model.adapting import FLOAT32
from tests.model.routes import backward_step, flatten
from tests.recomputing import WAYS, Way, counted_forwards, expected_forwards

ROWS = tiny_models.random_rows((7, 5, 9, 5))
FLAT = LossRoute(flat=True, head="chunked", reason="")
EXPERTS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
PACKED = Case("qwen3_moe", parameters=EXPERTS, storage="uint8")
CASES = {
    "llama lora": Case(),
    "llama full": Case(peft=()),
    "qwen lora": Case("qwen3"),
    "qwen full": Case("qwen2", peft=()),
    "gpt2 lora": Case("gpt2", peft=("c_attn", "c_fc", "c_proj")),
    "gpt2 full": Case("gpt2", peft=()),
    "experts lora": Case("qwen3_moe", peft=("q_proj", "o_proj")),
    "experts full": Case("qwen3_moe", peft=()),
    "adapted experts": Case("qwen3_moe", parameters=EXPERTS),
    "qlora": Case(storage="uint8"),
    "packed experts": PACKED,
}
ADAPTER = RunConfig(train=TrainConfig(model_name="base", use_peft=True), lora=LoraConfig(r=4))
# PEFT has no dropout on adapters of parameters
WITH_DROPOUT = [name for name, case in CASES.items() if not case.parameters]


def build(case: Case, way: Way | None) -> nn.Module:
    model = case.build()
    decoder_of(causal_lm(model)).set_attn_implementation(ROW_ATTENTION)
    if way is not None:
        way(model)
    return model


def numbers(model: nn.Module) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss of a step of two micro-batches, and its gradients by canonical name."""
    torch.manual_seed(2)
    loss = backward_step(model, FLAT, [ROWS[:2], ROWS[2:]])
    return loss, {name: p.grad for name, p in trainable_parameters(model) if p.grad is not None}


@cache
def without(name: str, dropout: float) -> tuple[float, dict[str, torch.Tensor]]:
    return numbers(build(replace(CASES[name], dropout=dropout), None))


def assert_same(name: str, dropout: float, way: Way) -> None:
    model = build(replace(CASES[name], dropout=dropout), way)
    with counted_forwards(model) as counts:
        loss, gradients = numbers(model)
    expected_loss, expected = without(name, dropout)
    assert loss == expected_loss
    assert gradients.keys() == expected.keys()
    wrong = [key for key in expected if not gradients[key].equal(expected[key])]
    assert wrong == []
    assert all(gradient.any() for gradient in gradients.values())
    assert counts == expected_forwards(model, way, of=2)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_no_number_changes(name, way):
    """C05, S16: a part is entered once, or twice where it is computed again; never a third time."""
    assert_same(name, 0.0, WAYS[way])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", WITH_DROPOUT)
def test_no_number_changes_with_dropout(name, way):
    assert without(name, 0.3)[0] != without(name, 0.0)[0]
    assert_same(name, 0.3, WAYS[way])


def test_one_inside_of_another_would_be_seen():
    """What the counts above are worth: an attention would be computed three times."""
    model = build(Case(), None)
    blocks = blocks_of(lora_aware_wrap_policy(model))
    recompute(model, [block.self_attn for block in blocks])
    recompute(model, blocks)
    with counted_forwards(model) as counts:
        numbers(model)
    assert counts != expected_forwards(model, WAYS["full"], of=2)
    assert {key: counts[key] for key in counts if key[1] == "attention"} == {
        (0, "attention", "self_attn"): 3 * 2,
        (1, "attention", "self_attn"): 3 * 2,
    }


def test_gradients_are_those_of_plain_transformers():
    """Row by row, with logits and masks of transformers; float32 sums come in another order."""
    for name in ("llama lora", "gpt2 full"):
        whole = CASES[name].build()
        loss = reference.backward_step(whole, ROWS)
        found_loss, found = numbers(build(CASES[name], WAYS["sublayers"]))
        assert found_loss == pytest.approx(loss, rel=1e-5)
        for key, gradient in found.items():
            expected = whole.get_parameter(key).grad
            assert (gradient - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("way", [None, *WAYS])
@pytest.mark.parametrize("family", ["qwen3_moe", "qwen2_moe"])
def test_packed_experts_are_computed_twice_at_most(family, way):
    """They are computed again by themselves where nothing around them is.

    In a block of Qwen 2 others follow them, for which the backward can not stop before them.
    """
    model, calls = build(replace(PACKED, family=family), WAYS.get(way)), []
    experts = [m for m in model.modules() if "Experts" in type(m).__name__]
    for module in experts:
        module.act_fn.register_forward_pre_hook(lambda module, _: calls.append(module))
    with torch.no_grad():
        FLAT.loss_sum(model, *flatten(ROWS))
    once = Counter(calls)
    assert once.keys() == {module.act_fn for module in experts}
    FLAT.loss_sum(model, *flatten(ROWS)).backward()
    assert Counter(calls) == {module: 3 * count for module, count in once.items()}


# torch does not count operators of ours; in GPT-2 the adapters' second products, so much wider than
# their rank, are computed again.
@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if not case.storage and name != "gpt2 lora"]
)
def test_selective_multiplies_nothing_again(name):
    """Counted by torch; a full one multiplies its blocks again, but for their last product."""
    flops = {}
    for way in (None, "selective", "full"):
        model = build(CASES[name], WAYS.get(way))
        with FlopCounterMode(display=False) as counter:
            numbers(model)
        flops[way] = counter.get_total_flops()
    assert flops["selective"] == flops[None]
    assert flops["full"] > 1.1 * flops[None]


def test_no_cache_is_made_and_nothing_is_warned(recwarn, caplog):
    """C01: by the forward of the decoder, and by that of the model, which makes its own masks.

    `past_key_values` is another name of `cache` in transformers 5.24.
    """
    caches = []
    for way in ("full", "sublayers", "selective"):
        for route in (FLAT, LossRoute(flat=False, head="own", reason="")):
            model = build(Case(), WAYS[way])
            decoder = decoder_of(causal_lm(model))
            decoder.set_attn_implementation(ROW_ATTENTION if route.flat else "sdpa")
            assert model.config.use_cache
            decoder.register_forward_hook(lambda _, args, out: caches.append(out.cache))
            backward_step(model, route, [ROWS])
    assert caches == [None] * 6
    assert not [warning for warning in recwarn if "cache" in str(warning.message)]
    assert not [line for line in caplog.messages if "cache" in line]


@pytest.mark.parametrize("way", WAYS)
def test_new_adapters_train(way):
    """C02: two steps from an update of zero; the embedding is frozen, and B gets gradients."""
    trained = []
    for each in (None, WAYS[way]):
        model = add_adapters(tiny_models.build("llama"), ADAPTER, FLOAT32).train()
        initialise_adapter(model, seed=3, folder=None)
        assert not any(p.any() for n, p in model.named_parameters() if "lora_B" in n)
        decoder_of(causal_lm(model)).set_attn_implementation(ROW_ATTENTION)
        if each is not None:
            each(model)
        optimizer = torch.optim.AdamW([p for _, p in trainable_parameters(model)], lr=0.01)
        for _ in range(2):
            numbers(model)
            optimizer.step()
        trained.append({name: p.detach() for name, p in trainable_parameters(model)})
    expected, found = trained
    assert found.keys() == expected.keys()
    assert all(found[name].equal(expected[name]) for name in expected)
    assert {name for name, p in found.items() if p.any()} == found.keys()


@pytest.mark.parametrize("way", WAYS)
def test_as_many_parameters_are_trained(way, tmp_path):
    """C04: of new adapters, of one that is continued, and of a whole model."""
    new = add_adapters(tiny_models.build("llama"), ADAPTER, FLOAT32)
    new.save_pretrained(tmp_path, save_embedding_layers=False)
    train = replace(ADAPTER.train, from_peft_checkpoint=str(tmp_path))
    continued = add_adapters(tiny_models.build("llama"), replace(ADAPTER, train=train), FLOAT32)
    for model in (new, continued, tiny_models.build("llama")):
        before = [(name, p.shape) for name, p in trainable_parameters(model)]
        WAYS[way](model)
        assert [(name, p.shape) for name, p in trainable_parameters(model)] == before
        assert len(before) > 0
