"""An operation whose results cannot fit fails before it is computed, so that it does not exhaust host memory."""

import resource
from collections.abc import Callable

import pytest
import torch

import legroom

OPERATIONS: dict[str, Callable[[], object]] = {
    "zeros": lambda: torch.zeros(2**40, device="cuda"),
    "empty": lambda: torch.empty(2**20, 2**20, device="cuda"),
    "full": lambda: torch.full((2**40,), 1.0, device="cuda"),
    "rand": lambda: torch.rand(2**40, device="cuda"),
    "arange": lambda: torch.arange(2**40, device="cuda"),
    "eye": lambda: torch.eye(2**17, device="cuda"),
    "new_zeros": lambda: torch.ones(1, device="cuda").new_zeros(2**40),
    "outer product": lambda: torch.ones(2**20, device="cuda").outer(torch.ones(2**20, device="cuda")),
    "broadcast": lambda: torch.ones(2**20, 1, device="cuda") + torch.ones(2**20, device="cuda"),
    "matmul": lambda: torch.ones(2**18, 1, device="cuda") @ torch.ones(1, 2**18, device="cuda"),
    "repeat": lambda: torch.ones(2**10, device="cuda").repeat(2**30),
    "expanded and copied": lambda: torch.ones(1, device="cuda").expand(2**40).contiguous(),
    "expanded and added": lambda: torch.ones(1, device="cuda").expand(2**40) + 1,
    "interpolate": lambda: torch.nn.functional.interpolate(
        torch.ones(1, 1, 64, 64, device="cuda"), scale_factor=2**14
    ),
    "one_hot": lambda: torch.nn.functional.one_hot(
        torch.zeros(2**16, dtype=torch.long, device="cuda"), 2**20
    ),
    "cdist": lambda: torch.cdist(torch.ones(2**18, 2, device="cuda"), torch.ones(2**18, 2, device="cuda")),
    "module": lambda: torch.nn.Linear(2**20, 2**20, device="cuda"),
    "moved": lambda: torch.zeros(1).expand(2**40).to("cuda"),
    "double": lambda: torch.ones(2**27, dtype=torch.uint8, device="cuda").double(),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_results_that_cannot_fit_are_not_computed(name: str) -> None:
    with legroom.VirtualGPU("512MiB"):
        torch.ones(1, device="cuda")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
            OPERATIONS[name]()
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024  # KiB
        assert torch.ones(3, device="cuda").sum() == 3


def test_host_tensors_and_views_of_any_size_are_allowed() -> None:
    with legroom.VirtualGPU("16MiB"):
        assert torch.zeros(2**25).numel() == 2**25
        assert torch.ones(1, device="cuda").expand(2**40).numel() == 2**40


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_results_without_a_dense_storage_are_allowed(device: str) -> None:
    large = 2**30
    with legroom.VirtualGPU("16MiB"):
        indices = torch.zeros(2, 1000, dtype=torch.long, device=device)
        values = torch.ones(1000, device=device)
        sparse = torch.sparse_coo_tensor(indices, values, (large, large), dtype=torch.float64)
        assert sparse.device.type == device
        assert (sparse + sparse).coalesce().values().tolist() == [2000.0]
        rows = torch.sparse_csr_tensor(torch.tensor([0, 1]), torch.tensor([5]), torch.ones(1), (1, large))
        assert rows.to(device).shape == (1, large)
        assert torch.zeros(1, large, device=device, layout=torch.sparse_coo).numel() == large


def test_memory_in_the_cache_is_available() -> None:
    with legroom.VirtualGPU("64MiB"):
        for _ in range(4):
            torch.ones(11 * 2**20, device="cuda")
        torch.ones(14 * 2**20, device="cuda")
