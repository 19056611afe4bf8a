"""A YAML file of settings: sections nested, or flags by their dotted names."""

from typing import Any

import yaml

from ftrecipes.config.errors import ConfigError
from ftrecipes.config.faults import Fault


class _UniqueKeyLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, where PyYAML keeps the last one in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"the key {key} is given twice", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_settings(path: str) -> dict[str, Any]:
    """The mapping in the YAML file `path`. Raises ConfigError when there is none."""
    what = f"--config {path}: can not be used"
    try:
        with open(path, encoding="utf-8-sig") as file:
            content = yaml.load(file, Loader=_UniqueKeyLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(Fault(what, got=str(error), expected="a YAML file").text) from error
    except yaml.YAMLError as error:
        got = " ".join(str(error).split())
        raise ConfigError(Fault(what, got=got, expected="valid YAML").text) from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        got = "nothing" if content is None else type(content).__name__
        got = "a key that is not a text" if isinstance(content, dict) else got
        expected = "a mapping of flags to values, such as `lr: 0.0001`"
        raise ConfigError(Fault(what, got=got, expected=expected).text)
    return content
