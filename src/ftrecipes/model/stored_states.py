"""Weights that are packed in the files already (bitsandbytes): their statistics, and their rows."""

import re
from collections.abc import Iterable, Mapping

import torch
from bitsandbytes.functional import QuantState
from torch import Tensor

from ftrecipes.config.errors import ModelError
from ftrecipes.model.donor import Donor
from ftrecipes.model.packed import Packed
from ftrecipes.model.ranges import read
from ftrecipes.model.readers import Reader
from ftrecipes.model.weight_files import DTYPES
from ftrecipes.runtime.shares import Share

Statistics = dict[str, str]  # bitsandbytes' name of a statistic -> name in the files

_STATISTIC = re.compile(
    r"(?P<weight>.+)\.(?P<statistic>absmax|quant_map|nested_absmax|nested_quant_map"
    r"|quant_state\.bitsandbytes__(nf4|fp4))"
)


def split_statistics(
    keys: Iterable[str], donor: Donor, packed: Mapping[str, Packed]
) -> tuple[list[str], dict[str, Statistics]]:
    """(names in the files that are weights, statistics of each weight that is packed there)."""
    weights, found = [], {}
    for key in keys:
        match = _STATISTIC.fullmatch(key)
        target = donor.renamed(match["weight"]) if match else None
        if target in packed:
            found.setdefault(target, {})[match["statistic"]] = key
        else:
            weights.append(key)
    return weights, found


def stored_state(
    statistics: Statistics, packed: Packed, reader: Reader, *, share: Share, device: torch.device
) -> QuantState:
    """The state that the files have for a weight, whole. Called by all ranks of the share.

    Raises ModelError when it is not what the config says.
    """
    values = {
        name: _whole(key, reader, share=share).to(device, copy=True)
        for name, key in sorted(statistics.items())
    }
    state = QuantState.from_dict(values, device=device)
    got = (state.quant_type, state.nested, tuple(state.shape), state.blocksize)
    said = (packed.quant_type, packed.double_quant, tuple(packed.shape), packed.blocksize)
    if got != said:
        raise ModelError(
            f"The statistics {min(statistics.values())} do not fit the model's config.\n"
            f"  got: {got}\n  expected: {said} (type, double quantization, shape, block size)\n"
            "  do: give a folder that save_pretrained wrote"
        )
    return state


def _whole(key: str, reader: Reader, *, share: Share) -> Tensor:
    stated = reader.catalogue[key]
    everything = range(stated.numel)
    values = reader.part(
        [everything] * share.count,
        lambda span: read(reader.source(key), stated.shape, span, transposed=False),
        DTYPES[stated.dtype],
    )
    return values.reshape(stated.shape)
