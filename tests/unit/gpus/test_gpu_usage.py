"""The choice between NVML and CUDA for reading the used memory of a GPU."""

import contextlib
from collections.abc import Iterator

import pytest

from legroom.gpus import usage
from legroom.gpus.catalog import real_gpu
from legroom.gpus.machine import GpuProcess, VisibleGpu
from legroom.gpus.nvml import NA, NotAvailable
from legroom.units import GiB

CONTEXT = real_gpu("some GPU", 100 * GiB).context


class Machine:
    """The memory that NVML and CUDA report for one GPU, without the context that a CUDA query creates."""

    nvml = 0.0
    nvml_works = True
    cuda: float | NotAvailable = 0.0
    queries = 0
    has_context = False


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    machine = Machine()

    def visible() -> list[VisibleGpu]:
        processes = (GpuProcess(pid=7, bytes=GiB),)
        used = round(machine.nvml * GiB) + CONTEXT * (machine.has_context and machine.nvml_works)
        return [VisibleGpu(index=0, name="an unknown GPU", total=100 * GiB, used=used, processes=processes)]

    @contextlib.contextmanager
    def used_by_cuda() -> Iterator[list[int] | NotAvailable]:
        machine.queries += 1
        machine.has_context = True
        yield NA if isinstance(machine.cuda, NotAvailable) else [round(machine.cuda * GiB) + CONTEXT]
        machine.has_context = False

    monkeypatch.setattr(usage, "visible_gpus", visible)
    monkeypatch.setattr(usage, "_used_by_cuda", used_by_cuda)
    usage._nvml_is_reliable.cache_clear()
    yield machine
    usage._nvml_is_reliable.cache_clear()


def test_nvml_is_used_once_it_agrees_with_cuda(machine: Machine) -> None:
    machine.nvml = machine.cuda = 60
    (gpu,) = usage.gpus_in_use()
    assert gpu.used == 60 * GiB
    assert gpu.processes, "only NVML lists processes"
    machine.nvml = 10
    assert [gpu.used for gpu in usage.gpus_in_use()] == [10 * GiB]
    assert machine.queries == 1


def test_cuda_is_queried_if_nvml_does_not_see_the_context(machine: Machine) -> None:
    machine.nvml_works = False
    assert [gpu.used for gpu in usage.gpus_in_use()] == [0]
    machine.cuda = 60
    assert [(gpu.used, gpu.processes) for gpu in usage.gpus_in_use()] == [(60 * GiB, NA)]
    machine.cuda = 10
    assert [gpu.used for gpu in usage.gpus_in_use()] == [10 * GiB]


def test_nvml_is_used_if_cuda_cannot_be_queried(machine: Machine) -> None:
    machine.nvml, machine.cuda = 5, NA
    assert [gpu.used for gpu in usage.gpus_in_use()] == [5 * GiB]


def test_without_a_driver_cuda_reports_nothing() -> None:
    """With a driver, CUDA reports a number for each GPU."""
    with usage._used_by_cuda() as used:
        assert used is NA or (isinstance(used, list) and all(size > 0 for size in used))


def test_without_gpus_cuda_is_not_queried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "visible_gpus", list)
    monkeypatch.setattr(usage, "_used_by_cuda", lambda: pytest.fail("CUDA was queried"))
    assert usage.gpus_in_use() == []
