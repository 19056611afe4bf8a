"""From a micro-batch of rows to the sum of its token losses, by the route the probe has chosen.

Nothing is computed that no label needs: no padding (flat route), no mask of T x T, no logits where
no label counts. The router loss of a mixture of experts is not part of the loss: the routers train
by the token losses alone.

Shapes: B rows, T positions of all rows, L positions of the longest row, N counted labels, D hidden,
V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from peft import PeftModel, PrefixTuningConfig
from torch import Tensor, nn
from transformers import PreTrainedModel

from ftrecipes.model.attention import RowLayout
from ftrecipes.model.head import head_loss_sum
from ftrecipes.runtime.devices import to_device

IGNORED = -100


@dataclass(frozen=True)
class Inputs:
    """Arguments of a model's forward, and where each position of the flat rows went in them."""

    keywords: dict[str, Any]  # input_ids [1, T] or [B, L] and what belongs to them
    slots: Tensor  # int64 [T]: index into the flattened positions of input_ids


def call(function: Callable[..., Any], *args: Any) -> Any:
    """function(*args): how a model that is whole on one device is run."""
    return function(*args)


@dataclass(frozen=True)
class LossRoute:
    """How one model turns rows into a loss; chosen once, by train.probe.choose_route.

    head: `chunked` = hidden states into our own head and loss; `own` = the model's own forward
    makes the logits, at counted positions only; `full` = it can only make all of them. With
    `prompted` the forward is that of PEFT, which puts virtual tokens before each row.

    Every call of the model goes through `run`, and the chunked head through `run_head` inside of
    it (those of parallel.engine.Engine): they gather what a sharded model needs. There all ranks
    call the methods that compute.
    """

    flat: bool  # rows laid end to end with row attention; else padded, with transformers' own mask
    head: Literal["chunked", "own", "full"]
    reason: str  # one sentence for the log
    scale: float = 1.0  # what the model does to the head's output: times this,
    softcap: float | None = None  # then this * tanh(logits / this)
    prompted: bool = False  # the adapter is a learned prompt or prefix: rows are padded
    run: Callable[..., Any] = call  # calls a function that calls the model
    run_head: Callable[..., Any] = call  # the same for the parameters of the head

    def loss_sum(
        self, model: nn.Module, input_ids: Tensor, labels: Tensor, lengths: tuple[int, ...]
    ) -> Tensor:
        """Sum of the losses of all labels that count: a float32 scalar with a graph.

        input_ids, labels int64 [T], `lengths` of the rows in them. labels[i] is the token the model
        must produce at position i - 1, or -100; at the first position of a row it is -100. On an
        accelerator labels may stay on the host, which saves a synchronisation. Without any label
        that counts: 0, with zero gradients. The model's attention must be set as the probe left it.
        """
        sources = (labels[1:] != IGNORED).nonzero().squeeze(-1)
        device = input_ids.device
        targets = to_device(labels[1:][sources], device)
        inputs = (flat_inputs if self.flat else padded_inputs)(input_ids, lengths)
        positions = to_device(sources, device)
        return self.run(lambda: self._loss_sum(model, inputs, positions, targets))

    def states(self, model: nn.Module, inputs: Inputs, positions: Tensor) -> Tensor:
        """Hidden states [N, D] (head `chunked`) or logits [N, V] at flat `positions` int64 [N]."""
        return self.run(lambda: self._states(model, inputs, positions))

    def logits(self, lm: PreTrainedModel, states: Tensor) -> Tensor:
        """Logits [N, V], as the model's own, of what `states` has returned."""
        if self.head != "chunked":
            return states
        return self.run(lambda: self.run_head(partial(self._head_logits, lm), states))

    def _loss_sum(
        self, model: nn.Module, inputs: Inputs, positions: Tensor, targets: Tensor
    ) -> Tensor:
        states = self._states(model, inputs, positions)
        if self.head != "chunked":
            dtype = torch.promote_types(states.dtype, torch.float32)
            return F.cross_entropy(states.to(dtype), targets, reduction="sum")
        # The states are an argument: their gradient is where that of the head is complete.
        return self.run_head(partial(self._chunked_loss_sum, causal_lm(model)), states, targets)

    def _chunked_loss_sum(self, lm: PreTrainedModel, states: Tensor, targets: Tensor) -> Tensor:
        return head_loss_sum(
            states,
            targets,
            head=partial(self._head_logits, lm),
            parameters=list(lm.get_output_embeddings().parameters()),
            vocab_size=lm.config.get_text_config().vocab_size,
        )

    def _states(self, model: nn.Module, inputs: Inputs, positions: Tensor) -> Tensor:
        if self.prompted:
            return self._prompted_logits(model, inputs, positions)
        lm = causal_lm(model)
        slots = inputs.slots[positions]
        if self.head == "chunked":
            hidden = decoder_of(lm)(**inputs.keywords, use_cache=False).last_hidden_state
            return hidden.flatten(0, 1).index_select(0, slots)
        if self.head == "full":
            logits = lm(**inputs.keywords, use_cache=False).logits
            return logits.flatten(0, 1).index_select(0, slots)
        keep = torch.zeros_like(inputs.keywords["input_ids"], dtype=torch.bool)
        keep.view(-1)[slots] = True
        return lm(**inputs.keywords, use_cache=False, logits_to_keep=keep).logits

    def _prompted_logits(self, model: nn.Module, inputs: Inputs, positions: Tensor) -> Tensor:
        """Logits [N, V] of PEFT's forward; head `own`: made in the columns of `positions` only."""
        length = inputs.keywords["input_ids"].shape[1]
        rows, columns = inputs.slots[positions] // length, inputs.slots[positions] % length
        before = virtual_positions(model)
        if self.head == "full":
            logits = model(**inputs.keywords, use_cache=False).logits
            return logits[rows, columns + before]
        kept, places = columns.unique(return_inverse=True)
        keep = {"logits_to_keep": kept + before}
        return model(**inputs.keywords, use_cache=False, **keep).logits[rows, places]

    def _head_logits(self, lm: PreTrainedModel, hidden: Tensor) -> Tensor:
        """The head of hidden states [N, D]; its logits [N, V] as the model's own."""
        # Not a call of the module: `run_head` has run its hooks, once for all chunks.
        logits = lm.get_output_embeddings().forward(hidden)
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits


def is_prompted(model: nn.Module) -> bool:
    """Whether its adapter is a learned prompt or prefix, which only PEFT's own forward applies."""
    return isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning


def virtual_positions(model: PeftModel) -> int:
    """Positions of the output that lie before those of the rows: a prefix has none."""
    settings = model.active_peft_config
    return 0 if isinstance(settings, PrefixTuningConfig) else settings.num_virtual_tokens


def causal_lm(model: nn.Module) -> PreTrainedModel:
    """The transformers model inside; adapters act through its modules."""
    return model if isinstance(model, PreTrainedModel) else model.get_base_model()


def decoder_of(lm: PreTrainedModel) -> PreTrainedModel:
    """The part of the model that ends in hidden states; `lm` itself where it does not say which."""
    decoder = lm.get_decoder()
    return decoder if isinstance(decoder, PreTrainedModel) else lm.base_model


def flat_inputs(input_ids: Tensor, lengths: tuple[int, ...]) -> Inputs:
    """Rows end to end as one sequence [1, T], positions from 0 in each, no mask."""
    device = input_ids.device
    positions = to_device(torch.cat([torch.arange(length) for length in lengths]), device)
    keywords = {
        "input_ids": input_ids.unsqueeze(0),
        "position_ids": positions.unsqueeze(0),
        "row_layout": RowLayout.of(lengths, device),
    }
    return Inputs(keywords, torch.arange(len(input_ids), device=device))


def padded_inputs(input_ids: Tensor, lengths: tuple[int, ...]) -> Inputs:
    """Rows padded at the right to [B, L] and masked there; the padding repeats a valid id."""
    device = input_ids.device
    longest = max(lengths)
    slots = torch.cat([torch.arange(n) + b * longest for b, n in enumerate(lengths)])
    slots = to_device(slots, device)
    padded = input_ids[:1].repeat(len(lengths) * longest).index_copy(0, slots, input_ids)
    mask = torch.zeros_like(padded).index_fill(0, slots, 1)
    shape = (len(lengths), longest)
    return Inputs({"input_ids": padded.view(shape), "attention_mask": mask.view(shape)}, slots)
