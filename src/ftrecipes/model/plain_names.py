"""What a model's parameters are called in the files, when adapters and wrappers renamed them."""

from dataclasses import dataclass

from peft import PeftModel
from torch import Tensor, nn

from ftrecipes.model.module_names import canonical_name

_PEFT = "base_model.model."
_BASE = "base_layer"  # PEFT's name of a layer that it has put another around


@dataclass(frozen=True, eq=False)
class Place:
    """A parameter by its first name in the model; those tied to it have the same place."""

    name: str
    parameter: Tensor


def plain_name(model: nn.Module, name: str) -> str:
    """The name that a parameter or buffer of `model` has in the plain model."""
    name = canonical_name(name)
    if isinstance(model, PeftModel):
        name = name.removeprefix(_PEFT)
    return ".".join(part for part in name.split(".") if part != _BASE)


def parameter_places(model: nn.Module) -> dict[str, Place]:
    """Plain name -> place of every parameter, those of adapters among them."""
    places: dict[Tensor, Place] = {}
    found = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        place = places.setdefault(parameter, Place(name, parameter))
        found[plain_name(model, name)] = place
    return found
