"""What the tests of faults share."""

from collections.abc import Callable

import pytest

from ftrecipes.config.errors import ConfigError


def faults_of(action: Callable[[], object]) -> list[str]:
    """The faults of the ConfigError that `action` must raise."""
    with pytest.raises(ConfigError) as caught:
        action()
    assert caught.value.exit_code == 2
    return caught.value.faults
