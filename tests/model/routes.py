"""Rows for the probe and for a route, made of the reference's rows."""

import numpy as np
import torch

from ftrecipes.data.rows import TokenRows
from ftrecipes.model.forward import LossRoute
from ftrecipes.train.probe import choose_route
from tests import reference


def token_rows(rows: list[reference.Row]) -> TokenRows:
    """The rows as a data split."""
    ids, labels = (
        np.concatenate([np.array(row[i], dtype=np.int32) for row in rows]) for i in (0, 1)
    )
    offsets = np.cumsum([0, *(len(row[0]) for row in rows)], dtype=np.int64)
    return TokenRows(ids, labels, offsets, [f"row {i}" for i in range(len(rows))], [])


def flatten(rows: list[reference.Row]) -> tuple[torch.Tensor, torch.Tensor, tuple[int, ...]]:
    """input_ids [T], labels [T] (-100 at the first position of each row) and lengths."""
    ids = torch.tensor([i for row in rows for i in row[0]])
    labels = torch.tensor([x for row in rows for x in [-100, *row[1][1:]]])
    return ids, labels, tuple(len(row[0]) for row in rows)


def route_of(model: torch.nn.Module, rows: list[reference.Row]) -> LossRoute:
    """What the probe chooses on the CPU."""
    return choose_route(model, token_rows(rows), device=torch.device("cpu"))


def backward_step(
    model: torch.nn.Module, route: LossRoute, micro_batches: list[list[reference.Row]]
) -> float:
    """Our loss of one step, its gradients in .grad: the counterpart of reference.backward_step."""
    model.zero_grad(set_to_none=True)
    num_tokens = max(sum(reference.count_tokens(rows) for rows in micro_batches), 1)
    total = 0.0
    for rows in micro_batches:
        loss = route.loss_sum(model, *flatten(rows)) / num_tokens
        loss.backward()
        total += loss.item()
    return total
