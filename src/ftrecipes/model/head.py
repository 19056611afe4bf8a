"""The output head and the cross entropy together, a few rows of logits at a time.

The logits of a micro-batch would be its largest tensor; here only a chunk of them exists, and its
gradient is taken at once (as in Liger Kernel, arXiv:2410.10989, and F.linear_cross_entropy).
The head is any callable, so that a plain, tied, biased, scaled or soft-capped head and one with an
adapter take the same path. The loss is float32 whatever the dtype of the logits.

Shapes: N counted positions, D hidden, V vocabulary.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# float32 logits a chunk: about the last-level cache of a CPU core; a GPU needs more work a launch.
_CHUNK_BYTES = {"cpu": 2**25}
_CHUNK_BYTES_ACCELERATOR = 2**28


def head_loss_sum(
    hidden: Tensor,
    labels: Tensor,
    *,
    head: Callable[[Tensor], Tensor],
    parameters: Sequence[Tensor],
    vocab_size: int,
) -> Tensor:
    """Sum of the cross entropies of head(hidden) [N, V] with labels: a float32 scalar.

    hidden [N, D] any float dtype, labels int64 [N] without ignored entries, parameters: what the
    head computes with (those that require a gradient get one). `vocab_size` V only sets the chunk.
    N = 0 gives 0 with zero gradients. Peak memory beyond the arguments: one chunk of logits twice,
    the gradient of `hidden`, and float32 gradients of the trained parameters. Without grad mode
    only the loss is computed. (A float64 model gets a float64 loss: for tests.)
    """
    budget = _CHUNK_BYTES.get(hidden.device.type, _CHUNK_BYTES_ACCELERATOR)
    rows = max(budget // (4 * vocab_size), 1)
    if not torch.is_grad_enabled():
        chunks = zip(hidden.split(rows), labels.split(rows), strict=True)
        return torch.stack([_chunk_loss(head(h), y) for h, y in chunks]).sum()
    trained = [p for p in parameters if p.requires_grad]
    return _ChunkedCrossEntropy.apply(hidden, labels, head, rows, *trained)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Loss and gradients in one pass; the backward only scales them."""

    @staticmethod
    def forward(ctx, hidden, labels, head, rows, *trained):
        dtype = _loss_dtype(hidden)
        loss_sum = torch.zeros((), dtype=dtype, device=hidden.device)
        hidden_grads = []
        sums = [torch.zeros_like(p, dtype=dtype) for p in trained]
        for h, y in zip(hidden.split(rows), labels.split(rows), strict=True):
            loss, hidden_grad, grads = _chunk_gradients(head, h, y, trained)
            loss_sum += loss
            hidden_grads.append(hidden_grad)
            for total, grad in zip(sums, grads, strict=True):
                if grad is not None:
                    total += grad
        sums = [total.to(p.dtype) for total, p in zip(sums, trained, strict=True)]
        ctx.save_for_backward(torch.cat(hidden_grads), *sums)
        return loss_sum

    @staticmethod
    @once_differentiable
    def backward(ctx, loss_grad):
        hidden_grad, *sums = ctx.saved_tensors
        return (hidden_grad * loss_grad, None, None, None, *(s * loss_grad for s in sums))


def _loss_dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _chunk_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.to(_loss_dtype(logits)), labels, reduction="sum")


def _chunk_gradients(head, hidden, labels, trained):
    """Loss, gradient of `hidden`, gradients of `trained` (None where the head does not use it)."""
    with torch.enable_grad():
        hidden = hidden.detach().requires_grad_()
        logits = head(hidden)
    log_probs = F.log_softmax(logits.detach(), dim=-1, dtype=_loss_dtype(logits))
    picked = labels.unsqueeze(-1)
    loss = -log_probs.gather(-1, picked).sum()
    logits_grad = log_probs.exp_()
    logits_grad.scatter_add_(-1, picked, logits_grad.new_full(picked.shape, -1))
    # the recorded operators have their dtypes already: autocast is for forwards only
    with torch.autocast(hidden.device.type, enabled=False):
        hidden_grad, *grads = torch.autograd.grad(
            logits, [hidden, *trained], logits_grad.to(logits.dtype), allow_unused=True
        )
    return loss, hidden_grad, grads
