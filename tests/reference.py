"""The independent reference of every test: transformers' own forward and a plain torch loop.

One row at a time, no padding, no packing, full logits, the shift and the loss in float32. Imports
nothing of ours. A row is a pair (input_ids, labels) of two int lists of equal length; labels[i] is
input_ids[i] where the model must produce token i, else -100 (they are not shifted).
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import PreTrainedTokenizerBase

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

    `lr` is a number or a function of the step (0, 1, ...). Biases and norms do not decay.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    decayed = [p for p in trainable if p.dim() > 1]
    spared = [p for p in trainable if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": weight_decay}, {"params": spared, "weight_decay": 0}],
        lr=0.0,
    )
    losses = []
    for index, rows in enumerate(steps):
        losses.append(backward_step(model, rows))
        torch.nn.utils.clip_grad_norm_(trainable, max_norm)
        for group in optimizer.param_groups:
            group["lr"] = lr(index) if callable(lr) else lr
        optimizer.step()
    return losses


def chat_rows(path: Path, tokenizer: PreTrainedTokenizerBase) -> list[Row]:
    """The rows of a JSONL file whose tokenizer has a ChatML template.

    Labels are the last answer and its end mark, found by the lengths of the parts.
    """
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        messages = row.get("messages") or [
            {"role": "user", "content": row["instruction"]},
            {"role": "assistant", "content": row["output"]},
        ]
        prompt = tokenizer.apply_chat_template(
            messages[:-1], add_generation_prompt=True, tokenize=False
        )
        answer = tokenizer(messages[-1]["content"], add_special_tokens=False)["input_ids"]
        front = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        whole = tokenizer.apply_chat_template(messages, tokenize=False)
        ids = tokenizer(whole, add_special_tokens=False)["input_ids"]
        end = len(front) + len(answer) + 1
        assert ids[: len(front)] == front
        labels = [-100] * len(front) + ids[len(front) : end] + [-100] * (len(ids) - end)
        rows.append((ids, labels))
    return rows
