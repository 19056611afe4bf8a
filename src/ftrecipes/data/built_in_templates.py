"""Chat templates that are asked for by name or as a file, in place of the tokenizer's own."""

from importlib.resources import files
from pathlib import Path

from jinja2 import TemplateSyntaxError
from transformers import PreTrainedTokenizerBase

from ftrecipes.config.chat_templates import is_template_file
from ftrecipes.config.errors import DataError
from ftrecipes.config.sections import DataConfig
from ftrecipes.data.encode import opening_ids
from ftrecipes.data.template import REFUSALS
from ftrecipes.runtime import log

QUESTION, ANSWER = {"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}


def settle_chat_template(tokenizer: PreTrainedTokenizerBase, data: DataConfig) -> None:
    """Give `tokenizer` the template that `data.chat_template` names; without one it keeps its own.

    A built-in template writes BOS first where the tokenizer does so itself. A token that ends
    answers becomes the tokenizer's end token, because generation stops there; the log says so. Both
    are saved with the tokenizer. Raises DataError for a file that can not be read as a template.
    """
    name = data.chat_template
    if name is None:
        return
    if is_template_file(name):
        tokenizer.chat_template = _read(name)
    else:
        tokenizer.chat_template = built_in(name, with_bos=_opens_with_bos(tokenizer))
    try:
        text = tokenizer.apply_chat_template([QUESTION, ANSWER], tokenize=False)
    except TemplateSyntaxError as error:
        raise DataError(
            f"--data.chat_template {name}: not a template.\n"
            f"  got: line {error.lineno}: {error.message}\n"
            "  expected: a Jinja template as transformers reads it\n  do: mend the file"
        ) from error
    except REFUSALS:
        return  # it may be for dialogs of another shape; rows that it refuses are told one by one
    _settle_end(tokenizer, text.rpartition(ANSWER["content"])[2].lstrip())


def built_in(name: str, *, with_bos: bool) -> str:
    """The text of a template that comes with the program."""
    file = files("ftrecipes.data").joinpath("templates", f"{name}.jinja")
    return ("{{- bos_token }}\n" if with_bos else "") + file.read_text(encoding="utf-8")


def _read(name: str) -> str:
    try:
        return Path(name).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"--data.chat_template {name}: can not be read.\n  got: {error}\n"
            "  expected: a text file in UTF-8"
        ) from error


def _opens_with_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    return tokenizer.bos_token_id is not None and tokenizer.bos_token_id in opening_ids(tokenizer)


def _settle_end(tokenizer: PreTrainedTokenizerBase, ending: str) -> None:
    """Make the token that `ending`, the text behind an answer, begins with the end token."""
    before = tokenizer.eos_token
    if before is not None and before in ending:
        return
    marks = [token for token in tokenizer.added_tokens_encoder if ending.startswith(token)]
    if marks:
        tokenizer.eos_token = max(marks, key=len)
        log.info(
            f"answers end with {tokenizer.eos_token}, which is the tokenizer's end token from now "
            f"on (it was {before})"
        )
