"""Which of two that tell how much of a GPU is used is believed."""

import contextlib
from collections.abc import Iterator

import pytest

from legroom.gpus import usage
from legroom.gpus.catalog import real_gpu
from legroom.gpus.machine import NA, GpuProcess, NotAvailable, VisibleGpu
from legroom.units import GiB

CONTEXT = real_gpu("some GPU", 100 * GiB).context


class Machine:
    """NVML's and CUDA's word for what is used of one GPU, without the context in which CUDA is asked."""

    nvml = 0.0
    nvml_works = True
    cuda: float | NotAvailable = 0.0
    asked = 0
    has_context = False


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    machine = Machine()

    def visible() -> list[VisibleGpu]:
        processes = (GpuProcess(pid=7, bytes=GiB),)
        used = round(machine.nvml * GiB) + CONTEXT * (machine.has_context and machine.nvml_works)
        return [VisibleGpu(index=0, name="an unknown GPU", total=100 * GiB, used=used, processes=processes)]

    @contextlib.contextmanager
    def asked_of_cuda() -> Iterator[list[int] | NotAvailable]:
        machine.asked += 1
        machine.has_context = True
        yield NA if isinstance(machine.cuda, NotAvailable) else [round(machine.cuda * GiB) + CONTEXT]
        machine.has_context = False

    monkeypatch.setattr(usage, "visible_gpus", visible)
    monkeypatch.setattr(usage, "_asked_of_cuda", asked_of_cuda)
    usage._nvml_tells_the_truth.cache_clear()
    yield machine
    usage._nvml_tells_the_truth.cache_clear()


def test_nvml_that_agrees_with_cuda_is_believed_from_then_on(machine: Machine) -> None:
    machine.nvml = machine.cuda = 60
    (gpu,) = usage.gpus_in_use()
    assert gpu.used == 60 * GiB
    assert gpu.processes, "NVML alone knows processes"
    machine.nvml = 10
    assert [gpu.used for gpu in usage.gpus_in_use()] == [10 * GiB]
    assert machine.asked == 1


def test_nvml_that_does_not_even_see_the_context_is_not_believed(machine: Machine) -> None:
    machine.nvml_works = False
    assert [gpu.used for gpu in usage.gpus_in_use()] == [0]
    machine.cuda = 60
    assert [(gpu.used, gpu.processes) for gpu in usage.gpus_in_use()] == [(60 * GiB, NA)]
    machine.cuda = 10
    assert [gpu.used for gpu in usage.gpus_in_use()] == [10 * GiB]


def test_where_cuda_cannot_be_asked_nvml_is_all_there_is(machine: Machine) -> None:
    machine.nvml, machine.cuda = 5, NA
    assert [gpu.used for gpu in usage.gpus_in_use()] == [5 * GiB]


def test_without_a_driver_cuda_does_not_answer() -> None:
    """This machine has none; with one it tells a number for each GPU."""
    with usage._asked_of_cuda() as told:
        assert told is NA or (isinstance(told, list) and all(size > 0 for size in told))


def test_without_gpus_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "visible_gpus", list)
    monkeypatch.setattr(usage, "_asked_of_cuda", lambda: pytest.fail("there is nothing to ask"))
    assert usage.gpus_in_use() == []
