"""Steps, evaluations and samples of several ranks."""

import pytest

from tests import ranks

SAME = "tests.distributed.checks_train"
KINDS = "tests.distributed.checks_train_kinds"
FAULTS = "tests.distributed.checks_train_faults"

one = ranks.fixture(SAME, size=1)
two = ranks.fixture(SAME, size=2)
three = ranks.fixture(SAME, size=3)
four = ranks.fixture(SAME, size=4)
kinds = ranks.fixture(KINDS, size=2)
faults = ranks.fixture(FAULTS, size=2)


@pytest.mark.parametrize("size", ["one", "two", "three", "four"])
@pytest.mark.parametrize("name", ranks.names(SAME))
def test_any_number_of_ranks(request, size, name):
    ranks.assert_passed(request.getfixturevalue(size), name)


@pytest.mark.parametrize("name", ranks.names(KINDS))
def test_kinds_of_training(kinds, name):
    ranks.assert_passed(kinds, name)


@pytest.mark.parametrize("name", ranks.names(FAULTS))
def test_ranks_that_differ(faults, name):
    ranks.assert_passed(faults, name)
