"""Activation checkpointing: what modules compute is computed again in the backward, not kept."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    ActivationWrapper,
    CheckpointWrapper,
)
from torch.utils.checkpoint import checkpoint, noop_context_fn
from transformers import Cache, PreTrainedModel

from ftrecipes.config.errors import ConfigError, ModelError
from ftrecipes.parallel.op_counts import OpCounts

# Makes the two contexts that a module's forward and its second forward run in.
Contexts = Callable[[], tuple[AbstractContextManager, AbstractContextManager]]


class Recomputed(ActivationWrapper):
    """A module of which only the inputs outlive its forward, where gradients are on.

    Its name, and those of its parameters, are those of the module (model/module_names.py).
    `contexts` are entered around the two forwards; `keeping` around the keeping of the inputs.
    `counts` is what `contexts` count in, if they do.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        contexts: Contexts = noop_context_fn,
        keeping: Callable[[], AbstractContextManager] = nullcontext,
        counts: OpCounts | None = None,
    ) -> None:
        super().__init__(module)
        self.counts = counts
        self._contexts = contexts
        self._keeping = keeping

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own: same arguments, same result, whatever its type.

        Tensors right among the arguments are kept, and must be as they were when the backward
        comes; those inside of tuples are only held. Raises ModelError for a cache, which would be
        filled twice.
        """
        module = self._checkpoint_wrapped_module
        if not torch.is_grad_enabled():
            return module(*args, **kwargs)
        if any(isinstance(value, Cache) for value in (*args, *kwargs.values())):
            raise ModelError(
                f"{type(module).__name__} is computed twice, and was given a cache to fill.\n"
                "  expected: a forward with use_cache=False\n"
                "  do: use --activation_checkpointing none, and report this model"
            )
        # torch 2.13 keeps tensors that are given by position only, and looks at these only for the
        # devices whose random state and autocast the second forward needs: a block that calls its
        # attention by keywords would draw other dropout masks there. So all go by position.
        count, names = len(args), tuple(kwargs)

        def compute(*values: Any) -> Any:  # holds no argument, which the checkpoint itself keeps
            named = dict(zip(names, values[count:], strict=True))
            return module(*values[:count], **named)

        with self._keeping():
            return checkpoint(
                compute,
                *args,
                *kwargs.values(),
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
    counts: OpCounts | None = None,
) -> None:
    """Put a `Recomputed` in every place of each module: only its inputs outlive its forward.

    Call it after adapters are added and before units are looked for: a unit is gathered outside of
    its wrapper. The backward draws the same random numbers as the forward, and forwards must be
    told to use no cache, which a second one would fill twice. Each rank for itself. Raises
    ConfigError where something else recomputes already (`refuse_two_kinds`).
    """
    refuse_two_kinds(model)
    how = {"contexts": contexts, "keeping": keeping, "counts": counts}
    wrappers = {module: Recomputed(module, **how) for module in modules}
    places = [  # a module that is used at several depths has several
        (path, wrappers[module])
        for path, module in model.named_modules(remove_duplicate=False)
        if module in wrappers
    ]
    for path, wrapper in places:
        model.set_submodule(path, wrapper)


def refuse_two_kinds(model: nn.Module) -> None:
    """Raise ConfigError where a model, with or without weights, recomputes by other means.

    Both kinds at once give right gradients, and compute every block three times.
    """
    found = other_kind(model)
    if found is not None:
        raise ConfigError(
            "--activation_checkpointing and the gradient checkpointing of transformers can not both"
            " be on: every block would be computed three times.\n"
            f"  got: {type(model).__name__} with {found}\n"
            "  expected: one of the two; with --enable_fsdp that is --activation_checkpointing\n"
            "  do: switch the other one off where the model comes from (take "
            "gradient_checkpointing out of its config.json), or use --activation_checkpointing "
            "none"
        )


def other_kind(model: nn.Module) -> str | None:
    """What of a model says that it recomputes by other means.

    transformers 5.24 acts on `gradient_checkpointing` of a config while it builds a model, and
    takes it out of the config; what is left of it may be read by code that came with the model. A
    function of one's own instead of torch's (`_gradient_checkpointing_func`) runs only where the
    module's `gradient_checkpointing` is true, which is looked for here.
    """
    for name, module in model.named_modules():
        if isinstance(module, CheckpointWrapper):
            return f"torch's CheckpointWrapper at {name}"
        if isinstance(module, PreTrainedModel):
            if module.is_activation_checkpointing:
                return "its own switched on (by its config, its code or a call of ..._enable())"
            if vars(module.config).get("gradient_checkpointing"):
                return '"gradient_checkpointing": true in its config'
    return None


def op_counts(model: nn.Module) -> OpCounts | None:
    """What the model's recomputes are counted in; None where they are not."""
    return next((m.counts for m in model.modules() if isinstance(m, Recomputed)), None)


def without_wrapper(module: nn.Module) -> nn.Module:
    """The module inside a wrapper of `recompute`; any other module itself."""
    return module._checkpoint_wrapped_module if isinstance(module, Recomputed) else module
