"""Decoder blocks are found in any model, and frozen from the bottom."""

import pytest
import torch

from ftrecipes.config.errors import ModelError
from ftrecipes.model.adapters import train_everything
from ftrecipes.model.units import find_blocks
from tests import reference, tiny_families, tiny_models
from tests.model.loading import FLOAT32

DECODERS = [name for name in tiny_models.FAMILIES if name != "bert"]
ROWS = tiny_models.random_rows([9, 7])


@pytest.mark.parametrize("family", DECODERS)
def test_blocks_of_every_family(family):
    """The blocks hold all weights but embeddings, head and single norms, and run in their order."""
    model = tiny_models.build(family)
    blocks = find_blocks(model)
    assert len(blocks) == 2
    order = []
    for index, block in enumerate(blocks):
        block.register_forward_pre_hook(lambda *_, index=index: order.append(index))
    reference.mean_loss(model, ROWS[:1])
    assert order == [0, 1]
    inside = {id(p) for block in blocks for p in block.parameters()}
    tables = [model.get_input_embeddings(), model.get_output_embeddings()]
    inside |= {id(p) for table in tables for p in table.parameters()}
    for name, parameter in model.named_parameters():
        assert (
            id(parameter) in inside
            or "norm" in name
            or "ln_" in name
            or "pos" in name
            or ("wpe" in name)
        ), name


def test_no_list_of_that_length_names_those_there_are():
    model = tiny_models.build("llama")
    model.config.num_hidden_layers = 5
    with pytest.raises(ModelError, match=r"model\.layers \(2\)(.|\n)*config says .5."):
        find_blocks(model)


@pytest.mark.parametrize("family", DECODERS)
def test_nothing_is_computed_below_the_lowest_trained_block(family):
    """Gradients above are those of the whole model; below there are none, and no graph either."""
    whole = tiny_models.build(family)
    reference.backward_step(whole, ROWS)
    model = train_everything(tiny_models.build(family), FLOAT32, frozen_blocks=1)
    blocks = find_blocks(model)
    needs_grad = []
    for block in blocks:
        block.register_forward_pre_hook(
            lambda _, args, kwargs: needs_grad.append(
                next(x for x in (*args, *kwargs.values()) if torch.is_tensor(x)).requires_grad
            ),
            with_kwargs=True,
        )
    reference.backward_step(model, ROWS)
    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert needs_grad[::2] == [tied, tied]  # what goes into the first block, in both rows
    assert needs_grad[1::2] == [tied, tied]  # and out of it
    frozen = {id(p) for p in blocks[0].parameters()}
    frozen |= {id(p) for p in model.get_input_embeddings().parameters() if not tied}
    seen = 0
    for name, parameter in model.named_parameters():
        if id(parameter) in frozen:
            assert parameter.grad is None, name
            seen += 1
        elif parameter.requires_grad:
            expected = whole.get_parameter(name).grad
            scale = expected.abs().max().item()
            torch.testing.assert_close(
                parameter.grad, expected, rtol=0, atol=1e-4 * scale + 1e-7, msg=name
            )
    assert seen >= 5


def test_all_blocks_may_be_frozen_but_no_more():
    model = train_everything(tiny_models.build("llama"), FLOAT32, frozen_blocks=2)
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {
        "model.norm.weight",
        "lm_head.weight",
    }
    with pytest.raises(ModelError, match="--num_freeze_layers 3: LlamaForCausalLM has 2 blocks"):
        train_everything(tiny_models.build("llama"), FLOAT32, frozen_blocks=3)


@pytest.mark.parametrize("model_type", ["got_ocr2", "gemma3", "moss_transcribe_diarize"])
def test_blocks_that_see_or_hear_are_not_those_of_the_decoder(model_type):
    model = tiny_families.build(model_type)
    blocks = find_blocks(model)
    assert any(blocks is module for module in model.get_decoder().modules())
