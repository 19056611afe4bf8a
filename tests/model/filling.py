"""Fill a model from a folder, and compare it with `load_model`, byte by byte."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from bitsandbytes.functional import QuantState
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ftrecipes.config.precision import Precision
from ftrecipes.config.schema import QuantizationConfig, RunConfig, TrainConfig
from ftrecipes.config.sections import FsdpConfig
from ftrecipes.model.fill import Filled, fill
from ftrecipes.model.load import load_model
from ftrecipes.model.packed import packed_parameters
from ftrecipes.model.plain_names import plain_name
from ftrecipes.model.resolve import ModelSource, resolve_source, settle_quantization
from ftrecipes.model.skeleton import build_skeleton
from ftrecipes.runtime.shares import Share
from tests.model.loading import FLOAT32

CPU = torch.device("cpu")
BFLOAT16 = replace(FLOAT32, base="bfloat16")


def settings(
    folder: Path, quantization: dict | None = None, *, load_from: str = "each"
) -> tuple[ModelSource, RunConfig]:
    """What a run with an adapter on the folder begins with; `quantization`: fields, None = none."""
    source = resolve_source(str(folder), None, trust_remote_code=False)
    method = {"method": "4bit"} if quantization is not None else {}
    config = RunConfig(
        train=TrainConfig(use_peft=True),
        quantization=QuantizationConfig(**method | (quantization or {})),
        fsdp=FsdpConfig(load_from=load_from),
    )
    return source, settle_quantization(config, source)


def put_whole(model: nn.Module) -> Callable[[str, Tensor], None]:
    """A `put` of one process without shards: the parameter itself, in all places it is tied."""
    owners: dict[Tensor, list] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            owners.setdefault(parameter, []).append((module, name))
    named = dict(model.named_parameters())

    def put(name: str, local: Tensor) -> None:
        old = named[name]
        assert (local.shape, local.dtype) == (old.shape, old.dtype), name
        parameter = nn.Parameter(local, requires_grad=old.requires_grad)
        for module, own in owners[old]:
            module.register_parameter(own, parameter)

    return put


def filled(
    folder: Path, quantization: dict | None = None, precision: Precision = FLOAT32
) -> tuple[nn.Module, Filled]:
    """The skeleton of the folder, filled by one process."""
    source, config = settings(folder, quantization)
    model = build_skeleton(source, config, precision)
    done = fill(
        model,
        source,
        config,
        precision,
        device=CPU,
        put=put_whole(model),
        share=Share(),
        group=None,
        beat=lambda: None,
    )
    return model, done


def loaded(
    folder: Path, quantization: dict | None = None, precision: Precision = FLOAT32
) -> nn.Module:
    """What transformers makes of the folder, whole."""
    source, config = settings(folder, quantization)
    return load_model(source, config, precision, CPU)


def assert_same(got: nn.Module, expected: nn.Module, *, share: Share = Share()) -> int:  # noqa: B008  frozen
    """Every parameter of `expected` (in `got` its rows of `share`), buffer and statistic, bit by
    bit; gives the number of packed weights. `got` may have adapters, which are not looked at."""
    mine = {plain_name(got, name): p for name, p in got.named_parameters(remove_duplicate=False)}
    for name, parameter in expected.named_parameters(remove_duplicate=False):
        rows = share.rows(parameter.shape[0]) if parameter.dim() else range(1)
        whole = parameter.data if parameter.dim() else parameter.data.view(1)
        part = mine[name].to_local() if isinstance(mine[name], DTensor) else mine[name]
        assert part.dtype == parameter.dtype, name
        assert_bytes(part.data, whole[rows.start : rows.stop], name)
    ours = {plain_name(got, name): value for name, value in got.named_buffers()}
    for name, value in expected.named_buffers():
        assert_bytes(ours[name], value, name)
    packed = packed_parameters(expected)
    states = {plain_name(got, name): found.state for name, found in packed_parameters(got).items()}
    assert states.keys() == packed.keys()
    for name, state in states.items():
        assert_same_state(state, packed[name].state, name)
    return len(packed)


def assert_same_state(got: QuantState, expected: QuantState, name: str = "") -> None:
    """All that bitsandbytes keeps beside the packed numbers."""
    for field in ("shape", "dtype", "blocksize", "quant_type", "nested"):
        assert getattr(got, field) == getattr(expected, field), (name, field)
    assert_bytes(got.absmax, expected.absmax, f"{name} absmax")
    assert_bytes(got.code, expected.code, f"{name} code")
    if expected.nested:
        assert_bytes(got.offset.view(1), expected.offset.view(1), f"{name} offset")
        assert_bytes(got.state2.absmax, expected.state2.absmax, f"{name} nested absmax")
        assert_bytes(got.state2.code, expected.state2.code, f"{name} nested code")
        assert (got.state2.blocksize, got.state2.dtype) == (256, torch.float32)


def assert_bytes(got: Tensor, expected: Tensor, name: str) -> None:
    """As bytes: numbers packed in a floating dtype may be NaN."""
    assert (got.dtype, got.numel()) == (expected.dtype, expected.numel()), name
    one, other = (t.detach().cpu().reshape(-1).contiguous() for t in (got, expected))
    assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), f"{name} differs"
