"""Two small blocks to checkpoint, and what must come of them."""

import copy

import torch
from torch import Tensor, nn

from ftrecipes.model.module_names import canonical_name
from ftrecipes.parallel.recompute import Contexts, recompute

B, T, D, WIDE = 2, 3, 8, 24


class Block(nn.Module):
    """Two products; what is between them is one of the functions below."""

    def __init__(self, between, width: int = WIDE) -> None:
        super().__init__()
        self.between = between
        self.up, self.down = nn.Linear(D, width, bias=False), nn.Linear(width, D)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.between(self.up(x)))


class Stack(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([block, copy.deepcopy(block)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def stack(between, *, width: int = WIDE) -> Stack:
    torch.manual_seed(0)
    return Stack(Block(between, width))


def gradients(model: nn.Module, contexts: Contexts | None = None) -> dict[str, Tensor]:
    """Of one step of a stack, checkpointed with `contexts`."""
    if contexts is not None:
        recompute(model, list(model.blocks), contexts=contexts)
    torch.manual_seed(1)
    model(torch.randn(B, T, D)).square().sum().backward()
    return {canonical_name(name): parameter.grad for name, parameter in model.named_parameters()}


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in expected if not found[name].equal(expected[name])] == []
