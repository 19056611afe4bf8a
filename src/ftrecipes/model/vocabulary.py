"""Tokens that the model did not know: added to the tokenizer, given a row in the embeddings."""

from collections.abc import Sequence

import torch
from torch import nn
from transformers import AddedToken, PreTrainedModel, PreTrainedTokenizerBase

from ftrecipes.config.errors import ModelError
from ftrecipes.config.schema import RunConfig
from ftrecipes.runtime import log


def add_new_tokens(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[str]) -> None:
    """Make each of `tokens` one token, matched as it stands; ids follow their order.

    Those that the tokenizer has already keep their ids, and are told.
    """
    known = [token for token in tokens if token in tokenizer.get_vocab()]
    if known:
        log.info(f"already tokens of this tokenizer, and trained all the same: {', '.join(known)}")
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in tokens])


def vocabulary_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """Embedding rows that the tokenizer's ids need: ids may have gaps."""
    return max(tokenizer.get_vocab().values()) + 1


def resize(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: RunConfig
) -> tuple[int, ...]:
    """Give every id of the tokenizer an embedding row, if asked to; return the ids to be trained.

    These are the tokens of `--new_tokens` and all rows that are added; none without that flag and
    `--resize_embeddings`. An added row, of the head too, is the mean of those before, and so the
    same whatever was drawn. A model with rows to spare keeps its own. Works on the meta device.
    Raises ModelError for a model with a further table of as many rows.
    """
    train = config.train
    if not train.new_tokens and not train.resize_embeddings:
        return ()
    rows = model.get_input_embeddings().weight.shape[0]
    size = vocabulary_size(tokenizer)
    added = tuple(range(rows, size))
    if added:
        _check_tables(model, rows)
        enlarge(model, size)
        if model.device.type != "meta":  # the sketch is enlarged too
            log.info(f"the embeddings have {size} rows instead of {rows}, for new tokens")
    asked = tokenizer.convert_tokens_to_ids(list(train.new_tokens))
    return tuple(sorted({*asked, *added}))


def enlarge(model: PreTrainedModel, size: int) -> None:
    """Embeddings and head of `size` rows; those that are added are the mean of the others."""
    rows = model.get_input_embeddings().weight.shape[0]
    model.resize_token_embeddings(size, mean_resizing=False)
    tables = {id(p): p for module in _tables(model) for p in module.parameters(recurse=False)}
    with torch.no_grad():
        for parameter in tables.values():  # weights, and the bias of a head
            parameter[rows:] = parameter[:rows].mean(0, dtype=torch.float32).to(parameter.dtype)


def _tables(model: PreTrainedModel) -> list[nn.Module]:
    """The modules with one row a token: the input embeddings, and the head where there is one."""
    both = (model.get_input_embeddings(), model.get_output_embeddings())
    return [module for module in both if module is not None]


def _check_tables(model: PreTrainedModel, rows: int) -> None:
    """transformers enlarges the embeddings and the head; a third table would stay too short."""
    known = _tables(model)
    for name, module in model.named_modules():
        further = isinstance(module, nn.Embedding) and module not in known
        if further and module.num_embeddings == rows and "position" not in name:
            raise ModelError(
                f"The embeddings of {type(model).__name__} can not be enlarged.\n"
                f"  got: {name}, a further table of {rows} rows\n"
                "  do: leave --new_tokens and --resize_embeddings out"
            )
