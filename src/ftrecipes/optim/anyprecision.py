"""AdamW all in bfloat16: what rounding drops is kept, and enters the next update."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

# Elements that are in float32 at a time; more would need the memory that bfloat16 saves.
CHUNK = 2**24


class AnyPrecisionAdamW(torch.optim.Optimizer):
    """AdamW whose weights and moments are stored in bfloat16 and computed in float32.

    A bfloat16 number has 8 significant bits, so that an update below about 1/500 of a weight rounds
    away, and a second moment that decays by 1/1000 a step never moves. As in Kahan's summation
    (Communications of the ACM 8, 1965), a second bfloat16 number keeps what rounding drops, of the
    weights and of the second moments. 12 bytes a trained parameter with its gradient, against 16 of
    float32. The first moment moves by a tenth a step and needs none. Like the AdamW of torchdistx
    in what it is for, not in how it computes.

    Each parameter group has lr, betas, eps and weight_decay. Raises TypeError for a parameter or
    gradient that is not bfloat16.
    """

    def __init__(
        self,
        params: object,
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.dtype != torch.bfloat16:
                    raise TypeError(f"a parameter is {parameter.dtype}, not bfloat16")

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: Tensor, group: dict) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            for name in ("exp_avg", "exp_avg_sq", "exp_avg_sq_rest", "weight_rest"):
                state[name] = torch.zeros_like(parameter)
        if parameter.grad.dtype != parameter.dtype:
            raise TypeError(f"a gradient is {parameter.grad.dtype}, not {parameter.dtype}")
        state["step"] += 1
        beta1, beta2 = group["betas"]
        lr, eps = group["lr"], group["eps"]
        first_share, second_share = (1 - beta ** state["step"] for beta in (beta1, beta2))
        tensors = (parameter, state["weight_rest"], parameter.grad, state["exp_avg"])
        tensors += (state["exp_avg_sq"], state["exp_avg_sq_rest"])
        for weight, weight_rest, grad, first, second, second_rest in _chunks(*map(_own, tensors)):
            gradient = grad.float()
            mean = first.float().lerp_(gradient, 1 - beta1)
            square = _exact(second, second_rest).mul_(beta2)
            square.addcmul_(gradient, gradient, value=1 - beta2)
            first.copy_(mean)
            _store(square, second, second_rest)
            exact = _exact(weight, weight_rest).mul_(1 - lr * group["weight_decay"])
            divisor = square.div_(second_share).sqrt_().add_(eps)
            exact.addcdiv_(mean, divisor, value=-lr / first_share)
            _store(exact, weight, weight_rest)


def _own(tensor: Tensor) -> Tensor:
    """This rank's rows of a sharded tensor; every element is updated by itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _exact(rounded: Tensor, rest: Tensor) -> Tensor:
    """float32: the number that two bfloat16 numbers hold together."""
    return rounded.float().add_(rest)


def _store(exact: Tensor, rounded: Tensor, rest: Tensor) -> None:
    """`exact` into `rounded`, and what rounding it drops into `rest`."""
    rounded.copy_(exact)
    rest.copy_(exact - rounded)


def _chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Views of tensors of one shape, piece by piece along their first dimension."""
    tensors = tuple(tensor if tensor.dim() else tensor.view(1) for tensor in tensors)
    row_size = max(1, tensors[0][:1].numel())  # 0 where this rank has no row
    return zip(*(tensor.split(max(1, CHUNK // row_size)) for tensor in tensors), strict=True)
