"""The probe takes the flat route only where it is right: each of its checks is made to fail."""

import pytest
import torch

from ftrecipes.config.errors import ModelError
from ftrecipes.model import attention
from ftrecipes.model.attention import ROW_ATTENTION
from ftrecipes.model.forward import decoder_of
from tests import reference, tiny_models
from tests.model.routes import backward_step, route_of

ROWS = tiny_models.random_rows([17, 9, 9, 23, 12])


def check_padded(model, reason):
    """Padded for this reason, attention as before, and the loss of a step still the reference's."""
    before = decoder_of(model).config._attn_implementation
    loss = reference.backward_step(model, ROWS)
    route = route_of(model, ROWS)
    assert not route.flat
    assert reason in route.reason
    assert decoder_of(model).config._attn_implementation == before
    assert backward_step(model, route, [ROWS]) == pytest.approx(loss, rel=1e-5)


def test_flat_route_says_so_and_sets_row_attention():
    model = tiny_models.build("llama")
    route = route_of(model, ROWS)
    assert route.flat
    assert route.reason == (
        "rows are laid flat, each attends alone; logits are made in chunks, where labels count"
    )
    assert model.config._attn_implementation == ROW_ATTENTION


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_mode_is_left_as_it_was(family, training):
    model = (
        tiny_models.build(family, hidden_dropout=0.5)
        if family == "bloom"
        else tiny_models.build(family)
    )
    route_of(model.train(training), ROWS)
    assert all(module.training == training for module in model.modules())


def test_random_numbers_are_left_as_they_were():
    """One trial is in train mode, where dropout draws."""
    torch.manual_seed(3)
    before = torch.get_rng_state()
    route_of(tiny_models.build("gpt2", seed=3, attn_pdrop=0.5, resid_pdrop=0.5), ROWS)
    after_building = torch.get_rng_state()
    assert not torch.equal(after_building, before)
    tiny_models.build("gpt2", seed=3, attn_pdrop=0.5, resid_pdrop=0.5)
    assert torch.equal(torch.get_rng_state(), after_building)


def test_row_attention_that_leaks_is_refused(monkeypatch):
    def leaking(query, key, value, *, row_layout, rule):
        whole = attention.RowLayout.of((sum(row_layout.lengths),), query.device)
        return separate(query, key, value, row_layout=whole, rule=rule)

    separate = attention._attend_split
    monkeypatch.setattr(attention, "_attend_split", leaking)
    check_padded(tiny_models.build("llama"), "laid flat they differ")


def test_mixing_of_neighbours_outside_attention_is_refused():
    model = tiny_models.build("llama")
    model.model.layers[1].mlp.register_forward_hook(
        lambda module, args, output: (
            output + 0.1 * output.roll(1, dims=1).index_fill(1, torch.tensor([0]), 0)
        )
    )
    check_padded(model, "laid flat they differ")


def test_a_leak_at_the_first_position_of_rows_is_seen_in_bfloat16():
    """A mix of neighbours changes a few positions only; half precision must not hide it."""
    model = tiny_models.build("llama").to(torch.bfloat16)
    model.model.layers[1].mlp.register_forward_hook(
        lambda module, args, output: (
            output + output.roll(1, dims=1).index_fill(1, torch.tensor([0]), 0)
        )
    )
    assert "laid flat they differ" in route_of(model, ROWS).reason


def test_attention_without_effect_can_not_be_checked():
    model = tiny_models.build("llama")
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
    check_padded(model, "a leak between them would go unnoticed")


def test_unknown_keyword_is_refused():
    model = tiny_models.build("llama")

    def add_keyword(module, args, keywords):
        return args, keywords | {"position_bias": torch.zeros(1)}

    # the reference runs eager attention, which ignores it
    model.set_attn_implementation("eager")
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(add_keyword, with_kwargs=True)
    check_padded(model, "attention is called with the keyword position_bias")


def test_window_applied_by_the_mask_only_is_refused():
    model = tiny_models.build("gemma3")
    model.model.layers[0].self_attn.sliding_window = None
    check_padded(model, "its masks are not the causal ones")


def test_chunked_attention_is_refused():
    check_padded(tiny_models.build("llama4"), "its masks are not the causal ones")


@pytest.mark.parametrize("family", ["bloom", "falcon", "mamba"])
def test_old_attention_and_no_attention_are_refused(family):
    check_padded(tiny_models.build(family), "does not go through transformers' interface")


def test_layers_without_attention_are_refused():
    check_padded(tiny_models.build("lfm2"), "its 2 layers made 1 calls")


def test_model_that_looks_ahead_is_an_error():
    with pytest.raises(ModelError, match="BertLMHeadModel looks ahead"):
        route_of(tiny_models.build("bert"), ROWS)


@pytest.mark.parametrize("when", ["always", "while training"])
def test_a_forward_that_fails_is_an_error(when):
    """As of models that need more than token ids, or rows of certain lengths while training."""
    model = tiny_models.build("llama")

    def fail(module, args, kwargs):
        if when == "always" or module.training:
            raise ValueError("rows of 64 positions only")

    model.model.register_forward_pre_hook(fail, with_kwargs=True)
    with pytest.raises(ModelError, match=r"LlamaForCausalLM can not(.|\n)*64 positions only"):
        route_of(model.train(), ROWS)
    assert model.training


def test_a_padded_row_that_differs_from_the_row_alone_is_an_error():
    """It can not be laid flat either, and its first block knows the length of the micro-batch."""
    model = tiny_models.build("bloom")

    def stretch(module, args, kwargs, output):
        return output * (output.shape[1] - 40)

    model.transformer.h[0].mlp.register_forward_hook(stretch, with_kwargs=True)
    with pytest.raises(ModelError, match="something else of a row that is padded"):
        route_of(model, ROWS)


def test_unknown_change_of_the_logits_keeps_the_models_own_head():
    model = tiny_models.build("llama")

    def sharpen(module, args, output):
        output.logits = output.logits * 1.01
        return output

    model.register_forward_hook(sharpen)
    loss = reference.backward_step(model, ROWS)
    route = route_of(model, ROWS)
    assert (route.flat, route.head) == (True, "own")
    assert backward_step(model, route, [ROWS]) == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize(
    ("family", "scale", "softcap"),
    [("cohere", 0.5, None), ("granite", 1 / 3, None), ("gemma2", 1.0, 3.0), ("llama", 1.0, None)],
)
def test_scale_and_soft_cap_of_the_head_are_found(family, scale, softcap):
    route = route_of(tiny_models.build(family), ROWS)
    assert (route.head, route.scale, route.softcap) == ("chunked", pytest.approx(scale), softcap)


def failing_when_flat(error):
    def fail(module, args, keywords):
        if "row_layout" in keywords:
            raise error

    model = tiny_models.build("llama")
    model.model.layers[1].register_forward_pre_hook(fail, with_kwargs=True)
    return model


def test_forward_that_fails_when_flat_is_padded():
    check_padded(failing_when_flat(TypeError("odd\nkeyword")), "(TypeError: odd keyword)")


def test_running_out_of_memory_is_not_a_refusal():
    with pytest.raises(torch.OutOfMemoryError):
        route_of(failing_when_flat(torch.OutOfMemoryError("no memory")), ROWS)


@pytest.mark.parametrize("lengths", [[3], [2, 2], [400, 3]])
def test_any_amount_of_data_will_do(lengths):
    assert route_of(tiny_models.build("llama"), tiny_models.random_rows(lengths)).flat
