"""What a trial of a route needs: which failures mean no, how far apart results are, and may be."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ftrecipes.config.errors import ModelError
from ftrecipes.model.attention import UnsupportedAttention

# What a foreign forward raises when it is called in a way it was not made for.
_FAILURES = (TypeError, ValueError, AttributeError, LookupError, RuntimeError)


@dataclass(frozen=True)
class Tolerance:
    """Largest relative error of a position in the hidden states (`body`) and through the head.

    `quantile` of the positions must keep to it: in float32 all. In half precision rounding can send
    a token to another expert, which changes its position wholly, but not half of all positions and
    not half of the first positions of rows, where a leak is strongest.
    """

    body: float
    head: float
    quantile: float


_FULL_PRECISION = Tolerance(body=1e-3, head=2e-5, quantile=1.0)
_FLOAT16 = Tolerance(body=0.02, head=0.004, quantile=0.5)
_BFLOAT16 = Tolerance(body=0.06, head=0.03, quantile=0.5)
_TOLERANCES = {torch.float64: _FULL_PRECISION, torch.float32: _FULL_PRECISION}
_TOLERANCES |= {torch.float16: _FLOAT16, torch.bfloat16: _BFLOAT16}


class Refused(Exception):
    """The model can not take the route; the message says why."""


@contextmanager
def refusing() -> Iterator[None]:
    """A failure inside means that the model refuses, but not one of memory or of another rank."""
    try:
        yield
    except (torch.OutOfMemoryError, torch.distributed.DistError):
        raise
    except UnsupportedAttention as error:
        raise Refused(str(error)) from error
    except _FAILURES as error:
        line = " ".join(str(error).split())[:100]
        raise Refused(f"its forward fails otherwise ({type(error).__name__}: {line})") from error


@contextmanager
def running(lm: PreTrainedModel) -> Iterator[None]:
    """A failure of the model's own forward inside is a ModelError: there is no other way to it."""
    try:
        with refusing():
            yield
    except Refused as refusal:
        raise ModelError(
            f"{type(lm).__name__} can not be trained on rows of tokens alone.\n  got: {refusal}\n"
            "  expected: a model whose forward takes input_ids and attention_mask of any length\n"
            "  do: choose another model, or with adapters leave out the module that fails "
            "(--lora.exclude_modules)"
        ) from refusal


@contextmanager
def training_without_trace(model: nn.Module, device: torch.device) -> Iterator[None]:
    """The model in train mode, and afterwards mode and random numbers as if nothing had run.

    (Not the generator of MPS, which torch 2.13 can not fork.)
    """
    was_training = model.training
    forked = [] if device.type in ("cpu", "mps") else [device]
    with torch.random.fork_rng(forked, device_type=device.type if forked else "cuda"):
        model.train()
        try:
            yield
        finally:
            model.train(was_training)


def relative_error(states: Tensor, expected: Tensor) -> Tensor:
    """Relative error of each position; float32 [N]."""
    states, expected = states.float(), expected.float()
    return (states - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-12)


def tolerance_of(lm: PreTrainedModel, device: torch.device) -> Tolerance:
    """Of the coarsest dtype that the model computes in."""
    if torch.is_autocast_enabled(device.type):
        return _TOLERANCES[torch.get_autocast_dtype(device.type)]
    quantized = lm.config.to_dict().get("quantization_config") or {}
    dtypes = {p.dtype for p in lm.parameters() if p.is_floating_point()}
    if quantized.get("load_in_4bit"):
        dtypes.add(getattr(torch, quantized["bnb_4bit_compute_dtype"]))
    return _TOLERANCES[max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)]
