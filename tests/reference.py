"""The independent reference of every test: transformers' own forward and a plain torch loop.

One row at a time, no padding, no packing, full logits, the shift and the loss in float32. Imports
nothing of ours. A row is a pair (input_ids, labels) of two int lists of equal length; labels[i] is
input_ids[i] where the model must produce token i, else -100 (they are not shifted).
"""

import math
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.functional as F

Row = tuple[Sequence[int], Sequence[int]]


def row_logits(model: torch.nn.Module, input_ids: Sequence[int]) -> torch.Tensor:
    """float32 logits [T, V] of one row."""
    ids = torch.tensor([list(input_ids)], device=next(model.parameters()).device)
    mask = torch.ones_like(ids)
    return model(input_ids=ids, attention_mask=mask, use_cache=False).logits[0].float()


def row_loss_sum(model: torch.nn.Module, row: Row) -> torch.Tensor:
    """Sum of the token losses of one row; 0 with a graph when no label counts."""
    logits = row_logits(model, row[0])
    labels = torch.tensor(list(row[1]), device=logits.device)
    return F.cross_entropy(logits[:-1], labels[1:], ignore_index=-100, reduction="sum")


def count_tokens(rows: Iterable[Row]) -> int:
    """Labels that count: all but -100, and never the first position of a row."""
    return sum(label != -100 for _, labels in rows for label in list(labels)[1:])


def evaluate(model: torch.nn.Module, rows: Sequence[Row]) -> float:
    """Sum of all token losses / number of counted tokens, every row once, dropout off."""
    was_training = model.training
    model.eval()
    loss = mean_loss(model, rows)
    model.train(was_training)
    return loss


def mean_loss(model: torch.nn.Module, rows: Sequence[Row]) -> float:
    """As `evaluate`, in the mode the model is in."""
    with torch.no_grad():
        return sum(row_loss_sum(model, row).item() for row in rows) / count_tokens(rows)


def backward_step(model: torch.nn.Module, rows: Sequence[Row]) -> float:
    """Put the gradient of (summed loss / counted tokens) of all rows into .grad; return that loss.

    Gradients are summed row by row and divided once at the end: no batch, no accumulation window.
    """
    model.zero_grad(set_to_none=True)
    loss_sum = 0.0
    for row in rows:
        loss = row_loss_sum(model, row)
        loss.backward()
        loss_sum += loss.item()
    num_tokens = max(count_tokens(rows), 1)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= num_tokens
    return loss_sum / num_tokens


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of all gradients by parameter name; zeros where a trainable one has none."""
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def train(
    model: torch.nn.Module,
    steps: Iterable[Sequence[Row]],
    *,
    lr: float | Callable[[int], float],
    weight_decay: float = 0.0,
    max_norm: float = math.inf,
) -> list[float]:
    """Train with torch's AdamW, one optimizer update for each list of rows; return the losses.

    `lr` is a number or a function of the step (0, 1, ...).
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=0.0, weight_decay=weight_decay)
    losses = []
    for index, rows in enumerate(steps):
        losses.append(backward_step(model, rows))
        torch.nn.utils.clip_grad_norm_(trainable, max_norm)
        optimizer.param_groups[0]["lr"] = lr(index) if callable(lr) else lr
        optimizer.step()
    return losses
