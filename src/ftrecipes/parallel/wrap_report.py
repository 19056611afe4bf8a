"""What sharding made of a model, in numbers: of each kind of unit, and of the memory of a rank."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bitsandbytes.functional import QuantState
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ftrecipes.config.errors import ModelError
from ftrecipes.parallel.engine import Engine
from ftrecipes.parallel.recompute import without_wrapper
from ftrecipes.parallel.wrap import Unit

# A rank may keep this share of all bytes before sharding counts as useless. What it keeps whole is
# an accident above both these shares: of all bytes, and of what the rank keeps. (Tables of
# positions have one row in some parts for images, which only one rank can have.)
_USELESS = 0.9
_SMALL, _SMALL_ON_A_RANK = 0.01, 0.2
_NAMED = 4  # parameters that an error names
_MIB, _GIB = 2**20, 2**30


@dataclass(frozen=True)
class UnitRow:
    """Numbers of one unit; `own` parameters only, without those of units inside of it."""

    kind: str
    module_class: str
    parameters: int  # what they stand for: packed weights count in full
    trained: int
    num_bytes: int  # of all ranks together
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class WrapReport:
    """Of a whole model on one rank. Bytes are those of parameters, buffers and statistics."""

    rows: tuple[tuple[UnitRow, int], ...]
    """Kinds of units, and how many are alike."""
    ranks: int
    """Ranks that share one copy."""
    parameter_bytes: int
    """Of one copy."""
    expected_bytes: int
    """What a rank keeps by the shapes: the most of all ranks, because rows may be uneven."""
    measured_bytes: int
    """What this rank keeps."""
    buffer_bytes: int
    """Part of both: every rank keeps the buffers whole,"""
    statistics_bytes: int
    """and so the statistics of quantized weights."""

    def lines(self) -> list[str]:
        """For the log: one line for each kind of unit, then the memory of a rank."""
        told = [_line(row, count) for row, count in self.rows]
        memory = (
            f"weights: {_size(self.parameter_bytes)}, on each of {self.ranks} ranks "
            f"{_size(self.expected_bytes)} expected, {_size(self.measured_bytes)} measured"
        )
        whole = [
            f"{_size(number)} of {what}"
            for what, number in (
                ("quantization statistics", self.statistics_bytes),
                ("buffers", self.buffer_bytes),
            )
            if number >= _MIB
        ]
        return [*told, memory + (f" (every rank has all {', '.join(whole)})" if whole else "")]


def wrap_report(model: nn.Module, units: Sequence[Unit], engine: Engine) -> WrapReport:
    """Count a sharded model whose weights are in place. Not a collective."""
    logical = dict(_logical_sizes(model))
    taken: set[int] = set()
    rows = []
    for unit in units:
        own = {id(p): p for m in unit.modules for p in m.parameters() if id(p) not in taken}
        taken |= own.keys()
        rows.append(_row(unit, list(own.values()), logical))
    kept = kept_bytes(model, ranks=engine.share.count)
    states = [state for module in model.modules() for state in _states(module).values()]
    statistics = _storage_bytes(tensor for state in states for tensor in _tensors(state))
    buffers = _storage_bytes(model.buffers())
    shares = _storage_bytes(engine.local(parameter) for parameter in model.parameters())
    return WrapReport(
        rows=tuple(Counter(rows).items()),
        ranks=engine.share.count,
        parameter_bytes=sum(whole for _, whole in kept.values()),
        expected_bytes=sum(part for part, _ in kept.values()) + statistics + buffers,
        measured_bytes=shares + statistics + buffers,
        buffer_bytes=buffers,
        statistics_bytes=statistics,
    )


def kept_bytes(model: nn.Module, *, ranks: int) -> dict[str, tuple[int, int]]:
    """Parameter -> (bytes of it that a rank keeps, the most of all, its bytes), with or without
    weights in place. Each rank for itself, and the same on all."""
    return {
        name: (_kept_bytes(parameter, ranks), parameter.nbytes)
        for name, parameter in model.named_parameters()
    }


def check_saved(kept: dict[str, tuple[int, int]], *, ranks: int) -> None:
    """Raise ModelError where several ranks share a model and each keeps (nearly) all of it.

    `kept` is what `kept_bytes` finds; the error names what is kept whole. The same on all ranks.
    """
    if ranks == 1:
        return
    on_a_rank, all_bytes = (sum(sizes) for sizes in zip(*kept.values(), strict=True))
    useless = on_a_rank > _USELESS * all_bytes
    small = max(_SMALL * all_bytes, _SMALL_ON_A_RANK * on_a_rank)
    whole = {
        name: size
        for name, (part, size) in kept.items()
        if part == size and (useless or size > small)
    }
    if not useless and not whole:
        return
    largest = sorted(whole or kept, key=lambda name: -kept[name][1])[:_NAMED]
    named = ", ".join(f"{name} ({_size(kept[name][1])})" for name in largest)
    raise ModelError(
        f"Sharding over {ranks} ranks saves too little: each keeps "
        f"{_size(on_a_rank)} of {_size(all_bytes)}.\n"
        f"  got: whole on a rank are {named}\n"
        "  expected: parameters with at least as many rows as there are ranks\n"
        "  do: use fewer processes, or --fsdp.sharding_strategy NO_SHARD to keep everything"
    )


def _row(unit: Unit, own: Sequence[nn.Parameter], logical: dict[int, int]) -> UnitRow:
    sizes = [(logical.get(id(p), p.numel()), p.requires_grad) for p in own]
    return UnitRow(
        kind=unit.kind,
        module_class=type(without_wrapper(unit.modules[0])).__name__.removeprefix("FSDP"),
        parameters=sum(size for size, _ in sizes),
        trained=sum(size for size, trained in sizes if trained),
        num_bytes=sum(p.nbytes for p in own),
        dtypes=tuple(sorted({str(p.dtype).removeprefix("torch.") for p in own})),
    )


def _line(row: UnitRow, count: int) -> str:
    each = " each" if count > 1 else ""
    trained = row.trained / row.parameters if row.parameters else 0.0
    return (
        f"{count} x {row.kind} {row.module_class}: {row.parameters:,} parameters{each}, "
        f"{_size(row.num_bytes)} of {', '.join(row.dtypes) or 'nothing'}, {trained:.2%} trained"
    )


def _size(number: int) -> str:
    return f"{number / _GIB:.2f} GiB" if number >= _GIB else f"{number / _MIB:.2f} MiB"


def _kept_bytes(parameter: Tensor, ranks: int) -> int:
    """Of the rank that keeps most."""
    if not isinstance(parameter, DTensor):
        return parameter.nbytes
    rows = parameter.shape[0]
    return parameter.nbytes // max(rows, 1) * -(-rows // ranks)


def _logical_sizes(model: nn.Module) -> Iterator[tuple[int, int]]:
    """(id, number of weights it stands for) of each packed parameter."""
    for module in model.modules():
        for name, state in _states(module).items():
            yield id(module._parameters[name]), state.shape.numel()


def _states(module: nn.Module) -> dict[str, QuantState]:
    """Statistics by the name of the parameter they belong to; a layer of bitsandbytes has one."""
    found = {}
    for value in vars(module).values():
        if isinstance(value, QuantState):
            found["weight"] = value
        elif isinstance(value, dict):
            found |= {key: state for key, state in value.items() if isinstance(state, QuantState)}
    return found


def _tensors(state: QuantState) -> Iterator[Tensor]:
    for value in vars(state).values():
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, QuantState):
            yield from _tensors(value)


def _storage_bytes(tensors) -> int:
    """Bytes of the memory behind the tensors; memory that several have counts once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({(s.device, s.data_ptr()): s.nbytes() for s in storages}.values())
