"""Which route a model's rows may take: tried on two short rows of the data before the first step.

Nothing about a model is assumed. Rows are laid flat only if transformers would have built the very
masks that row attention keeps to, our function runs once in each layer, and the flat result equals
each row alone while a deliberate leak changes it. Our own head is used only if it repeats the
model's own logits.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ftrecipes.config.errors import ModelError
from ftrecipes.data.rows import TokenRows
from ftrecipes.model.attention import ROW_ATTENTION, RowLayout
from ftrecipes.model.forward import (
    Inputs,
    LossRoute,
    causal_lm,
    decoder_of,
    flat_inputs,
    is_prompted,
    padded_inputs,
)
from ftrecipes.model.mask_rules import RECORDED_ATTENTION, Recording, check_calls
from ftrecipes.parallel.engine import Engine, OneProcess
from ftrecipes.train.evaluate import evaluation_mode
from ftrecipes.train.probe_prompted import choose_prompted
from ftrecipes.train.trial import (
    Refused,
    Tolerance,
    refusing,
    relative_error,
    running,
    tolerance_of,
    training_without_trace,
)
from ftrecipes.train.unreached import warn_of_unreached

_SAMPLE_POSITIONS = 96  # of the two rows together

# Names in configs for what some models do to the head's output (Gemma, Cohere, Granite, xLSTM ...).
# Whether they multiply or divide is found by comparing with the model's own logits.
_SCALES = (
    "logit_scale",
    "logits_scaling",
    "logits_mup_width_multiplier",
    "lm_head_multiplier",
    "output_multiplier",
)
_SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")


def choose_route(
    model: nn.Module, rows: TokenRows, *, device: torch.device, engine: Engine | None = None
) -> LossRoute:
    """Try the routes on two short rows and return the leanest that is right for this model.

    Every rank calls it, for the same rows; `engine` is what runs a model in shares.

    Leaves the model's attention implementation as the route needs it, and train or eval mode as it
    was. Call it under the same autocast as the training. Raises ModelError when the model looks
    ahead (its output at a position depends on later tokens), when padding changes what it makes of
    a row and it can not go without, and when its own forward fails.
    """
    lm = causal_lm(model)
    engine = engine or OneProcess()
    full = LossRoute(
        flat=False,
        head="full",
        reason="logits are made at every position",
        run=engine.run,
        run_head=engine.run_head,
    )
    samples = [torch.from_numpy(ids).to(device) for ids in _sample_rows(rows)]
    tolerance = tolerance_of(lm, device)
    decoder = decoder_of(lm)
    if is_prompted(model):
        with evaluation_mode(model), torch.no_grad():
            return choose_prompted(model, full, samples=samples, tolerance=tolerance)
    own_attention = decoder.config._attn_implementation
    with evaluation_mode(model), torch.no_grad():
        with running(lm):
            route = _choose_head(lm, full, row=samples[0], tolerance=tolerance)
            _check_causal(lm, route, row=samples[0], tolerance=tolerance)
        try:
            with refusing():
                _check_flat(lm, route, samples=samples, tolerance=tolerance)
            way = "rows are laid flat, each attends alone"
            route = replace(route, flat=True, reason=f"{way}; {route.reason}")
        except Refused as refusal:
            decoder.set_attn_implementation(own_attention)
            with running(lm):
                _check_padded(lm, route, samples=samples, tolerance=tolerance)
            way = f"rows are padded, because {refusal}"
            route = replace(route, reason=f"{way}; {route.reason}")
    # some forwards are made otherwise in train mode (Reformer takes multiples of 64 positions only)
    with running(lm), training_without_trace(model, device):
        warn_of_unreached(model, route, samples, engine)
    engine.settle()
    return route


def _together(lm: PreTrainedModel, route: LossRoute, samples: list[Tensor]) -> Tensor:
    """States of all rows in one micro-batch, at every position."""
    ids, lengths = torch.cat(samples), tuple(len(row) for row in samples)
    inputs = (flat_inputs if route.flat else padded_inputs)(ids, lengths)
    return route.states(lm, inputs, torch.arange(len(ids), device=ids.device))


def _sample_rows(rows: TokenRows) -> tuple[np.ndarray, np.ndarray]:
    """Two rows of unlike length, int64, of the data's first ids (repeated when there are few)."""
    size = min(max(len(rows.input_ids), 16), _SAMPLE_POSITIONS)
    ids = np.resize(rows.input_ids[:size], size).astype(np.int64)
    return ids[: size // 2 - 1], ids[size // 2 - 1 :]


def _choose_head(
    lm: PreTrainedModel, full: LossRoute, *, row: Tensor, tolerance: Tolerance
) -> LossRoute:
    """The padded route `full` with the leanest head that repeats the model's own logits."""
    inputs = padded_inputs(row, (len(row),))
    half = inputs.slots[1::2]
    expected = full.states(lm, inputs, inputs.slots)
    candidates = [
        replace(
            full,
            head="chunked",
            scale=scale,
            softcap=softcap,
            reason="logits are made in chunks, where labels count",
        )
        for scale, softcap in _head_outputs(lm)
    ]
    candidates.append(
        replace(full, head="own", reason="logits are made at once, where labels count")
    )
    for route in candidates:
        try:
            error = _head_error(lm, route, inputs=inputs, positions=half, expected=expected[half])
        except Refused:
            continue
        if error.quantile(tolerance.quantile) < tolerance.head:
            return route
    return full


def _head_error(
    lm: PreTrainedModel, route: LossRoute, *, inputs: Inputs, positions: Tensor, expected: Tensor
) -> Tensor:
    """Relative error of the route's logits at `positions`; raises Refused when it fails."""
    with refusing():
        return relative_error(route.logits(lm, route.states(lm, inputs, positions)), expected)


def _head_outputs(lm: PreTrainedModel) -> Iterator[tuple[float, float | None]]:
    """(scale, softcap) of the head's output, what the config names first."""
    settings = lm.config.get_text_config().to_dict()
    scales = [settings[name] for name in _SCALES if settings.get(name)]
    softcaps = [settings[name] for name in _SOFTCAPS if settings.get(name)]
    return product([*scales, *(1 / scale for scale in scales), 1.0], [*softcaps, None])


def _check_causal(
    lm: PreTrainedModel, route: LossRoute, *, row: Tensor, tolerance: Tolerance
) -> None:
    """Raise ModelError when another last token changes the output before it."""
    before = torch.arange(len(row) - 1, device=row.device)
    changed = row.clone()
    changed[-1] = row.min() if row[-1] != row.min() else row.max()
    first, second = (
        route.states(lm, padded_inputs(ids, (len(ids),)), before) for ids in (row, changed)
    )
    if relative_error(second, first).quantile(tolerance.quantile) > tolerance.body:
        raise ModelError(
            f"{type(lm).__name__} looks ahead: its output at a position depends on later tokens.\n"
            "  expected: a causal language model, which predicts each token from those before it\n"
            "  do: choose a decoder model"
        )


def _alone(lm: PreTrainedModel, route: LossRoute, samples: list[Tensor]) -> list[Tensor]:
    """States of each row by itself."""
    inputs = [padded_inputs(row, (len(row),)) for row in samples]
    return [route.states(lm, each, each.slots) for each in inputs]


def _check_padded(
    lm: PreTrainedModel, route: LossRoute, *, samples: list[Tensor], tolerance: Tolerance
) -> None:
    """Raise ModelError unless a row padded beside a longer one gives what it gives alone."""
    expected = torch.cat(_alone(lm, route, samples))
    error = relative_error(_together(lm, route, samples), expected)
    difference = error.quantile(tolerance.quantile).item()
    if difference > tolerance.body:
        raise ModelError(
            f"{type(lm).__name__} makes something else of a row that is padded.\n"
            f"  got: its output differs by {difference:.2%} from that of the row alone\n"
            "  expected: a model that ignores what its attention_mask leaves out\n"
            "  do: choose another model"
        )


def _check_flat(
    lm: PreTrainedModel, route: LossRoute, *, samples: list[Tensor], tolerance: Tolerance
) -> None:
    """Raise Refused unless rows laid flat give what each gives alone; sets row attention."""
    alone = _alone(lm, route, samples)
    decoder = decoder_of(lm)
    decoder.set_attn_implementation(RECORDED_ATTENTION)
    inputs = flat_inputs(samples[0], (len(samples[0]),))
    recording = Recording(inputs.keywords["row_layout"], [])
    route.states(lm, _with_layout(inputs, recording), inputs.slots)
    check_calls(recording.calls, num_layers=decoder.config.get_text_config().num_hidden_layers)

    decoder.set_attn_implementation(ROW_ATTENTION)
    rows, expected = [*samples, *samples], torch.cat([*alone, *alone])
    lengths = tuple(len(row) for row in rows)
    inputs = flat_inputs(torch.cat(rows), lengths)
    one_row = RowLayout.of((sum(lengths),), samples[0].device)
    flat = route.states(lm, inputs, inputs.slots)
    leaking = route.states(lm, _with_layout(inputs, one_row), inputs.slots)
    starts = inputs.keywords["row_layout"].boundaries[1:-1].long()
    error, leak = (
        max(e.quantile(tolerance.quantile), e[starts].quantile(tolerance.quantile)).item()
        for e in (relative_error(flat, expected), relative_error(leaking, expected))
    )
    if error > tolerance.body:
        raise Refused(f"laid flat they differ by {error:.2%} from each row alone")
    if leak < max(tolerance.body, 10 * error):
        raise Refused(f"a leak between them would go unnoticed, it changes {leak:.2%}")


def _with_layout(inputs: Inputs, row_layout: RowLayout | Recording) -> Inputs:
    return Inputs(inputs.keywords | {"row_layout": row_layout}, inputs.slots)
