"""What all-linear takes in models that are more than a stack of linear layers."""

import pytest

from ftrecipes.config.errors import ModelError
from ftrecipes.config.schema import LoraConfig, RunConfig
from ftrecipes.model.adapters import add_adapters
from tests import tiny_families
from tests.model.adapting import FLOAT32
from tests.model.test_adapters import PROJECTIONS, adapt, adapted_modules


@pytest.mark.parametrize("layers", [[], [0]])
def test_all_linear_leaves_out_what_sees(layers):
    """Rows of text never reach it: its adapters would stay as they are, and be saved."""
    config = RunConfig(lora=LoraConfig(r=4, layers_to_transform=layers))
    model = add_adapters(tiny_families.build("gemma3"), config, FLOAT32)
    modules = adapted_modules(model)
    assert len(modules) == (1 if layers else 4) * len(PROJECTIONS)
    assert all(name.startswith("model.language_model.layers.") for name in modules)


@pytest.mark.parametrize(
    ("family", "settings", "hint"),
    [
        ("mixtral", {"lora_dropout": 0.1}, "name linear layers in --lora.target_modules"),
        ("mixtral", {"use_dora": True}, "name linear layers in --lora.target_modules"),
        ("mixtral", {"init_lora_weights": "pissa"}, "name others in --lora.target_modules"),
    ],
)
def test_what_experts_can_not_do_says_how_to_leave_them_out(family, settings, hint):
    with pytest.raises(ModelError, match=hint):
        adapt(family, **settings)
    adapt(family, target_modules=["q_proj"], **settings)
