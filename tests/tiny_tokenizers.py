"""Small fast tokenizers made on the spot, with chat templates of the families people meet.

Two kinds of text model, as in the wild: byte-level BPE (GPT-2, Llama 3, Qwen) and BPE over marked
words with byte fallback (Llama 2, Mistral, Gemma). Vocabulary 300 to 400, no network.
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.tiny_templates import DEEPSEEK, LLAMA3_TOOLS, MISTRAL_TOOLS, QWEN, QWEN3

TEXT = [
    "the quick brown fox jumps over the lazy dog and the cat sees it",
    "What is the capital of France? The capital of France is Paris.",
    "system user assistant model instruction response challenge approach outcome",
    "Hello, how are you today? I am well, thank you. And you?",
    "We propose a method for summarization; results improve by 3.5 points.",
]

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{ message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    "{% endif %}"
)
# No generation prompt of its own, roles must alternate, the system text goes into the user's turn.
MISTRAL = (
    "{{ bos_token }}"
    "{% if messages[0]['role'] == 'system' %}"
    "{% set system = messages[0]['content'] + '\n\n' %}{% set turns = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}"
    "{% for message in turns %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
    "{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + (system if loop.first else '') + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}"
    "{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}"
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for message in messages %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
# Keeps the thoughts of the last answer only, and opens the thoughts in the generation prompt.
THINKING = (
    "{% for message in messages %}"
    "{% set text = message['content'] %}"
    "{% if message['role'] == 'assistant' and not loop.last and '</think>' in text %}"
    "{% set text = text.split('</think>')[-1].lstrip('\n') %}"
    "{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + text + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)
GENERATION = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}"
    "{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
EOS_LAST = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\n' + message['content'] }}"
    "{% if not loop.last %}{{ '\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '\n<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
# Plain words as marks, nothing that ends an answer.
NO_END = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


@dataclass(frozen=True)
class Family:
    """A chat template, the special tokens it writes, and the kind of text model it comes with."""

    template: str | None
    bos: str
    eos: str
    marks: tuple[str, ...] = ()
    kind: Literal["bytes", "words"] = "bytes"


FAMILIES = {
    "chatml": Family(CHATML, "<|endoftext|>", "<|im_end|>", ("<|im_start|>",)),
    "llama3": Family(
        LLAMA3, "<|begin|>", "<|eot_id|>", ("<|start_header_id|>", "<|end_header_id|>")
    ),
    "mistral": Family(MISTRAL, "<s>", "</s>", ("[INST]", "[/INST]"), kind="words"),
    "gemma": Family(GEMMA, "<bos>", "<eos>", ("<start_of_turn>", "<end_of_turn>"), kind="words"),
    "thinking": Family(THINKING, "<|endoftext|>", "<|im_end|>", ("<|im_start|>",)),
    "generation": Family(GENERATION, "<|endoftext|>", "<|im_end|>", ("<|im_start|>",)),
    "eos_last": Family(
        EOS_LAST, "<s>", "</s>", ("<|system|>", "<|user|>", "<|assistant|>"), kind="words"
    ),
    "no_end": Family(NO_END, "<|endoftext|>", "<|endoftext|>"),
    "none": Family(None, "<s>", "</s>"),
}
CHATML_MARKS = ("<|im_start|>", "<tool_call>", "</tool_call>")
TOOL_FAMILIES = {
    "qwen": Family(QWEN, "<|endoftext|>", "<|im_end|>", CHATML_MARKS),
    "llama3_tools": Family(
        LLAMA3_TOOLS, "<|begin|>", "<|eot_id|>", ("<|start_header_id|>", "<|end_header_id|>")
    ),
    "mistral_tools": Family(
        MISTRAL_TOOLS, "<s>", "</s>", ("[INST]", "[/INST]", "[TOOL_CALLS]"), kind="words"
    ),
    "qwen3": Family(QWEN3, "<|endoftext|>", "<|im_end|>", CHATML_MARKS),
    "deepseek": Family(DEEPSEEK, "<|begin|>", "<|end|>", ("<|User|>", "<|Assistant|>")),
}
"""Those that have a place for functions and their calls."""


def build_tokenizer(
    family: str,
    *,
    pad: Literal["own", "eos"] | None = "own",
    add_bos: bool = False,
    add_eos: bool = False,
) -> PreTrainedTokenizerFast:
    """A tokenizer of either; `save_pretrained` makes a folder that AutoTokenizer reads.

    `pad` is a token of its own, the end token, or none. With `add_bos` and `add_eos` the tokenizer
    puts these round every text that it encodes with special tokens.
    """
    made = (FAMILIES | TOOL_FAMILIES)[family]
    specials = dict.fromkeys([made.bos, made.eos, *made.marks])
    if pad == "own":
        specials["<pad>"] = None
    backend = Tokenizer.from_str(_train(made.kind, tuple(specials)))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=made.bos,
        eos_token=made.eos,
        pad_token={"own": "<pad>", "eos": made.eos, None: None}[pad],
        extra_special_tokens=list(made.marks),
        chat_template=made.template,
        add_bos_token=add_bos,
        add_eos_token=add_eos,
    )


@cache
def _train(kind: str, specials: tuple[str, ...]) -> str:
    """Serialized tokenizer: 256 bytes, the special tokens and some eighty merges."""
    if kind == "bytes":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=336 + len(specials),
            special_tokens=list(specials),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    else:
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
        tokenizer.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        trainer = trainers.BpeTrainer(
            vocab_size=360 + len(specials),
            special_tokens=[*specials, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))],
            show_progress=False,
        )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer.to_str()
