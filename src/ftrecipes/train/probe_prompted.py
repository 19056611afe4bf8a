"""The route of a model with a learned prompt or prefix: padded rows through PEFT's own forward."""

from dataclasses import replace

import torch
from peft import PeftModel
from torch import Tensor

from ftrecipes.config.errors import ModelError
from ftrecipes.model.forward import LossRoute, padded_inputs
from ftrecipes.train.trial import Refused, Tolerance, refusing, relative_error


def choose_prompted(
    model: PeftModel, full: LossRoute, *, samples: list[Tensor], tolerance: Tolerance
) -> LossRoute:
    """The route, proved on two rows of unlike length; call it without gradients in eval mode.

    `full` is a padded route with all logits.

    Raises ModelError when the method does not work with this model: its forward fails, a row padded
    beside another differs from the row alone, or the output depends on later tokens.
    """
    full = replace(
        full,
        prompted=True,
        reason="rows are padded, because each has virtual tokens before it; logits are made at "
        "every position",
    )
    try:
        with refusing():
            _check(model, full, samples, tolerance)
    except Refused as refusal:
        method = model.active_peft_config.peft_type.value
        raise ModelError(
            f"{method} does not work with {type(model.get_base_model()).__name__}.\n"
            f"  got: {refusal}\n  expected: a model that takes virtual tokens before each row\n"
            "  do: use another method, such as --peft_method lora"
        ) from refusal
    lean = replace(
        full,
        head="own",
        reason="rows are padded, because each has virtual tokens before it; logits are made at "
        "once, in columns where labels count",
    )
    inputs = padded_inputs(samples[0], (len(samples[0]),))
    try:
        with refusing():
            some = inputs.slots[1::2]
            expected = full.states(model, inputs, some)
            error = relative_error(lean.states(model, inputs, some), expected)
    except Refused:
        return full
    return lean if error.quantile(tolerance.quantile) < tolerance.head else full


def _check(model: PeftModel, route: LossRoute, samples: list[Tensor], tolerance: Tolerance) -> None:
    """Raise Refused unless padding and later tokens change nothing."""
    alone = [_logits(model, route, [row]) for row in samples]
    together = _logits(model, route, samples)
    error = relative_error(together, torch.cat(alone)).quantile(tolerance.quantile)
    if error > tolerance.body:
        raise Refused(f"a row padded beside another differs by {error:.2%} from the row alone")
    row = samples[0].clone()
    row[-1] = row.min() if row[-1] != row.min() else row.max()
    changed = _logits(model, route, [row])[:-1]
    if relative_error(changed, alone[0][:-1]).quantile(tolerance.quantile) > tolerance.body:
        raise Refused("the output at a position depends on later tokens")


def _logits(model: PeftModel, route: LossRoute, rows: list[Tensor]) -> Tensor:
    """Logits of the rows, padded together, at all their positions."""
    lengths = tuple(len(row) for row in rows)
    positions = torch.arange(sum(lengths), device=rows[0].device)
    return route.states(model, padded_inputs(torch.cat(rows), lengths), positions)
