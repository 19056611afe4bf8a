"""Parameters that are trained although the loss does not depend on them: they get no gradient."""

import re

import torch
from torch import Tensor, nn

from ftrecipes.model.adapters import trainable_parameters
from ftrecipes.model.forward import IGNORED, LossRoute
from ftrecipes.parallel.engine import Engine
from ftrecipes.runtime import log

_NAMED = 4  # kinds of parameters that the warning names
_LAYER = re.compile(r"\.\d+(?=\.)")
_OF_PEFT = re.compile(r"^base_model\.model\.|\.default\b")


def warn_of_unreached(
    model: nn.Module, route: LossRoute, samples: list[Tensor], engine: Engine
) -> None:
    """Warn of parameters that would be trained and saved, and stay as they are.

    Parts for images or sound, an attention to another model's states, layers whose weights the
    model reads past their adapters: none fails, and none shows in the loss. One forward and
    backward of the rows, int64 [T] each, by all ranks; the gradients are dropped.
    """
    trained = dict(trainable_parameters(model))  # now: a forward puts gathered ones in their places
    ids = torch.cat(samples)
    labels = torch.cat([row.index_fill(0, row.new_zeros(1), IGNORED) for row in samples])
    engine.accumulate(is_last=True)
    with torch.enable_grad():
        loss = route.loss_sum(model, ids, labels, tuple(len(row) for row in samples))
    if trained:
        with torch.autocast(ids.device.type, enabled=False):  # it is for forwards only
            loss.backward()
    lost = [name for name, parameter in trained.items() if parameter.grad is None]
    for parameter in trained.values():
        parameter.grad = None
    if lost:
        kinds = sorted({_LAYER.sub(".*", _OF_PEFT.sub("", name)) for name in lost})
        more = f" and {len(kinds) - _NAMED} more kinds" if kinds[_NAMED:] else ""
        log.warning(
            f"{len(lost)} of {len(trained)} trained parameters have no part in the loss of two rows"
            f" and stay as they are, unless others reach them: {', '.join(kinds[:_NAMED])}{more}"
        )
