"""Loss and gradients of a step by the chosen route against the reference, family by family.

float32 on both sides. Losses agree to 1e-5 (the order of sums differs); gradients to 1e-4 of the
largest entry of each parameter's gradient.
"""

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model

from ftrecipes.model import head as head_module
from ftrecipes.model.forward import LossRoute, flat_inputs, padded_inputs
from tests import reference, tiny_models
from tests.model.routes import backward_step, flatten, route_of
from tests.model.sizes import recorded_sizes

FLAT = [
    "llama", "llama_tied", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "mistral", "mixtral",
    "gpt_oss", "cohere", "granite", "gpt2", "opt", "gpt_neox", "olmo2",
]  # fmt: skip
PADDED = ["bloom", "falcon", "mamba", "lfm2"]
# rows longer than all windows, equal neighbours, one without labels, one of a single token
LENGTHS = [17, 9, 9, 23, 1, 12]


@pytest.fixture
def rows():
    rows = tiny_models.random_rows(LENGTHS)
    rows[1] = (rows[1][0], [-100] * 9)
    return rows


def adapt(model):
    """LoRA with a B that is not zero, so that A gets gradients too."""
    # PEFT refuses to adapt the other linear layers of Mamba
    targets = ["in_proj"] if model.config.model_type == "mamba" else "all-linear"
    model = get_peft_model(model, LoraConfig(r=4, target_modules=targets, task_type="CAUSAL_LM"))
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.1, generator=generator)
    return model


def assert_close_gradients(ours: dict, theirs: dict):
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        scale = gradient.abs().max().item()
        torch.testing.assert_close(ours[name], gradient, rtol=0, atol=1e-4 * scale + 1e-7, msg=name)


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("family", FLAT + PADDED)
def test_step_equals_the_reference(family, lora, rows):
    model = tiny_models.build(family)
    if lora:
        model = adapt(model)
    loss = reference.backward_step(model, rows)
    expected = reference.gradients(model)
    route = route_of(model, rows)
    assert route.flat == (family in FLAT)
    assert route.head == "chunked"
    ours = backward_step(model, route, [rows])
    assert ours == pytest.approx(loss, rel=1e-5)
    assert_close_gradients(reference.gradients(model), expected)


@pytest.mark.parametrize("family", ["llama", "gemma2", "bloom"])
def test_any_split_into_micro_batches_is_one_step(family, rows):
    model = tiny_models.build(family)
    route = route_of(model, rows)
    loss = backward_step(model, route, [rows])
    expected = reference.gradients(model)
    for split in ([[row] for row in rows], [rows[:2], rows[2:]], [rows[::-1]]):
        assert backward_step(model, route, split) == pytest.approx(loss, rel=1e-5)
        assert_close_gradients(reference.gradients(model), expected)


@pytest.mark.parametrize("head", ["chunked", "own", "full"])
@pytest.mark.parametrize("flat", [True, False], ids=["flat", "padded"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "cohere"])
def test_every_route_gives_the_same_step(family, flat, head, rows):
    """Also the combinations that the probe prefers others to."""
    model = tiny_models.build(family)
    loss = reference.backward_step(model, rows)
    expected = reference.gradients(model)
    own_attention = model.config._attn_implementation
    chosen = route_of(model, rows)
    if not flat:
        model.set_attn_implementation(own_attention)
    route = LossRoute(flat, head, "", scale=chosen.scale, softcap=chosen.softcap)
    assert backward_step(model, route, [rows]) == pytest.approx(loss, rel=1e-5)
    assert_close_gradients(reference.gradients(model), expected)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_packed_rows_have_the_logits_of_each_row_alone(family, attention):
    """No row sees the one before it: every position, against transformers' own attention."""
    rows = tiny_models.random_rows([17, 9, 23])
    alone = tiny_models.build(family, attn_implementation=attention)
    assert alone.config._attn_implementation == attention
    model = tiny_models.build(family)
    route = route_of(model, rows)
    assert route.flat
    ids, _, lengths = flatten(rows)
    with torch.no_grad():
        expected = torch.cat([reference.row_logits(alone, row) for row, _ in rows])
        inputs = flat_inputs(ids, lengths)
        logits = route.logits(model, route.states(model, inputs, inputs.slots))
    # float32; the order of sums differs
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_inputs_of_both_paths():
    ids = torch.arange(10, 16)
    flat, padded = flat_inputs(ids, (1, 3, 2)), padded_inputs(ids, (1, 3, 2))
    assert flat.keywords["input_ids"].tolist() == [[10, 11, 12, 13, 14, 15]]
    assert flat.keywords["position_ids"].tolist() == [[0, 0, 1, 2, 0, 1]]
    assert flat.keywords["row_layout"].boundaries.tolist() == [0, 1, 4, 6]
    assert flat.slots.tolist() == [0, 1, 2, 3, 4, 5]
    assert padded.keywords["input_ids"].tolist() == [[10, 10, 10], [11, 12, 13], [14, 15, 10]]
    assert padded.keywords["attention_mask"].tolist() == [[1, 0, 0], [1, 1, 1], [1, 1, 0]]
    assert padded.slots.tolist() == [0, 3, 4, 5, 6, 7]


def test_row_of_known_ids_by_hand():
    """No shift in the data: labels[i] == input_ids[i], and position i - 1 predicts it."""
    model = tiny_models.build("llama")
    ids = torch.tensor([5, 6, 7, 8, 9, 10])
    with torch.no_grad():
        logits = model(input_ids=ids[None], use_cache=False).logits[0]
    labels = torch.tensor([-100, -100, 7, 8, -100, 10])
    expected = -sum(logits[i - 1].log_softmax(-1)[ids[i]].item() for i in (2, 3, 5))
    route = route_of(model, [(ids.tolist(), labels.tolist())])
    assert route.loss_sum(model, ids, labels, (6,)).item() == pytest.approx(expected, rel=1e-5)
    shifted = F.cross_entropy(logits[:-1], labels[1:], reduction="sum").item()
    assert shifted == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("family", ["llama", "bloom", "gpt2"])
def test_batch_without_labels_is_zero_and_harmless(family):
    model = tiny_models.build(family)
    rows = [(ids, [-100] * len(ids)) for ids, _ in tiny_models.random_rows([5, 8])]
    route = route_of(model, rows)
    assert backward_step(model, route, [rows]) == 0
    for gradient in reference.gradients(model).values():
        assert (gradient == 0).all()
    with torch.no_grad():
        assert route.loss_sum(model, *flatten(rows)).item() == 0


@pytest.mark.parametrize("family", ["llama", "bloom", "gemma2"])
def test_logits_are_computed_for_counted_labels_only(family, rows, monkeypatch):
    model = tiny_models.build(family)
    route = route_of(model, rows)
    computed, head = [], model.get_output_embeddings()
    honest = head.forward

    def counted(hidden):
        computed.append(hidden[..., 0].numel())
        return honest(hidden)

    monkeypatch.setattr(head, "forward", counted)
    backward_step(model, route, [rows])
    assert sum(computed) == reference.count_tokens(rows)


def test_no_tensor_grows_with_the_square_of_positions_or_with_the_vocabulary(monkeypatch):
    """Flat route, 32 rows of 16, a vocabulary of 4096: neither T x T nor N x V nor a mask."""
    monkeypatch.setitem(head_module._CHUNK_BYTES, "cpu", 32 * 4 * 4096)
    model = tiny_models.build("llama", vocab_size=4096).requires_grad_(False)
    model.get_decoder().layers[0].requires_grad_(True)
    rows = tiny_models.random_rows([16] * 32, masked=0.0)
    route = route_of(model, rows)
    route.loss_sum(model, *flatten(rows))  # cosines and the like are made once
    with recorded_sizes() as sizes:
        route.loss_sum(model, *flatten(rows)).backward()
    positions = 16 * 32
    weight = 4096 * 32
    assert max(sizes - {weight}) < positions * positions
    assert positions * 4096 not in sizes
    assert reference.count_tokens(rows) * 4096 not in sizes


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_dropout_of_the_attention_acts_in_training(family, rows):
    settings = {"attn_pdrop": 0.5} if family == "gpt2" else {"attention_dropout": 0.5}
    model = tiny_models.build(family, **settings)
    expected = reference.evaluate(model, rows) * reference.count_tokens(rows)
    route = route_of(model, rows)
    assert route.flat
    losses = {
        mode: {route.loss_sum(model.train(mode), *flatten(rows)).item() for _ in range(3)}
        for mode in (True, False)
    }
    assert len(losses[True]) == 3
    assert len(losses[False]) == 1
    assert losses[False].pop() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("family", ["llama", "gemma2", "bloom", "mixtral"])
def test_bfloat16_step_is_near_the_float32_reference(family, rows):
    model = tiny_models.build(family)
    loss = reference.backward_step(model, rows)
    model = model.to(torch.bfloat16)
    route = route_of(model, rows)
    assert route.flat == (family != "bloom")
    # weights and activations have 8 bits: about 1e-2 on the mean of some 30 token losses
    assert backward_step(model, route, [rows]) == pytest.approx(loss, rel=0.02)


def test_no_cache_is_made_and_nothing_is_warned(rows, recwarn):
    model = tiny_models.build("llama").train()
    assert model.config.use_cache
    route = route_of(model, rows)
    caches = []
    model.get_decoder().register_forward_hook(
        lambda module, args, output: caches.append(output.cache)
    )
    route.loss_sum(model, *flatten(rows)).backward()
    assert caches == [None]
    assert not [w for w in recwarn if "cache" in str(w.message)]
