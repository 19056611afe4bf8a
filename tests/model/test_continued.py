"""Going on from an adapter: its settings and weights, one adapter, trained as it was."""

import json
from dataclasses import replace

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

from ftrecipes.checkpoint.adapter import WEIGHTS, save_adapter, verify_adapter
from ftrecipes.config.errors import ModelError
from ftrecipes.config.precision import Precision
from ftrecipes.model.adapters import add_adapters, rehearse_adapters, trainable_parameters
from tests import reference, tiny_models
from tests.checkpoint.alone import ALONE
from tests.model.adapting import FLOAT32, adapt, method_config, moved

IDS = [5, 9, 3, 17, 40, 8]
SETTINGS = {
    "lora": {"r": 3, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "ia3": {},
    "prefix": {},
    "prompt": {},
    "llama_adapter": {},
}


def go_on(folder, *, base=None, precision: Precision = FLOAT32, **more) -> peft.PeftModel:
    base = tiny_models.build("llama") if base is None else base
    return add_adapters(base, method_config("lora", folder=folder), precision, **more)


def sketch_of(family: str):
    model = tiny_models.build(family)
    with torch.device("meta"):
        return type(model)(model.config)


def saved(folder, method="lora", **settings) -> peft.PeftModel:
    model = moved(adapt(method, **SETTINGS[method] | settings))
    save_adapter(model, folder, base_name="base", **ALONE)
    return model


@pytest.mark.parametrize("method", SETTINGS)
def test_one_adapter_with_the_same_weights_as_trainable_as_before(method, tmp_path):
    model = saved(tmp_path, method)
    again = go_on(tmp_path)
    assert list(again.peft_config) == ["default"]
    before, after = (dict(trainable_parameters(m)) for m in (model, again))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    with torch.no_grad():
        live, loaded = (reference.row_logits(m.eval(), IDS) for m in (model, again))
    assert torch.equal(live, loaded)
    save_adapter(moved(again), tmp_path, base_name="base", **ALONE)
    verify_adapter(again, tmp_path, **ALONE)


def test_embedding_rows_go_on(tmp_path):
    base = tiny_models.build("llama")
    base.resize_token_embeddings(98)
    config = method_config("lora")
    model = moved(add_adapters(base, config, FLOAT32, new_token_ids=(96, 97)))
    save_adapter(model, tmp_path, base_name="base", **ALONE)
    other = tiny_models.build("llama", seed=0)
    with pytest.raises(ModelError, match=r"token id 97(.|\n)*--resize_embeddings"):
        go_on(tmp_path, base=other)
    other.resize_token_embeddings(99)
    with pytest.raises(ModelError, match="new tokens with the ids 98"):
        go_on(tmp_path, base=other, new_token_ids=(97, 98))
    other.resize_token_embeddings(98)
    again = go_on(tmp_path, base=other, new_token_ids=(96, 97))
    assert len(list(trainable_parameters(again))) == len(list(trainable_parameters(model)))
    with torch.no_grad():
        ids = [5, 96, 97]
        assert torch.equal(reference.row_logits(again, ids), reference.row_logits(model, ids))


def test_a_prefix_of_a_network_goes_on_without_it(tmp_path):
    model = saved(tmp_path, "prefix", prefix_projection=True)
    again = go_on(tmp_path)
    assert len(list(trainable_parameters(again))) == 1
    with torch.no_grad():
        live, loaded = (reference.row_logits(m.eval(), IDS) for m in (model, again))
    torch.testing.assert_close(live, loaded)


def test_rewritten_weights_go_on_as_plain_lora(tmp_path):
    model = saved(tmp_path, init_lora_weights="pissa", modules_to_save=[])
    again = go_on(tmp_path)
    assert again.peft_config["default"].r == 6
    with torch.no_grad():
        live, loaded = (reference.row_logits(m.eval(), IDS) for m in (model, again))
    torch.testing.assert_close(live, loaded, rtol=1e-4, atol=1e-5)


def test_weights_in_float32_stay_so_on_a_bfloat16_base(tmp_path):
    """PEFT would copy the trained head into a bfloat16 one first."""
    model = saved(tmp_path)
    half = replace(FLOAT32, base="bfloat16", compute="bfloat16", autocast=True)
    again = go_on(tmp_path, base=tiny_models.build("llama").to(torch.bfloat16), precision=half)
    after = dict(trainable_parameters(again))
    for name, parameter in trainable_parameters(model):
        assert torch.equal(after[name], parameter), name


def drop(folder):
    tensors = load_file(folder / WEIGHTS)
    tensors.pop("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight")
    save_file(tensors, folder / WEIGHTS)


def add(folder):
    tensors = load_file(folder / WEIGHTS)
    tensors["base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight"] = torch.ones(2)
    save_file(tensors, folder / WEIGHTS)


def another_rank(folder):
    change(folder, r=5)


def change(folder, **settings):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (drop, r"missing: (.*)q_proj.lora_A"),
        (add, r"without a place: (.*)layers.7"),
        (another_rank, "size mismatch"),
        (lambda folder: change(folder, init_lora_weights="corda"), "init_lora_weights corda"),
        (lambda folder: change(folder, peft_type="LOHA"), r"LOHA|hyperparameters|unexpected"),
        (lambda folder: (folder / WEIGHTS).write_bytes(b"no"), "HeaderTooShort|header"),
    ],
)
def test_what_does_not_fit_is_found_on_a_sketch(spoil, message, tmp_path):
    saved(tmp_path)
    spoil(tmp_path)
    with pytest.raises(ModelError, match=message):
        rehearse_adapters(sketch_of("llama"), method_config("lora", folder=tmp_path), FLOAT32)


def test_another_base_is_told(tmp_path, caplog):
    saved(tmp_path)
    with caplog.at_level("INFO"):
        go_on(tmp_path)
        assert not caplog.text
        change(tmp_path, base_model_name_or_path="org/other")
        go_on(tmp_path)
    assert "was trained on org/other, and goes on with base" in caplog.text


def of_peft(folder, family="llama", *, base=None, embeddings="auto", **settings) -> peft.PeftModel:
    """An adapter that PEFT itself has made and saved."""
    base = tiny_models.build(family) if base is None else base
    settings = {"target_modules": ["q_proj"], "r": 3} | settings
    config = peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **settings)
    model = moved(peft.get_peft_model(base, config))
    model.save_pretrained(folder, save_embedding_layers=embeddings)
    return model


def test_base_weights_in_the_file_may_only_repeat_the_base(tmp_path):
    """PEFT saves embeddings too where they are adapted or were enlarged."""
    targets = ["q_proj", "embed_tokens", "lm_head"]
    model = of_peft(tmp_path, target_modules=targets, embeddings=True)
    assert any("embed_tokens.base_layer" in name for name in load_file(tmp_path / WEIGHTS))
    again = go_on(tmp_path).eval()
    with torch.no_grad():
        live = reference.row_logits(model, IDS)
        assert torch.equal(reference.row_logits(again, IDS), live)


def test_another_base_in_the_file_is_refused(tmp_path):
    base = tiny_models.build("llama")
    with torch.no_grad():
        base.get_input_embeddings().weight += 0.1
    of_peft(tmp_path, base=base, embeddings=True)
    with pytest.raises(ModelError, match=r"other numbers(.*)embed_tokens(.|\n)*merge_and_unload"):
        go_on(tmp_path)
    larger = tiny_models.build("llama")
    larger.resize_token_embeddings(98)
    of_peft(tmp_path, base=larger, embeddings=True)
    with pytest.raises(ModelError, match="other numbers or shapes"):  # before weights are read
        rehearse_adapters(sketch_of("llama"), method_config("lora", folder=tmp_path), FLOAT32)


def test_a_variant_with_a_forward_of_its_own_is_refused(tmp_path):
    of_peft(tmp_path, alora_invocation_tokens=[5, 6])
    with pytest.raises(ModelError, match="got: alora_invocation_tokens"):
        go_on(tmp_path)


def test_new_tokens_go_on_in_modules_that_are_trained_whole(tmp_path):
    def enlarged(seed):
        torch.manual_seed(seed)
        base = tiny_models.build("llama")
        base.resize_token_embeddings(98, mean_resizing=False)
        return base

    whole = {"modules_to_save": ["embed_tokens", "lm_head"]}
    model = of_peft(tmp_path, base=enlarged(1), embeddings=True, **whole)
    again = go_on(tmp_path, base=enlarged(2), new_token_ids=(96, 97)).eval()
    with torch.no_grad():
        ids = [5, 96, 97]
        assert torch.equal(reference.row_logits(again, ids), reference.row_logits(model, ids))


def test_one_weight_under_two_names_is_saved(tmp_path):
    settings = {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}
    model = of_peft(tmp_path, "llama_tied", **settings)
    again = go_on(tmp_path, base=tiny_models.build("llama_tied"))
    save_adapter(moved(again), tmp_path, base_name="base", **ALONE)
    verify_adapter(again, tmp_path, **ALONE)
    with torch.no_grad():
        loaded = peft.PeftModel.from_pretrained(tiny_models.build("llama_tied"), tmp_path).eval()
        live = reference.row_logits(again, IDS)
        assert torch.equal(reference.row_logits(loaded, IDS), live)
        assert not torch.equal(reference.row_logits(model, IDS), live)
