"""What devices can do, asked without such a device."""

import pytest
import torch

from ftrecipes.runtime.devices import cuda_capability


@pytest.mark.parametrize("kind", ["cpu", "mps", "xpu", "meta"])
def test_other_kinds_have_no_cuda_capability(kind):
    assert cuda_capability(torch.device(kind)) == (0, 0)
