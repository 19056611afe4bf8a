"""Activation checkpointing: what modules compute is computed again in the backward, not kept."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper
from torch.utils.checkpoint import checkpoint, noop_context_fn
from transformers import Cache, PreTrainedModel

from ftrecipes.config.errors import ModelError

# Makes the two contexts that a module's forward and its second forward run in.
Contexts = Callable[[], tuple[AbstractContextManager, AbstractContextManager]]


class Recomputed(ActivationWrapper):
    """A module of which only the inputs outlive its forward, where gradients are on.

    Its name, and those of its parameters, are those of the module (model/module_names.py).
    `contexts` are entered around the two forwards; `keeping` around the keeping of the inputs.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        contexts: Contexts = noop_context_fn,
        keeping: Callable[[], AbstractContextManager] = nullcontext,
    ) -> None:
        super().__init__(module)
        self._contexts = contexts
        self._keeping = keeping

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own. Raises ModelError for a cache, which would be filled twice."""
        module = self._checkpoint_wrapped_module
        if not torch.is_grad_enabled():
            return module(*args, **kwargs)
        if any(isinstance(value, Cache) for value in (*args, *kwargs.values())):
            raise ModelError(
                f"{type(module).__name__} is computed twice, and was given a cache to fill.\n"
                "  expected: a forward with use_cache=False\n"
                "  do: use --activation_checkpointing none, and report this model"
            )
        # torch 2.13 keeps positional tensors only, and restores the random state of their devices
        # only: a block that calls its attention by keywords would draw other dropout masks.
        names = [name for name, value in kwargs.items() if isinstance(value, Tensor)]
        others = {name: value for name, value in kwargs.items() if name not in names}

        def compute(*tensors: Any) -> Any:
            named = dict(zip(names, tensors[len(args) :], strict=True))
            return module(*tensors[: len(args)], **named, **others)

        with self._keeping():
            return checkpoint(
                compute,
                *args,
                *(kwargs[name] for name in names),
                use_reentrant=False,
                preserve_rng_state=True,
                context_fn=self._contexts,
            )


def recompute(
    model: nn.Module,
    modules: Iterable[nn.Module],
    *,
    contexts: Contexts = noop_context_fn,
    keeping: Callable[[], AbstractContextManager] = nullcontext,
) -> None:
    """Put a `Recomputed` in every place of each module, so that only its inputs outlive its forward.

    Call it after adapters are added and before units are looked for: a unit is gathered outside of
    its wrapper. The backward draws the same random numbers as the forward, and forwards must be
    told to use no cache, which a second one would fill twice. Each rank for itself. Raises
    ModelError where transformers' own gradient checkpointing is on, with which every block would
    be computed three times.
    """
    own = [m for m in model.modules() if isinstance(m, PreTrainedModel)]
    if any(part.is_activation_checkpointing for part in own):
        raise ModelError(
            f"{type(model).__name__} has transformers' own gradient checkpointing on.\n"
            "  expected: one kind of it, or every block is computed three times\n"
            "  do: call activation_checkpointing_disable() on the model, or use "
            "--activation_checkpointing none"
        )
    wrappers = {
        module: Recomputed(module, contexts=contexts, keeping=keeping) for module in modules
    }
    places = [  # a module that is used at several depths has several
        (path, wrappers[module])
        for path, module in model.named_modules(remove_duplicate=False)
        if module in wrappers
    ]
    for path, wrapper in places:
        model.set_submodule(path, wrapper)


def without_wrapper(module: nn.Module) -> nn.Module:
    """The module inside a wrapper of `recompute`; any other module itself."""
    return module._checkpoint_wrapped_module if isinstance(module, Recomputed) else module
