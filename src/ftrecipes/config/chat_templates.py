"""What `--data.chat_template` may name: a template that comes with the program, or a file."""

BUILT_IN = ("alpaca", "chatml", "gemma", "llama3", "mistral", "zephyr")
"""Their texts are in data/templates."""

TEMPLATE_SUFFIXES = (".jinja", ".jinja2", ".j2")


def is_template_file(value: str) -> bool:
    """Whether `value` is a path, there or not, and no name."""
    return value.lower().endswith(TEMPLATE_SUFFIXES)
