"""Loading in 4 or 8 bits as bitsandbytes does, with the experts of mixtures too.

Through the hooks of transformers for quantization methods of one's own
(https://huggingface.co/docs/transformers/quantization/contribute): each weight is quantized as soon
as it has been read, so that the device holds one at full size at a time.
"""

from torch import Tensor, nn
from transformers import BitsAndBytesConfig
from transformers.integrations.bitsandbytes import Bnb4bitQuantize
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.quantizer_bnb_4bit import Bnb4BitHfQuantizer
from transformers.quantizers.quantizer_bnb_8bit import Bnb8BitHfQuantizer

from ftrecipes.model.experts import check_experts, expert_weights, pack

FOUR_BIT, EIGHT_BIT = "ftrecipes_4bit", "ftrecipes_8bit"


@register_quantization_config(FOUR_BIT)
class FourBitConfig(BitsAndBytesConfig):
    """The settings of bitsandbytes, under a name that leads to a quantizer below."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.quant_method = FOUR_BIT


@register_quantization_config(EIGHT_BIT)
class EightBitConfig(BitsAndBytesConfig):
    """The same for 8 bits."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.quant_method = EIGHT_BIT


_READ_ITSELF = (".dt_proj", ".weights_proj", ".prediction_coefs", ".correction_coefs")


class _KeepsReadPast:
    """Layers whose weights a model reads itself stay at full size; all are small.

    Routers, which choose the experts (LongCat), the step projection of Mamba, the head weights of
    sparse attention (DeepSeek V3.2), and the coefficients of Gemma 3n.
    """

    @staticmethod
    def get_modules_to_not_convert(model: nn.Module, *settings, **others) -> list[str]:
        kept = Bnb4BitHfQuantizer.get_modules_to_not_convert(model, *settings, **others)
        return kept + [
            name
            for name, module in model.named_modules()
            if type(module).__name__.endswith("Router") or name.endswith(_READ_ITSELF)
        ]


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


@register_quantizer(EIGHT_BIT)
class EightBitQuantizer(_KeepsReadPast, Bnb8BitHfQuantizer):
    """bitsandbytes' own, without those."""


@register_quantizer(FOUR_BIT)
class FourBitQuantizer(_KeepsReadPast, Bnb4BitHfQuantizer):
    """bitsandbytes' own, without those, and with the experts."""

    def param_needs_quantization(self, model: nn.Module, param_name: str, **others) -> bool:
        module, last = _split(model, param_name)
        found = last in expert_weights(module)
        return found or super().param_needs_quantization(model, param_name, **others)

    def _process_model_before_weight_loading(self, model: nn.Module, device_map, **others) -> None:
        check_experts(model)
        super()._process_model_before_weight_loading(model, device_map, **others)

    def get_quantize_ops(self) -> _Quantize:
        return _Quantize(self)
