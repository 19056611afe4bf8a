"""A YAML file of settings: sections nested, or flags by their dotted names."""

from typing import Any

import yaml

from ftrecipes.config.entries import Number
from ftrecipes.config.errors import ConfigError
from ftrecipes.config.faults import Fault


class _Loader(yaml.SafeLoader):
    """SafeLoader that keeps numbers and dates as they are written, and refuses a key given twice.

    The type of the field reads the text, as on a command line: by YAML 1.1 itself 010 is 8 and 1:30
    is 90. Of two equal keys PyYAML keeps the last one in silence.
    """

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        # Here and not where the mapping is made: by then the keys of `<<` may be among its own.
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            is_text = isinstance(key, yaml.ScalarNode)
            if is_text and key.value not in seen:
                seen.add(key.value)
                continue
            what = f"the key {key.value} is given twice" if is_text else "a key must be a text"
            raise yaml.composer.ComposerError(problem=what, problem_mark=key.start_mark)
        return node


def _number(loader: _Loader, node: yaml.ScalarNode) -> Number:
    return Number(loader.construct_scalar(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _number)
for _kind in ("float", "timestamp"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", yaml.SafeLoader.construct_yaml_str)


def read_settings(path: str) -> dict[str, Any]:
    """The mapping in the YAML file `path`. Raises ConfigError when there is none."""
    what = f"--config {path}: can not be used"
    try:
        with open(path, encoding="utf-8-sig") as file:
            content = yaml.load(file, Loader=_Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(Fault(what, got=str(error), expected="a YAML file").text) from error
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        # ValueError and OverflowError: "\Uffffffff"; RecursionError: [[[[...
        got = " ".join(str(error).split())
        raise ConfigError(Fault(what, got=got, expected="valid YAML").text) from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        got = "nothing" if content is None else type(content).__name__
        got = "a key that is not a text" if isinstance(content, dict) else got
        expected = "a mapping of flags to values, such as `lr: 0.0001`"
        raise ConfigError(Fault(what, got=got, expected=expected).text)
    return content
