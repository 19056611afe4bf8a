"""A checkpointed module is called as it would be without: any arguments, any result, any mode."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache

from ftrecipes.config.errors import ConfigError, ModelError
from ftrecipes.parallel.recompute import Recomputed, recompute, refuse_two_kinds
from tests import tiny_models


@dataclass
class Result:
    """What some modules return."""

    hidden: Tensor
    notes: list[Any]


class Module(nn.Module):
    """Computes with all tensors it is given; `given`: names and types of what each call brought."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.3, -0.7, 1.1]))
        self.given: list[tuple] = []

    def forward(self, *args: Any, **kwargs: Any) -> Result:
        self.given.append(tuple((name, type(value)) for name, value in kwargs.items()))
        total = torch.zeros(3)
        for value in (*args, *kwargs.values()):
            parts = value if isinstance(value, tuple) else (value,)
            for part in parts:
                total = total + (part if isinstance(part, Tensor) else 0)
        hidden = nn.functional.dropout(torch.tanh(total * self.weight), 0.5).exp()
        return Result(hidden, [len(args), kwargs.get("flag")])


def tensor(value: float) -> Tensor:
    return torch.tensor([1.0, 2.0, 3.0]).mul(value).requires_grad_()


def calls() -> dict[str, tuple[tuple, dict]]:
    """Ways to call a module, made anew."""
    table = (tensor(0.4), torch.ones(3))
    return {
        "by position": ((tensor(0.1), tensor(0.2)), {}),
        "by keyword only": ((), {"hidden": tensor(0.1), "mask": torch.ones(3)}),
        "mixed": ((tensor(0.1), None), {"b": tensor(0.3), "flag": True, "a": tensor(0.2)}),
        "tuples of tensors": ((table,), {"tables": table, "z": tensor(0.1), "flag": "x"}),
        "nothing": ((), {}),
        "no tensor": ((None, 3), {"flag": False}),
    }


def run(module: nn.Module, call: str) -> tuple[Result, list[Tensor | None]]:
    """The result, and the gradients of what went in and of the weight."""
    args, kwargs = calls()[call]
    torch.manual_seed(0)
    result = module(*args, **kwargs)
    result.hidden.sum().backward()
    leaves = [each for value in (*args, *kwargs.values()) for each in _tensors(value)]
    return result, [each.grad for each in (*leaves, *module.parameters())]


def _tensors(value: Any) -> list[Tensor]:
    values = value if isinstance(value, tuple) else (value,)
    return [each for each in values if isinstance(each, Tensor)]


@pytest.mark.parametrize("call", calls())
def test_arguments_results_and_random_numbers_are_the_modules_own(call):
    expected, gradients = run(Module(), call)
    module = Module()
    found, ours = run(Recomputed(module), call)
    assert found.hidden.equal(expected.hidden)
    assert found.notes == expected.notes
    assert type(found) is Result
    assert len(ours) == len(gradients)
    assert all(a is b or a.equal(b) for a, b in zip(ours, gradients, strict=True))
    first, second = module.given
    assert first == second == tuple((k, type(v)) for k, v in calls()[call][1].items())


def test_the_second_forward_has_the_precision_of_the_first():
    """The backward itself runs outside of autocast."""

    class Product(Module):
        def forward(self, hidden: Tensor, *, matrix: Tensor) -> Result:
            product = matrix @ (hidden * self.weight)
            self.given.append(product.dtype)
            return Result(product.exp() @ matrix, [])

    def gradient(wrap: type) -> Tensor:
        module = Product()
        matrix = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
        with torch.autocast("cpu", torch.bfloat16):
            result = wrap(module)(tensor(0.1), matrix=matrix)
        result.hidden.float().sum().backward()
        assert set(module.given) == {torch.bfloat16}
        return module.weight.grad

    assert gradient(Recomputed).equal(gradient(lambda module: module))


@pytest.mark.parametrize("place", ["by position", "by keyword"])
def test_a_cache_is_refused_with_gradients_and_passed_on_without(place):
    module, cache = Module(), DynamicCache()
    args, kwargs = ((cache,), {}) if place == "by position" else ((), {"past": cache})
    with pytest.raises(ModelError, match="Module is computed twice, and was given a cache"):
        Recomputed(module)(tensor(0.1), *args, **kwargs)
    assert module.given == []
    with torch.no_grad():
        Recomputed(module)(tensor(0.1), *args, **kwargs)
    assert module.given == [tuple((name, DynamicCache) for name in kwargs)]


def test_without_gradients_only_the_module_runs():
    """No contexts are made, no random state is stored: the module is called once, as it is."""

    def never() -> None:
        raise AssertionError("entered")

    module = Module()
    wrapper = Recomputed(module, contexts=never, keeping=never)
    with torch.no_grad():
        result = wrapper(tensor(0.1), flag=1)
    assert not result.hidden.requires_grad
    assert len(module.given) == 1


class Failing(Module):
    """Fails in the call of the given number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, *args: Any, **kwargs: Any) -> Result:
        if len(self.given) + 1 == self.number:
            self.given.append(())
            raise ZeroDivisionError
        return super().forward(*args, **kwargs)


@pytest.mark.parametrize("number", [1, 2])
def test_an_exception_of_either_forward_comes_out_and_the_next_call_is_right(number):
    """That of the second one comes out of the backward."""
    module = Failing(number)
    wrapper = Recomputed(module)
    with pytest.raises(ZeroDivisionError):
        run(wrapper, "mixed")
    assert len(module.given) == number
    _, found = run(wrapper, "mixed")
    _, expected = run(Module(), "mixed")
    assert all(a.equal(b) for a, b in zip(found, expected, strict=True))


def hooked(model: nn.Module) -> None:
    """What custom code does: a function of its own for one layer."""
    layer = model.model.layers[1]
    layer._gradient_checkpointing_func = lambda fn, *args: checkpoint(fn, *args)
    layer.gradient_checkpointing = True


def wrapped(model: nn.Module) -> None:
    """What accelerate does."""
    model.model.layers[1] = checkpoint_wrapper(model.model.layers[1])


OTHER_KINDS = {
    "a call": lambda model: model.activation_checkpointing_enable(),
    "a custom hook": hooked,
    "a wrapper": wrapped,
    "a config that only the code of the model reads": lambda model: setattr(
        model.config, "gradient_checkpointing", True
    ),
}


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_another_kind_of_checkpointing_is_refused(kind):
    model = tiny_models.build("llama")
    refuse_two_kinds(model)
    OTHER_KINDS[kind](model)
    with pytest.raises(ConfigError) as caught:
        recompute(model, [model.model.layers[0]])
    text = str(caught.value)
    assert "--activation_checkpointing and the gradient checkpointing of transformers" in text
    assert "can not both be on" in text
    assert "with --enable_fsdp that is --activation_checkpointing" in text
    assert not isinstance(model.model.layers[0], Recomputed)


def test_a_config_that_asks_for_it_is_refused():
    """transformers switches it on while it builds the model, and takes it out of the config."""
    model = tiny_models.build("llama", gradient_checkpointing=True)
    assert "gradient_checkpointing" not in vars(model.config)
    with pytest.raises(ConfigError, match="its own switched on"):
        refuse_two_kinds(model)
    model.activation_checkpointing_disable()
    refuse_two_kinds(model)
