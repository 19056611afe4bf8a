"""What can be wrong with an adapter or a prompt, and that it is said without a traceback."""

import json
import shutil

import pytest

from ftrecipes.commands.generate import answers, leave_room, prompt_ids, trained_with
from ftrecipes.config.errors import ConfigError, ModelError
from ftrecipes.config.schema import GenerateConfig
from ftrecipes.finetuning import main
from tests import tiny_models
from tests.tiny_tokenizers import build_tokenizer

WEIGHTS = "adapter_model.safetensors"
SETTINGS = "adapter_config.json"


@pytest.fixture(scope="module")
def trained(model_folder, chat_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "adapter"
    flags = {"model_name": model_folder, "dataset": chat_file, "output_dir": folder}
    main(**flags, device="cpu", max_train_step=1, use_peft=True)
    return folder


@pytest.fixture
def adapter(trained, tmp_path):
    """A copy to break."""
    return shutil.copytree(trained, tmp_path / "adapter")


def ask(**settings) -> list[tuple[str, str]]:
    usual = {"prompt": "Hi", "max_new_tokens": 2, "device": "cpu"}
    return list(answers(GenerateConfig(**usual | settings)))


def change(folder, **settings) -> None:
    path = folder / SETTINGS
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


@pytest.mark.parametrize("content", ["{x", "{}", "[]", "7", ""])
def test_broken_settings(adapter, model_folder, content):
    (adapter / SETTINGS).write_text(content)
    for base in (None, str(model_folder)):
        with pytest.raises(ModelError, match=r"The adapter .* can not be loaded"):
            ask(adapter=str(adapter), model_name=base)


def test_an_adapter_without_a_base(adapter):
    change(adapter, base_model_name_or_path=None)
    with pytest.raises(ModelError, match="do: name it with --model_name"):
        ask(adapter=str(adapter))


@pytest.mark.parametrize("size", [0, 100, 5000])
def test_cut_weights(adapter, size):
    (adapter / WEIGHTS).write_bytes((adapter / WEIGHTS).read_bytes()[:size])
    with pytest.raises(ModelError, match=r"The adapter .* can not be loaded"):
        ask(adapter=str(adapter))


@pytest.mark.parametrize("named", [False, True])
def test_missing_weights(adapter, model_folder, named):
    (adapter / WEIGHTS).unlink()
    with pytest.raises(ModelError, match="holds no weights of an adapter"):
        ask(adapter=str(adapter), model_name=str(model_folder) if named else None)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {"hidden_size": 48}),
        ("llama", {"num_hidden_layers": 3}),  # PEFT gives the third random weights
        ("gpt2", {}),
    ],
)
def test_another_base_model(adapter, tmp_path, family, settings):
    base = tiny_models.save_folder(
        family, tmp_path / "base", tokenizer=build_tokenizer("chatml"), **settings
    )
    change(adapter, target_modules=["q_proj", "v_proj", "up_proj"])  # as of larger models
    with pytest.raises(ModelError, match=r"The adapter .* can not be loaded"):
        ask(adapter=str(adapter), model_name=str(base))


def test_another_rank(adapter):
    change(adapter, r=3)
    with pytest.raises(ModelError, match=r"can not be loaded(.|\n)*size mismatch"):
        ask(adapter=str(adapter))


@pytest.mark.parametrize(
    "line",
    ["quantization: 9bit", "quantization: {method: 4bit, bits: 4}", "quantization: [4]", "- a"],
)
def test_a_run_yaml_with_values_that_no_run_has(tmp_path, line):
    (tmp_path / "run.yaml").write_text(line)
    with pytest.raises(ConfigError, match=r"run\.yaml"):
        trained_with(tmp_path)


def test_what_run_yaml_does_not_say_is_the_default(tmp_path):
    (tmp_path / "run.yaml").write_text("quantization:\n  method: 8bit\ndata: {nothing: like it}\n")
    config = trained_with(tmp_path)
    assert (config.quantization.method, config.train.use_peft) == ("8bit", True)
    assert config.quantization.quant_type == "nf4"


def test_a_template_that_refuses_the_prompt():
    with pytest.raises(ConfigError, match=r"with --system\.\n  got: no system role"):
        prompt_ids(build_tokenizer("gemma"), "Hi", system="Be brief")
    tokenizer = build_tokenizer("chatml")
    tokenizer.chat_template = "{{ 1 / 0 }}"
    with pytest.raises(ConfigError, match=r"--prompt: the chat template refuses it\.\n"):
        prompt_ids(tokenizer, "Hi", system=None)


def test_a_prompt_longer_than_the_model(model_folder):
    with pytest.raises(ConfigError, match=r"too long for this model(.|\n)*fewer than 256"):
        ask(model_name=str(model_folder), prompt="word " * 300)


def test_an_answer_ends_where_the_positions_of_the_model_do(model_folder, caplog):
    config = GenerateConfig(max_new_tokens=100)
    with caplog.at_level("INFO", logger="ftrecipes"):
        assert leave_room(config, prompt_length=200, limit=256).max_new_tokens == 56
    assert "max_new_tokens is 56" in caplog.text
    for limit in (None, 300):
        assert leave_room(config, prompt_length=200, limit=limit) == config
    ask(model_name=str(model_folder), prompt="a b " * 40, max_new_tokens=1000)


def test_next_to_no_temperature_is_none(model_folder):
    """Logits divided by it would be infinite."""
    cold, none = (ask(model_name=str(model_folder), temperature=t) for t in (1e-40, 0))
    assert cold == none


def test_ids_that_the_base_has_no_embedding_for(tmp_path):
    tokenizer = build_tokenizer("chatml")
    tokenizer.add_tokens(["<new>"])
    base = tiny_models.save_folder(
        "llama", tmp_path / "base", tokenizer=tokenizer, vocab_size=len(tokenizer) - 1
    )
    with pytest.raises(ModelError, match=f"token id {len(tokenizer) - 1}"):
        ask(model_name=str(base), prompt="Hello <new>")
