"""The part of each weight that a rank keeps: read, rounded or quantized, and put in its place."""

from collections import Counter
from collections.abc import Callable, Collection
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ftrecipes.config.errors import ModelError
from ftrecipes.model.donor import Donor
from ftrecipes.model.packed import Packed, packed_parameters
from ftrecipes.model.plain_names import Place, parameter_places, plain_name
from ftrecipes.model.ranges import Sliceable, elements, read
from ftrecipes.model.readers import Reader
from ftrecipes.model.slices import quantize_part, wide_spans
from ftrecipes.model.stored_states import split_statistics, stored_state
from ftrecipes.runtime.collectives import concatenate_parts
from ftrecipes.runtime.shares import Share


class Parts:
    """A model that is being filled; names are those of the plain model (see `fill`).

    `keys` are the names of weights in the files, `filled` those in the model that are done.
    """

    def __init__(
        self,
        model: nn.Module,
        donor: Donor,
        reader: Reader,
        *,
        device: torch.device,
        put: Callable[[str, Tensor], None],
        share: Share,
        group: dist.ProcessGroup | None,
    ):
        self.device = device
        self._donor, self._reader, self._put, self._share = donor, reader, put, share
        self._gather = partial(concatenate_parts, group=group)
        self._places = parameter_places(model)
        self._buffers = {plain_name(model, name): value for name, value in model.named_buffers()}
        packed = packed_parameters(model)
        self._packed = {plain_name(model, name): value for name, value in packed.items()}
        self.keys, self._statistics = split_statistics(reader.catalogue, donor, self._packed)
        self.filled: set[str] = set()
        names = Counter(self._places.values())
        self._shared = {place for place in names if names[place] > 1}
        # name that a shared place was filled by, and from what
        self._first: dict[Place, tuple[str, Callable[[], Sliceable]]] = {}

    def missing(self, names: Collection[str]) -> set[str]:
        """What of the plain model is neither among `names` nor tied to one of them."""
        tied = {self._places[name] for name in names if name in self._places}
        expected = self._donor.state.keys() - set(names)
        return {name for name in expected if self._places.get(name) not in tied}

    def shape_of(self, key: str) -> tuple[int, ...]:
        """The shape that a weight has in the files, by its name there."""
        return self._reader.catalogue[key].shape

    def expected_shape(self, name: str) -> tuple[int, ...]:
        """The shape that a weight must have before it is cut and quantized."""
        packed = self._packed.get(name)
        if packed is None:
            return tuple(self._donor.state[name].shape)
        if name in self._statistics:
            return (packed.rows, 1)
        return tuple(packed.shape[::-1] if packed.transposed else packed.shape)

    def fill(self, name: str, shape: tuple[int, ...], source: Callable[[], Sliceable]) -> None:
        """Give a weight or buffer its numbers from `source` of `shape`, which is called where files
        are read. Called by all ranks of the share. Raises ModelError for another shape."""
        if shape != self.expected_shape(name):
            raise ModelError(
                f"{name} in the files does not fit the model.\n  got: shape {shape}\n"
                f"  expected: {self.expected_shape(name)}\n  do: check that files and config.json "
                "belong together"
            )
        self.filled.add(name)
        place = self._places.get(name)
        if place in self._first:
            self._check_same(name, source, *self._first[place])
            return
        if place in self._shared:
            self._first[place] = (name, source)
        if name not in self._places:
            self._fill_buffer(name, shape, source)
        elif name not in self._packed:
            self._fill_plain(name, shape, source)
        elif name in self._statistics:
            self._fill_stored(name, shape, source)
        else:
            self._fill_packed(name, source)

    def _fill_plain(self, name: str, shape: tuple[int, ...], source: Callable) -> None:
        place, dtype = self._places[name], self._donor.dtype_of(name)
        rows = self._share.all_rows(shape[0] if shape else 1)
        spans = [elements(part, shape) for part in rows]
        values = self._read(shape, spans, source, dtype=dtype)
        local = self._copy(values, dtype, stored=place.parameter.dtype)
        count = len(rows[self._share.index])
        self._put(place.name, local.view(count, *shape[1:]) if shape else local.view(()))

    def _fill_packed(self, name: str, source: Callable) -> None:
        place, packed = self._places[name], self._packed[name]
        dtype = self._donor.dtype_of(name)
        spans = wide_spans(packed, self._share)
        values = self._read(
            tuple(packed.shape), spans, source, dtype=dtype, transposed=packed.transposed
        )
        local, state = quantize_part(
            values, packed, self._share, dtype=dtype, device=self.device, gather=self._gather
        )
        packed.set_state(state)
        self._put(place.name, local)

    def _fill_stored(self, name: str, shape: tuple[int, ...], source: Callable) -> None:
        packed: Packed = self._packed[name]
        rows = self._share.all_rows(shape[0])
        spans = [elements(part, shape) for part in rows]
        values = self._read(shape, spans, source, dtype=packed.storage)
        if values.dtype != packed.storage:
            raise ModelError(
                f"{name} is stored in another dtype than the config of the files says.\n"
                f"  got: {values.dtype}\n  expected: {packed.storage}\n"
                "  do: give a folder that save_pretrained wrote"
            )
        local = self._copy(values, packed.storage, stored=packed.storage)
        packed.set_state(
            stored_state(
                self._statistics[name], packed, self._reader, share=self._share, device=self.device
            )
        )
        self._put(self._places[name].name, local.view(-1, 1))

    def _fill_buffer(self, name: str, shape: tuple[int, ...], source: Callable) -> None:
        everything = elements(range(shape[0] if shape else 1), shape)
        dtype = self._donor.dtype_of(name)
        values = self._read(shape, [everything] * self._share.count, source, dtype=dtype)
        self._buffers[name].copy_(values.to(dtype).view(shape))

    def _read(
        self,
        shape: tuple[int, ...],
        spans: list[range],
        source: Callable[[], Sliceable],
        *,
        dtype: torch.dtype,
        transposed: bool = False,
    ) -> Tensor:
        """This rank's one of `spans` of a weight, [n]."""

        def files(span: range) -> Tensor:
            return read(source(), shape, span, transposed=transposed)

        return self._reader.part(spans, files, dtype)

    def _copy(self, values: Tensor, dtype: torch.dtype, *, stored: torch.dtype) -> Tensor:
        """The values on the device, rounded to `dtype` as from_pretrained would, kept as `stored`.

        Always a copy: what is read may be the pages of the file itself.
        """
        values = values if dtype == stored else values.to(dtype)
        return torch.empty(len(values), dtype=stored, device=self.device).copy_(values)

    def _check_same(self, name: str, source: Callable, other: str, first: Callable) -> None:
        """transformers would leave them untied then, against the config; so they can not be one."""

        def same() -> bool:
            return torch.equal(source()[...], first()[...])

        if not self._reader.told(same):
            raise ModelError(
                f"By the config {other} and {name} are one weight, but the files hold two that "
                "differ.\n  do: set tie_word_embeddings to false in config.json"
            )
