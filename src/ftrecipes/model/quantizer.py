"""4-bit loading that takes the experts of mixtures too, each as soon as it has been read.

Through the hooks of transformers for quantization methods of one's own
(https://huggingface.co/docs/transformers/quantization/contribute): of the experts at full size
there is one parameter on the device at a time.
"""

from torch import Tensor, nn
from transformers import BitsAndBytesConfig
from transformers.integrations.bitsandbytes import Bnb4bitQuantize
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.quantizer_bnb_4bit import Bnb4BitHfQuantizer

from ftrecipes.model.experts import check_experts, expert_weights, pack

METHOD = "ftrecipes_4bit"


@register_quantization_config(METHOD)
class FourBitConfig(BitsAndBytesConfig):
    """The settings of bitsandbytes, under a name that leads to the quantizer below."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.quant_method = METHOD


def _split(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, last = name.rpartition(".")
    return model.get_submodule(path), last


class _Quantize(Bnb4bitQuantize):
    def convert(self, input_dict: dict[str, list[Tensor]], model=None, **others) -> dict:
        packed, rest = {}, {}
        for name, value in input_dict.items():
            module, last = _split(model, name)
            if last in expert_weights(module):
                value = value[0] if isinstance(value, list) else value
                packed[name] = pack(value, self.hf_quantizer.quantization_config)
            else:
                rest[name] = value
        return packed | super().convert(rest, model=model, **others)


@register_quantizer(METHOD)
class FourBitQuantizer(Bnb4BitHfQuantizer):
    """bitsandbytes' own, and the experts."""

    def param_needs_quantization(self, model: nn.Module, param_name: str, **others) -> bool:
        module, last = _split(model, param_name)
        found = last in expert_weights(module)
        return found or super().param_needs_quantization(model, param_name, **others)

    def _process_model_before_weight_loading(self, model: nn.Module, device_map, **others) -> None:
        check_experts(model)
        super()._process_model_before_weight_loading(model, device_map, **others)

    def get_quantize_ops(self) -> _Quantize:
        return _Quantize(self)
