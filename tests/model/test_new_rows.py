"""Embedding rows of new tokens beside LoRA: tied and untied heads, gradients, and what is saved."""

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from ftrecipes.checkpoint.adapter import WEIGHTS, save_adapter, verify_adapter
from ftrecipes.config.errors import ModelError
from ftrecipes.model.adapters import add_adapters, rehearse_adapters, trainable_parameters
from tests import reference, tiny_models
from tests.checkpoint.alone import ALONE
from tests.model.adapting import FLOAT32, method_config, moved
from tests.model.routes import backward_step, route_of

NEW = (96, 97)
ROWS = [([*ids, 96, 97, 7], [*labels, 96, 97, 7]) for ids, labels in
        tiny_models.random_rows([17, 9, 9])]  # fmt: skip
# family -> layers whose rows are trained
ROW_LAYERS = {"llama": 2, "llama_tied": 1, "gpt2": 1, "gemma2": 1}


def enlarged(family: str, *, seed: int = 0):
    """The tiny model with rows for two more tokens, drawn with the seed."""
    model = tiny_models.build(family)
    torch.manual_seed(seed)
    model.resize_token_embeddings(98, mean_resizing=False)
    return model


def adapt(family: str, **settings) -> PeftModel:
    target = "c_attn" if family == "gpt2" else "q_proj"
    config = method_config("lora", target_modules=[target], **settings)
    return add_adapters(enlarged(family), config, FLOAT32, new_token_ids=NEW)


def rows_of(model) -> dict[str, torch.nn.Parameter]:
    return {n: p for n, p in trainable_parameters(model) if "trainable_tokens" in n}


@pytest.mark.parametrize("family", ROW_LAYERS)
def test_rows_of_embedding_and_head_are_trained_like_whole_layers(family):
    """Their gradients are those rows of the gradients of embedding and head."""
    model = moved(adapt(family))
    assert len(rows_of(model)) == ROW_LAYERS[family]
    whole = enlarged(family)
    with torch.no_grad():
        for name, row in rows_of(model).items():
            layer = (
                whole.get_output_embeddings() if "head" in name else whole.get_input_embeddings()
            )
            layer.weight[list(NEW)] = row
    target = ["c_attn"] if family == "gpt2" else ["q_proj"]
    whole = add_adapters(whole, method_config("lora", target_modules=target), FLOAT32)
    lora = dict(trainable_parameters(model))
    with torch.no_grad():
        for name, parameter in trainable_parameters(whole):
            parameter.copy_(lora[name])
    lm = whole.get_base_model()
    layers = {"embed": lm.get_input_embeddings().weight, "head": lm.get_output_embeddings().weight}
    for weight in layers.values():
        weight.requires_grad_(True)
    loss = reference.backward_step(whole, ROWS)
    expected = {n: w.grad[list(NEW)].clone() for n, w in layers.items()}
    route = route_of(model, ROWS)
    assert route.head == "chunked"
    assert backward_step(model, route, [ROWS]) == pytest.approx(loss, rel=1e-5)
    for name, row in rows_of(model).items():
        wanted = expected["head" if "head" in name else "embed"]
        assert wanted.abs().max() > 0
        torch.testing.assert_close(row.grad, wanted, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("family", ROW_LAYERS)
def test_saved_rows_win_over_those_of_another_resize(family, tmp_path):
    model = moved(adapt(family))
    save_adapter(model, tmp_path, base_name="base", **ALONE)
    verify_adapter(model, tmp_path, **ALONE)
    assert len(load_file(tmp_path / WEIGHTS)) == 4 + ROW_LAYERS[family]
    ids = [5, 96, 9, 97]
    with torch.no_grad():
        other = enlarged(family, seed=7)
        assert not torch.equal(reference.row_logits(other, ids), reference.row_logits(model, ids))
        loaded = PeftModel.from_pretrained(other, tmp_path).eval()
        assert torch.equal(reference.row_logits(loaded, ids), reference.row_logits(model, ids))


def test_a_layer_that_is_trained_whole_has_no_rows_of_its_own():
    model = adapt("llama", modules_to_save=["lm_head"])
    assert [name for name in rows_of(model) if "lm_head" in name] == []
    assert len(rows_of(model)) == 1


@pytest.mark.parametrize("name", ["embed_tokens", "lm_head"])
def test_one_of_two_tied_layers_trained_whole_is_refused(name):
    """The other would keep its untrained rows."""
    with pytest.raises(ModelError, match=r"would not be trained in(.|\n)*name both there"):
        adapt("llama_tied", modules_to_save=[name])
    both = adapt("llama_tied", modules_to_save=["embed_tokens", "lm_head"])
    assert not rows_of(both)


@pytest.mark.parametrize("method", ["ia3", "prefix", "prompt", "llama_adapter"])
def test_other_methods_refuse_new_tokens(method):
    with torch.device("meta"):
        sketch = type(tiny_models.build("llama"))(tiny_models.build("llama").config)
    with pytest.raises(ModelError, match=f"{method} can not train the embeddings of new tokens"):
        rehearse_adapters(sketch, method_config(method), FLOAT32, new_token_ids=NEW)
