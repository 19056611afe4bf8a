"""Several ranks build what one process builds: adapters too."""

import pytest

from tests import ranks

CHECKS = "tests.distributed.checks_adapted"

two = ranks.fixture(CHECKS, size=2)
three = ranks.fixture(CHECKS, size=3)


@pytest.mark.parametrize("size", ["two", "three"])
@pytest.mark.parametrize("name", ranks.names(CHECKS))
def test_adapted(request, size, name):
    ranks.assert_passed(request.getfixturevalue(size), name)
