"""New tokens: in the tokenizer, in the embeddings, in what is saved."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ftrecipes.config.errors import ModelError
from ftrecipes.config.schema import QuantizationConfig, RunConfig, TrainConfig
from ftrecipes.model.load import sketch_model
from ftrecipes.model.resolve import check_vocabulary, resolve_source
from ftrecipes.model.vocabulary import add_new_tokens, resize
from tests import reference, tiny_models
from tests.model.loading import load
from tests.tiny_tokenizers import build_tokenizer

TOKENS = ["<plan>", "<act>", "Zusammenfassung"]


def tokenizer():
    return build_tokenizer("chatml", pad=None)


def asking(**settings) -> RunConfig:
    return RunConfig(train=TrainConfig(**settings))


def test_tokens_are_added_in_order_and_matched_whole():
    ours, before = tokenizer(), len(tokenizer())
    add_new_tokens(ours, TOKENS)
    ids = [before, before + 1, before + 2]
    assert ours.convert_tokens_to_ids(TOKENS) == ids
    assert [i for i in ours("say <act>Zusammenfassung<plan>!").input_ids if i >= before] == [
        ids[1],
        ids[2],
        ids[0],
    ]
    assert "<act>" in ours.decode(ids, skip_special_tokens=True)


def test_tokens_that_are_there_keep_their_ids_and_are_told(caplog):
    ours = tokenizer()
    known = ours.eos_token
    with caplog.at_level("INFO", logger="ftrecipes"):
        add_new_tokens(ours, [known, "<act>"])
    assert f"already tokens of this tokenizer, and trained all the same: {known}" in caplog.text
    assert len(ours) == len(tokenizer()) + 1
    assert (ours.eos_token, ours.eos_token_id) == (known, tokenizer().eos_token_id)


def test_nothing_asked_nothing_done():
    model = tiny_models.build("llama", vocab_size=8)  # fewer rows than tokens
    assert resize(model, tokenizer(), asking()) == ()
    assert model.get_input_embeddings().weight.shape[0] == 8


@pytest.mark.parametrize("family", ["llama", "llama_tied", "gpt2", "gemma2", "opt", "bloom"])
def test_added_rows_are_the_mean_and_the_old_ones_stay(family):
    """Old tokens get the logits they had; the mean in float32, so 1e-6 of entries about 0.1."""
    ours = tokenizer()
    old = len(ours)
    add_new_tokens(ours, TOKENS)
    models = [tiny_models.build(family, vocab_size=old) for _ in range(2)]
    torch.manual_seed(1)
    ids = resize(models[0], ours, asking(new_tokens=TOKENS))
    torch.manual_seed(2)
    resize(models[1], ours, asking(new_tokens=TOKENS))
    assert ids == (old, old + 1, old + 2)
    plain, model = tiny_models.build(family, vocab_size=old), models[0]
    embeddings, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert embeddings.shape[0] == head.shape[0] == model.config.vocab_size == old + 3
    assert (embeddings is head) == (
        plain.get_input_embeddings().weight is plain.get_output_embeddings().weight
    )
    for name, parameter in plain.named_parameters():
        enlarged = model.get_parameter(name)
        assert torch.equal(enlarged[: len(parameter)], parameter), name
        assert torch.equal(enlarged, models[1].get_parameter(name)), name  # whatever was drawn
        for row in enlarged[len(parameter) :]:
            torch.testing.assert_close(row, parameter.mean(0), rtol=1e-6, atol=1e-6)
    row = [3, 4, 5, 6]
    logits = reference.row_logits(model, row)[:, :old]
    torch.testing.assert_close(logits, reference.row_logits(plain, row), rtol=1e-5, atol=1e-5)


def test_rows_to_spare_are_used(caplog):
    """Qwen has 151936 rows and fewer tokens."""
    ours = tokenizer()
    old = len(ours)
    add_new_tokens(ours, TOKENS)
    model = tiny_models.build("llama", vocab_size=old + 10)
    weight = model.get_input_embeddings().weight
    before = weight.clone()
    assert resize(model, ours, asking(new_tokens=TOKENS)) == (old, old + 1, old + 2)
    assert model.get_input_embeddings().weight is weight
    assert torch.equal(weight, before)
    assert resize(model, ours, asking(resize_embeddings=True)) == ()


def test_a_tokenizer_of_more_ids_than_rows():
    """--resize_embeddings trains all rows that are added, with and without new tokens."""
    ours = tokenizer()
    size = len(ours)
    model = tiny_models.build("llama", vocab_size=size - 3)
    with pytest.raises(ModelError, match="--resize_embeddings"):
        check_vocabulary(size - 1, model)
    assert resize(model, ours, asking(resize_embeddings=True)) == (size - 3, size - 2, size - 1)
    check_vocabulary(size - 1, model)


def test_the_sketch_and_a_quantized_model_are_enlarged_too(tmp_path):
    ours = tokenizer()
    sizes = {"hidden_size": 64, "intermediate_size": 128}
    tiny_models.save_folder("llama", tmp_path, tokenizer=ours, **sizes)
    add_new_tokens(ours, TOKENS)
    config = asking(new_tokens=TOKENS)
    sketch = sketch_model(resolve_source(str(tmp_path), None, trust_remote_code=False))
    model = load(tmp_path, QuantizationConfig(method="4bit"))
    assert resize(sketch, ours, config) == resize(model, ours, config)
    assert sketch.get_input_embeddings().weight.device.type == "meta"
    head = model.get_output_embeddings().weight
    assert head.shape == sketch.get_output_embeddings().weight.shape == (len(ours), 64)
    assert head.isfinite().all()


def test_half_precision_stays_half():
    ours = tokenizer()
    model = tiny_models.build("llama", vocab_size=len(ours)).bfloat16()
    add_new_tokens(ours, TOKENS)
    resize(model, ours, asking(new_tokens=TOKENS))
    weight = model.get_input_embeddings().weight
    assert weight.dtype == torch.bfloat16
    expected = weight[:-3].float().mean(0)
    torch.testing.assert_close(weight[-1].float(), expected, rtol=2**-8, atol=0)


def test_a_further_table_is_an_error():
    ours = tokenizer()
    model = tiny_models.build("llama", vocab_size=len(ours))
    model.model.per_layer_tokens = torch.nn.Embedding(len(ours), 4)
    add_new_tokens(ours, TOKENS)
    with pytest.raises(ModelError, match=r"got: model\.per_layer_tokens"):
        resize(model, ours, asking(new_tokens=TOKENS))


def test_what_is_saved_agrees_and_is_read_again(tmp_path):
    ours = tokenizer()
    model = tiny_models.build("llama_tied", vocab_size=len(ours))
    add_new_tokens(ours, TOKENS)
    resize(model, ours, asking(new_tokens=TOKENS))
    row = [5, *ours("<act>!").input_ids]
    expected = reference.row_logits(model, row)
    model.save_pretrained(tmp_path)
    ours.save_pretrained(tmp_path)
    reread = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(reference.row_logits(reread, row), expected)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert reread.config.vocab_size == len(again) == len(ours)
    assert [5, *again("<act>!").input_ids] == row
