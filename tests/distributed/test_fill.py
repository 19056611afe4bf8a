"""Several ranks fill a model, each its own share."""

import pytest

from tests import ranks

CHECKS = "tests.distributed.checks_fill"
TWO = ranks.fixture(CHECKS, size=2)
THREE = ranks.fixture(CHECKS, size=3)
FOUR = ranks.fixture(CHECKS, size=4)


@pytest.mark.parametrize("name", ranks.names(CHECKS))
@pytest.mark.parametrize("size", ["TWO", "THREE", "FOUR"])
def test_ranks(size, name, request):
    ranks.assert_passed(request.getfixturevalue(size), name)
