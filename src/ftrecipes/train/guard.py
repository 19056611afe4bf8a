"""A step whose loss or gradient is not finite stops the run before its update."""

import math
from collections.abc import Sequence

from ftrecipes.config.errors import TrainingError

ROWS_SHOWN = 8


def nonfinite_error(
    *, step: int, loss: float, grad_norm: float, lr: float, rows: Sequence[str], half: bool
) -> TrainingError:
    """The error for step number `step` (1 = the first).

    `rows` says where the suspected rows came from; `half` is true when the step computes in
    float16, whose largest number is 65504.
    """
    what = "loss" if not math.isfinite(loss) else "gradient"
    named = ", ".join(rows[:ROWS_SHOWN])
    more = f" and {len(rows) - ROWS_SHOWN} more" if len(rows) > ROWS_SHOWN else ""
    advice = [f"lower --lr (the rate of this step is {lr:g})", "look at these rows"]
    if half:
        advice.insert(0, "leave --use_fp16 out (bfloat16 or float32 hold larger numbers)")
    return TrainingError(
        f"Step {step}: the {what} is not finite. Training stops before this update, so the "
        f"weights are those after step {step - 1}.\n"
        f"  got: loss {loss:g}, gradient norm {grad_norm:g}, in rows {named}{more}\n"
        "  expected: finite numbers\n"
        f"  do: {'; '.join(advice)}"
    )
