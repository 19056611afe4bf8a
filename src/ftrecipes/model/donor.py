"""How transformers would fill the model: names, dtypes and conversions, from a model on meta.

A checkpoint may spell names differently, and keep weights apart that the model keeps together
(experts one by one, say), or quantized (fp8, mxfp4). transformers knows per type what to do
(https://huggingface.co/docs/transformers/weightconverter). Most weights are only renamed, and read
by ranges; the others are converted as transformers does it: the weights of one target at a time.
"""

import copy
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    SkipParameters,
    WeightConverter,
    WeightRenaming,
    WeightTransform,
    dot_natural_key,
    rename_source_key,
)
from transformers.quantizers import AutoHfQuantizer, HfQuantizer
from transformers.utils.loading_report import LoadStateDictInfo

from ftrecipes.config.errors import ModelError
from ftrecipes.config.stored import DEQUANTIZED
from ftrecipes.model.quantize import stored_config
from ftrecipes.model.ranges import Sliceable
from ftrecipes.model.resolve import ModelSource, loading


@dataclass(frozen=True)
class Task:
    """One weight of the model, or several that one conversion makes: `target` is the first."""

    target: str
    sources: tuple[tuple[str, str], ...]  # (the converter's pattern, name in the checkpoint)
    converter: WeightConverter | None  # None = one source, as it is

    @property
    def key(self) -> str:
        """The one source of a weight that is not converted."""
        assert self.converter is None, f"{self.target} is made of {len(self.sources)} weights"
        return self.sources[0][1]


@dataclass(frozen=True)
class Donor:
    """The plain model on meta, in the dtype that from_pretrained gives each weight."""

    model: PreTrainedModel
    transforms: list[WeightTransform]
    quantizer: HfQuantizer | None  # of files that are dequantized while they are read
    dtype: torch.dtype

    @cached_property
    def state(self) -> dict[str, Tensor]:
        """Parameters and persistent buffers by name, on meta."""
        return self.model.state_dict()

    @cached_property
    def _renamings(self) -> list[WeightRenaming]:
        return [entry for entry in self.transforms if isinstance(entry, WeightRenaming)]

    @cached_property
    def _converters(self) -> list[WeightConverter]:
        return [entry for entry in self.transforms if isinstance(entry, WeightConverter)]

    def tasks(self, keys: Iterable[str]) -> tuple[list[Task], set[str]]:
        """(what is to be done for the names of a checkpoint, names that have no place).

        The order is that of the checkpoint's names: the same for every rank.
        """
        sources: dict[str, list[tuple[str, str]]] = {}
        converters: dict[str, WeightConverter] = {}
        by_pattern = {name: entry for entry in self._converters for name in entry.source_patterns}
        unexpected = set()
        for key in sorted(keys, key=dot_natural_key):
            target, pattern = self._renamed(key)
            if target not in self.state:
                unexpected.add(target)
                continue
            sources.setdefault(target, []).append((pattern or key, key))
            if pattern is not None:
                converters[target] = by_pattern[pattern]
        tasks = [
            Task(target, tuple(found), converters.get(target)) for target, found in sources.items()
        ]
        return tasks, unexpected

    def renamed(self, key: str) -> str:
        """The model's name for a name of the checkpoint."""
        return self._renamed(key)[0]

    def dtype_of(self, name: str) -> torch.dtype:
        """The dtype that from_pretrained gives a weight that it does not quantize."""
        for pattern, dtype in self.model._get_dtype_plan(self.dtype).items():
            if re.search(pattern.replace("*", ".*"), name):
                return dtype
        return self.state[name].dtype

    def report(
        self,
        *,
        missing: Iterable[str] = (),
        unexpected: Iterable[str] = (),
        mismatched: Iterable[tuple] = (),
    ) -> dict[str, set]:
        """What `check_complete` reads, without the names that the model's type says not to mind."""
        info = _loading_info()
        info.missing_keys, info.unexpected_keys = set(missing), set(unexpected)
        info.mismatched_keys = set(mismatched)
        self.model._adjust_missing_and_unexpected_keys(info)
        return info.to_dict()

    def convert(
        self, task: Task, source: Callable[[str], Sliceable], *, device: torch.device
    ) -> dict[str, Tensor]:
        """What the task's converter makes of its sources: name in the model -> whole weight.

        `source` gives a weight of the checkpoint by its name. Raises ModelError when it fails.
        """
        converter = copy.deepcopy(task.converter)
        device = torch.device("cpu") if converter.force_cpu else device
        for pattern, key in task.sources:
            converter.add_tensor(
                task.target, key, pattern, lambda key=key: self._whole(task, source(key), device)
            )
        info = _loading_info()
        try:
            values = converter.convert(
                task.target,
                model=self.model,
                config=self.model.config,
                hf_quantizer=self.quantizer,
                loading_info=info,
            )
        except SkipParameters:
            why = next(iter(info.conversion_errors.values())).strip().splitlines()[-1]
            raise ModelError(
                f"{task.target} can not be made of its {len(task.sources)} weights in the files.\n"
                f"  got: {why}\n  do: check that the files are complete"
            ) from None
        return {
            name: value[0] if isinstance(value, list) else value for name, value in values.items()
        }

    def _whole(self, task: Task, source: Sliceable, device: torch.device) -> Tensor:
        dtype = self.dtype_of(task.target)
        if self.quantizer is not None:
            dtype = self.quantizer.get_new_dtype(task.converter, source, dtype)
        return source[...].to(device=device, dtype=dtype)

    def _renamed(self, key: str) -> tuple[str, str | None]:
        """(the model's name, the pattern of a converter that takes this weight)."""
        prefix = self.model.base_model_prefix
        target, pattern = rename_source_key(
            key, self._renamings, self._converters, prefix, self.state
        )
        if target not in self.state and key in self.state:  # it is as the model has it already
            target, pattern = rename_source_key(key, [], [], prefix, self.state)
        return target, pattern


def build_donor(source: ModelSource, dtype: torch.dtype) -> Donor:
    """The donor of a folder with safetensors files, for weights in `dtype`."""
    config = copy.deepcopy(source.config)
    quantizer = None
    if source.stored is not None and source.stored.method in DEQUANTIZED:
        stored = config.quantization_config or config.get_text_config().quantization_config
        settings = AutoHfQuantizer.merge_quantization_configs(stored, stored_config(source.stored))
        quantizer = AutoHfQuantizer.from_config(settings, pre_quantized=True)
    with loading(source.name):
        return donor_of(source, dtype, quantizer=quantizer)


def donor_of(source: ModelSource, dtype: torch.dtype, *, quantizer: HfQuantizer | None) -> Donor:
    """The donor of files that `quantizer` reads."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            copy.deepcopy(source.config), trust_remote_code=source.trust_remote_code, dtype=dtype
        )
        if quantizer is not None:
            quantizer.preprocess_model(model=model, dtype=dtype, device_map=None)
    return Donor(model, get_model_conversion_mapping(model, None, quantizer), quantizer, dtype)


def _loading_info() -> LoadStateDictInfo:
    """transformers' record of what was and was not found, empty."""
    return LoadStateDictInfo(
        missing_keys=set(),
        unexpected_keys=set(),
        mismatched_keys=set(),
        error_msgs=[],
        conversion_errors={},
        skipped_pp_keys=set(),
    )
