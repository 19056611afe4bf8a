"""First values of adapters: PEFT's distributions, drawn by name."""

import warnings
from dataclasses import replace

import peft
import pytest
import torch
from peft.tuners.lora import LoraLayer
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from ftrecipes.config.schema import QuantizationConfig, RunConfig
from ftrecipes.model.adapters import add_adapters, canonical_name, trainable_parameters
from ftrecipes.model.initial import initialise_adapter
from ftrecipes.model.resolve import resolve_source
from ftrecipes.model.skeleton import build_skeleton
from tests import tiny_models
from tests.model.adapting import adapt, method_config, moved
from tests.model.loading import FLOAT32, load

EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in trainable_parameters(model)}


def initialised(method="lora", family="llama", *, seed=1, **settings) -> dict[str, torch.Tensor]:
    """Values of a new adapter, whatever was drawn before."""
    torch.manual_seed(torch.seed())
    model = adapt(method, family, **settings)
    initialise_adapter(model, seed=seed)
    return values(model)


def wide(init, **settings) -> tuple[peft.PeftModel, RunConfig]:
    """A layer wide enough for statistics: a rank of 16 on 2000 inputs, 3000 outputs."""
    config = LlamaConfig(
        hidden_size=2000, intermediate_size=3000, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=500,
    )  # fmt: skip
    targets = {"target_modules": ["up_proj"]} | settings
    run = method_config("lora", r=16, init_lora_weights=init, **targets)
    return add_adapters(LlamaForCausalLM(config), run, FLOAT32), run


@pytest.mark.parametrize("init", ["true", "gaussian"])
def test_distribution_is_that_of_peft(init):
    """32,000 draws: means within 5 standard errors, standard deviations and bounds within 1 %."""
    model, _ = wide(init)
    theirs = values(model)
    initialise_adapter(model, seed=0)
    ours = values(model)
    (a,) = [name for name in ours if "lora_A" in name]
    (b,) = [name for name in ours if "lora_B" in name]
    assert not torch.equal(ours[a], theirs[a])
    assert ours[a].std().item() == pytest.approx(theirs[a].std().item(), rel=0.02)
    assert abs(ours[a].mean()) < 5 * ours[a].std() / 32000**0.5
    assert not ours[b].any()
    if init == "true":
        bound = theirs[a].abs().max().item()
        assert ours[a].abs().max().item() == pytest.approx(bound, rel=0.01)
    else:
        assert ours[a].std().item() == pytest.approx(1 / 16, rel=0.02)


def test_orthogonal_start():
    """PEFT's property: neither factor is zero and their product is, up to float32's rounding."""
    model, _ = wide("orthogonal")
    theirs = values(model)
    initialise_adapter(model, seed=0)
    ours = values(model)
    for name in ours:
        assert ours[name].std().item() == pytest.approx(theirs[name].std().item(), rel=0.2)
    for a, b in (theirs.values(), ours.values()):
        product = b @ a
        assert product.abs().max() < 1e-5 * b.abs().max() * a.abs().max() * 16
    assert torch.linalg.matrix_rank(ours[next(iter(ours))]) == 8


def test_embeddings_start_as_peft_starts_them():
    """There A is zero and B is normal."""
    model, _ = wide("true", target_modules=["embed_tokens"])
    initialise_adapter(model, seed=0)
    a, b = values(model).values()
    assert (a.shape, b.shape) == ((16, 500), (2000, 16))
    assert not a.any()
    assert b.std().item() == pytest.approx(1, rel=0.02)
    assert abs(b.mean()) < 0.03


def test_bias_of_an_adapter_starts_at_zero():
    settings = peft.LoraConfig(r=4, target_modules=["q_proj"], lora_bias=True)
    model = peft.get_peft_model(tiny_models.build("llama"), settings)
    for name, parameter in model.named_parameters():
        if name.endswith("lora_B.default.bias"):
            parameter.data.fill_(7)
    initialise_adapter(model, seed=0)
    biases = [p for name, p in model.named_parameters() if name.endswith("lora_B.default.bias")]
    assert len(biases) == 2
    assert not any(bias.any() for bias in biases)


def test_ia3_starts_at_one():
    model = moved(adapt("ia3"))
    initialise_adapter(model, seed=0)
    assert all((value == 1).all() for value in values(model).values())


def test_values_follow_from_seed_and_name():
    first, again = (initialised(target_modules=["all-linear"]) for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    fewer = initialised(target_modules=["v_proj", "q_proj"])
    assert fewer.keys() < first.keys()
    assert all(torch.equal(first[name], fewer[name]) for name in fewer)
    drawn = [value for name, value in first.items() if "lora_A" in name]
    assert len(drawn) == 14
    assert len({value.flatten()[0].item() for value in drawn}) == 14
    other = initialised(seed=2, target_modules=["q_proj"])
    assert not any(torch.equal(first[n], other[n]) for n in other if "lora_A" in n)


def test_adapters_of_experts():
    """Two parameters of one module are wrapped in each other, so that names depend on both."""

    def drawn(*parameters: str) -> set[float]:
        """First number of every A, in units of its bound."""
        found = initialised(
            family="mixtral", target_modules=["q_proj"], target_parameters=list(parameters)
        )
        assert not any(value.any() for name, value in found.items() if "lora_B" in name)
        factors = [value for name, value in found.items() if "lora_A" in name]
        return {round((a.flatten()[0] * a.shape[1] ** 0.5).item(), 4) for a in factors}

    both = drawn(*EXPERTS)
    assert len(both) == 2 * 3
    for parameter in EXPERTS:
        assert len(drawn(parameter)) == 2 * 2
        assert drawn(parameter) < both


@pytest.mark.parametrize("method", ["prefix", "prompt", "llama_adapter"])
def test_other_methods_keep_their_own_start(method):
    model = adapt(method)
    before = values(model)
    initialise_adapter(model, seed=3)
    assert all(torch.equal(before[name], value) for name, value in values(model).items())


@pytest.mark.parametrize(
    "settings",
    [{"init_lora_weights": "pissa"}, {"init_lora_weights": "olora"}, {"use_dora": True}],
    ids=str,
)
def test_starts_from_whole_weights_are_left(settings):
    model = adapt("lora", **settings)
    before = values(model)
    initialise_adapter(model, seed=3)
    assert all(torch.equal(before[name], value) for name, value in values(model).items())


@pytest.mark.parametrize("quantization", [{}, {"method": "4bit"}], ids=["plain", "4bit"])
@pytest.mark.parametrize("trainable", ["float32", "bfloat16"])
def test_a_skeleton_gets_the_values_that_a_loaded_model_gets(quantization, trainable, tmp_path):
    """Through `set_value`: name, whole value, dtype of the parameter; of everything trained."""
    folder = tiny_models.save_folder("mixtral", tmp_path, hidden_size=64, intermediate_size=128)
    precision = replace(FLOAT32, trainable=trainable)
    config = method_config("lora", r=2, target_modules=["q_proj"], target_parameters=EXPERTS)
    config = replace(config, quantization=QuantizationConfig(**quantization))
    loaded = add_adapters(load(folder, config.quantization), config, precision)
    initialise_adapter(loaded, seed=5)
    source = resolve_source(str(folder), None, trust_remote_code=False)
    with torch.device("meta"):
        skeleton = add_adapters(build_skeleton(source, config, precision), config, precision)
    given = {}
    initialise_adapter(skeleton, seed=5, set_value=given.__setitem__)
    expected = values(loaded)
    assert given.keys() == expected.keys()
    for name, value in given.items():
        assert (value.dtype, value.device.type) == (getattr(torch, trainable), "cpu")
        assert torch.equal(value, expected[name]), name
    assert all(p.is_meta for p in skeleton.parameters())


@pytest.mark.parametrize(
    ("method", "settings"),
    [("lora", {"target_modules": ["q_proj", "embed_tokens"], "bias": "all"}), ("ia3", {})],
)
def test_an_adapter_to_go_on_from_is_read_by_name(method, settings, tmp_path):
    """As saved by PEFT; a skeleton gets the same values as a loaded model, biases too."""
    base = tiny_models.save_folder("qwen2", tmp_path / "base")
    new = method_config(method, **settings)
    trained = moved(add_adapters(load(base), new, FLOAT32))
    trained.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    config = method_config(method, folder=tmp_path / "adapter")
    loaded = add_adapters(load(base), config, FLOAT32)
    initialise_adapter(loaded, seed=5, folder=str(tmp_path / "adapter"))
    source = resolve_source(str(base), None, trust_remote_code=False)
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # nothing is said of weights that are not read
        skeleton = add_adapters(build_skeleton(source, config, FLOAT32), config, FLOAT32)
    given = {}
    initialise_adapter(
        skeleton, seed=5, folder=str(tmp_path / "adapter"), set_value=given.__setitem__
    )
    expected = values(trained)
    assert given.keys() == values(loaded).keys() == expected.keys()
    assert len(given) > 5
    for name, value in values(loaded).items():
        assert torch.equal(value, expected[name])
        assert torch.equal(given[name], expected[name])


def test_names_are_canonical():
    """What wraps a recomputed block is no part of a name, and changes no value."""
    plain = adapt("lora", target_modules=["q_proj"])
    wrapped = adapt("lora", target_modules=["q_proj"])
    blocks = wrapped.base_model.model.model.layers
    for index, block in enumerate(blocks):
        blocks[index] = nn.ModuleDict({"_checkpoint_wrapped_module": block})
    for model in (plain, wrapped):
        initialise_adapter(model, seed=5)
    found = {canonical_name(name): value for name, value in values(wrapped).items()}
    assert all(torch.equal(found[name], value) for name, value in values(plain).items())
    assert sum(isinstance(module, LoraLayer) for module in wrapped.modules()) == 2
