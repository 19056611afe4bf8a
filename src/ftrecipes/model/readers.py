"""Who reads the files: each rank what it keeps, or the first rank, which sends it to the others."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ftrecipes.config.errors import ModelError
from ftrecipes.model.ranges import Sliceable
from ftrecipes.model.weight_files import Stated, WeightFiles
from ftrecipes.runtime.shares import Share

Result = TypeVar("Result")
Read = Callable[[range], Tensor]  # elements of one weight -> [n]


class Reader(Protocol):
    """One way of reading. `told` and `part` are called by all ranks of the share, or by none."""

    catalogue: dict[str, Stated]  # every weight in the files

    def source(self, key: str) -> Sliceable:
        """A weight in the files; for use inside `find` and `read` below."""

    def told(self, find: Callable[[], Result]) -> Result:
        """What `find` finds in the files, on all ranks; so with the ModelError that it raises."""

    def part(self, spans: Sequence[range], read: Read, dtype: torch.dtype) -> Tensor:
        """This rank's one of `spans` (one a rank) of a weight, [n], in `dtype` or as stored. `read`
        reads the files; what it gives may be their pages themselves."""


class EachReads:
    """Every rank slices the files itself, and waits for nobody."""

    def __init__(self, files: WeightFiles, share: Share):
        self._share = share
        self.catalogue, self.source = files.catalogue, files.source

    def told(self, find: Callable[[], Result]) -> Result:
        """What it finds."""
        return find()

    def part(self, spans: Sequence[range], read: Read, dtype: torch.dtype) -> Tensor:
        """As stored."""
        return read(spans[self._share.index])


class FirstReads:
    """The first rank of the group slices the files, and sends each of the others its span."""

    def __init__(self, files: WeightFiles, share: Share, group: dist.ProcessGroup | None):
        self._share, self._group = share, group
        self.source = files.source
        self.catalogue = self.told(lambda: files.catalogue)

    def told(self, find: Callable[[], Result]) -> Result:
        """What the first rank finds."""
        return first_told(find, share=self._share, group=self._group)

    def part(self, spans: Sequence[range], read: Read, dtype: torch.dtype) -> Tensor:
        """As stored on the first rank; elsewhere what was sent."""
        if self._share.index == 0:
            for rank, span in enumerate(spans[1:], start=1):
                if span:
                    sent = read(span).to(device="cpu", dtype=dtype).contiguous()
                    dist.send(sent.view(torch.uint8), group_dst=rank, group=self._group)
            return read(spans[0])
        own = spans[self._share.index]
        received = torch.empty(len(own), dtype=dtype)
        if own:
            dist.recv(received.view(torch.uint8), group_src=0, group=self._group)
        return received


def first_told(
    find: Callable[[], Result], *, share: Share, group: dist.ProcessGroup | None
) -> Result:
    """What `find` gives on the first rank of the share, or the ModelError it raises, on all."""
    message: list = [None, None]
    if share.index == 0:
        try:
            message[0] = find()
        except ModelError as error:
            message[1] = str(error)
    if share.count > 1:
        dist.broadcast_object_list(message, group=group, group_src=0)
    if message[1] is not None:
        raise ModelError(message[1])
    return message[0]


@contextmanager
def opened(
    paths: Callable[[], list[str]], *, who: str, share: Share, group: dist.ProcessGroup | None
) -> Iterator[tuple[Reader, WeightFiles]]:
    """The reader that `--fsdp.load_from` names (`each` or `rank0`) and its open files.

    `paths` finds the files; it is called where they are read. Raises ModelError for files that are
    missing, cut short or no safetensors. Called by all ranks of the share.
    """
    with WeightFiles() as files:
        if who == "each":
            files.open(paths())
            yield EachReads(files, share), files
        else:
            first_told(lambda: files.open(paths()), share=share, group=group)
            yield FirstReads(files, share, group), files
