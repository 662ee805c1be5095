"""Whether an error on a virtual GPU would be a device-side assert on a real GPU."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from legroom.observe.dispatch.checks.failed_kernels import is_assert_on_gpu
from legroom.observe.virtual.gpu import VirtualGPU

Operation = Callable[[torch.Tensor, torch.Tensor], object]

IN_KERNEL: dict[str, Operation] = {
    "index tensor": lambda x, i: x[i],
    "index list": lambda x, i: x[[7]],
    "assignment to an index tensor": lambda x, i: x.__setitem__(i, 1.0),
    "gather": lambda x, i: x.gather(0, i.view(1, 1)),
    "index_select": lambda x, i: x.index_select(0, i),
    "embedding": lambda x, i: F.embedding(i, x),
    "cross_entropy": lambda x, i: F.cross_entropy(x[:1], i),
    "one_hot": lambda x, i: F.one_hot(i, 3),
    "binary_cross_entropy": lambda x, i: F.binary_cross_entropy(x + 2, x),
}
ON_HOST: dict[str, Operation] = {
    "number": lambda x, i: x[5],
    "assignment to a number": lambda x, i: x.__setitem__(5, 1.0),
    "scalar tensor": lambda x, i: x.sum()[0],
    "dimension": lambda x, i: x.sum(5),
    "select": lambda x, i: x.select(0, 7),
    "narrow": lambda x, i: x.narrow(0, 2, 5),
    "topk": lambda x, i: x.topk(9),
    "embedding in host memory": lambda x, i: F.embedding(torch.tensor([5]), torch.ones(3, 4)),
}


@pytest.mark.parametrize("case", [*IN_KERNEL, *ON_HOST])
def test_only_values_in_device_tensors_are_checked_by_a_kernel(case: str) -> None:
    operation = IN_KERNEL.get(case) or ON_HOST[case]
    with VirtualGPU("64MiB"):
        x, index = torch.ones(3, 4, device="cuda"), torch.tensor([5], device="cuda")
        with pytest.raises((IndexError, RuntimeError)) as failure:
            operation(x, index)
        assert is_assert_on_gpu(failure.value) is (case in IN_KERNEL)
