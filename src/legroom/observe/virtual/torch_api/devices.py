"""Which GPUs are there, what are they, which is selected: `torch.cuda` and `torch.accelerator` asked of virtual ones.

torch's own Python functions stay in place: they check their arguments and raise their errors, then call a C function
(`torch._C._cuda_getDevice`). Those C functions are what is replaced, or added on a CPU build. So names that a script
imported long before (`from torch.cuda import is_available`) answer too.

Memory, compute capability, multiprocessors and shared memory are those of the device's `GpuSpec`. Cache size, clock rates and
the like are always an A100's: no arithmetic is timed by them.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn
from uuid import NAMESPACE_OID, UUID, uuid5

import torch

from legroom.observe.virtual.patching import Replacement, answer, optional_module, table
from legroom.observe.virtual.protocols import Device, Host
from legroom.units import MiB

CUDA_VERSION = "12.8"
"""What `torch.version.cuda` says on a build of torch that has none."""


def replacements(host: Host) -> Iterable[Replacement]:
    """Everything about the presence, the selection and the properties of devices."""
    answers = _Answers(host)
    cuda = optional_module("torch.cuda")
    accelerator = torch.device("cuda")
    yield from table(
        torch._C,
        {
            "_cuda_init": answer(),
            "_cuda_isInBadFork": answer(False),
            "_cuda_getDeviceCount": answers.count,
            "_cuda_getDevice": answers.current,
            "_cuda_setDevice": answers.select,
            "_cuda_exchangeDevice": answers.exchange,
            "_cuda_maybeExchangeDevice": answers.exchange,
            "_cuda_hasPrimaryContext": answer(True),
            "_cuda_getArchFlags": answers.architectures,
            "_cuda_getCompiledVersion": answer(12080),
            "_cuda_canDeviceAccessPeer": answers.can_access_peer,
            "_cuda_synchronize": answer(),
            "_cuda_ipc_collect": answer(),
            "_cuda_sleep": answer(),
            "_cuda_getCurrentBlasHandle": answer(0),
            "_cuda_getCurrentSolverHandle": answer(0),
            "_cuda_clearCublasWorkspaces": answer(),
            "_cuda_get_sync_debug_mode": answers.get_sync_debug_mode,
            "_cuda_set_sync_debug_mode": answers.set_sync_debug_mode,
            "_cuda_isCurrentStreamCapturing": answer(False),
            "_accelerator_getAccelerator": answer(accelerator),
            "_get_accelerator": answer(accelerator),
            "_accelerator_deviceCount": answers.count,
            "_accelerator_getDeviceIndex": answers.current,
            "_accelerator_setDeviceIndex": answers.select,
            "_accelerator_exchangeDevice": answers.exchange,
            "_accelerator_maybeExchangeDevice": answers.exchange,
            "_accelerator_synchronizeDevice": answers.check,
            "_accelerator_hooks_device_count": answers.count,
            "_accelerator_hooks_get_current_device": answers.current,
            "_accelerator_hooks_set_current_device": answers.select,
            "_accelerator_hooks_exchange_device": answers.exchange,
            "_accelerator_hooks_maybe_exchange_device": answers.exchange,
        },
        add=True,
    )
    yield from table(
        cuda,
        {
            # Taken as done: the real initialisation would load drivers and register kernels for good.
            "_initialized": True,
            "_cached_device_count": len(host.devices),
            "_is_in_bad_fork": answer(False),
            "_exchange_device": answers.exchange,
            "_maybe_exchange_device": answers.exchange,
            "_get_device_properties": answers.properties,
            "_cudart": _Runtime(answers),
        },
        add=True,
    )
    yield from table(
        cuda,
        {
            "utilization": answers.idle(0),
            "memory_usage": answers.idle(0),
            "temperature": answers.idle(25),
            "power_draw": answers.idle(0),
            "clock_rate": answers.idle(0),
        },
    )
    yield from table(optional_module("torch.cuda.graphs"), {"_cuda_isCurrentStreamCapturing": answer(False)})
    yield from table(optional_module("torch.backends.cuda"), {"is_built": answer(True)})
    yield from table(
        torch.accelerator,
        {"get_device_capability": answers.accelerator_capability},
    )
    if torch.version.cuda is None:
        yield from table(torch.version, {"cuda": CUDA_VERSION})


def invalid_ordinal() -> Exception:
    """CUDA's own complaint about a device that is not there."""
    kind = getattr(torch, "AcceleratorError", RuntimeError)
    error: Exception = kind(
        "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?"
    )
    return error


def index_of(host: Host, device: Any) -> int:
    """A device as people write it (None, number, text, torch.device), as a valid index; CUDA's error otherwise."""
    index = torch.cuda._utils._get_device_index(device, optional=True)
    if not 0 <= index < len(host.devices):
        raise invalid_ordinal()
    return int(index)


def free_bytes(device: Device) -> int:
    """What `cudaMemGetInfo` would call free: all that neither the context nor PyTorch's allocator holds."""
    return max(device.capacity - device.context_bytes - device.allocator.reserved, 0)


class _Answers:
    """The C functions, in Python."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._sync_debug_mode = 0
        self._properties = [DeviceProperties.of(device) for device in host.devices]

    def count(self) -> int:
        return len(self._host.devices)

    def architectures(self) -> str:
        found = {device.spec.capability for device in self._host.devices}
        return " ".join(f"sm_{major}{minor}" for major, minor in sorted(found))

    def current(self) -> int:
        return self._host.current

    def check(self, index: int) -> None:
        if not 0 <= index < len(self._host.devices):
            raise invalid_ordinal()

    def select(self, index: int) -> None:
        if index >= 0:
            self.check(index)
            self._host.current = index

    def exchange(self, index: int) -> int:
        if index < 0:
            return -1
        before = self._host.current
        self.select(index)
        return before

    def can_access_peer(self, device: int, peer: int) -> bool:
        return device != peer

    def properties(self, index: int) -> "DeviceProperties":
        self.check(index)
        return self._properties[index]

    def memory_info(self, index: int) -> tuple[int, int]:
        self.check(index)
        device = self._host.devices[index]
        return free_bytes(device), device.capacity

    def get_sync_debug_mode(self) -> int:
        return self._sync_debug_mode

    def set_sync_debug_mode(self, mode: int) -> None:
        self._sync_debug_mode = mode

    def accelerator_capability(self, device: Any = None, /) -> dict[str, Any]:
        index_of(self._host, device)
        return {
            "supported_dtypes": {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
        }

    def idle(self, figure: int) -> Any:
        """A sensor of a device that does no work; it still insists on a device that exists."""

        def read(device: Any = None) -> int:
            index_of(self._host, device)
            return figure

        return read


@dataclass(frozen=True, kw_only=True)
class DeviceProperties:
    """`torch.cuda.get_device_properties()`."""

    name: str
    total_memory: int
    major: int
    minor: int
    multi_processor_count: int
    max_threads_per_multi_processor: int
    max_threads_per_block: int = 1024
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 49152
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    warp_size: int = 32
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    L2_cache_size: int = 40 * MiB
    memory_bus_width: int = 5120
    memory_clock_rate: int = 1215000
    clock_rate: int = 1410000
    pci_domain_id: int = 0
    pci_bus_id: int = 0
    pci_device_id: int = 0
    gcnArchName: str = ""  # noqa: N815  (torch's name)
    uuid: UUID = field(default_factory=lambda: UUID(int=0))

    @classmethod
    def of(cls, device: Device) -> "DeviceProperties":
        # The same device has the same identifier in every run: scripts use it as a key.
        identifier = uuid5(NAMESPACE_OID, f"legroom virtual gpu {device.index}")
        spec = device.spec
        return cls(
            name=device.name,
            total_memory=spec.total,
            major=spec.capability[0],
            minor=spec.capability[1],
            multi_processor_count=spec.sm_count,
            max_threads_per_multi_processor=spec.threads_per_sm,
            shared_memory_per_block_optin=spec.shared_memory_per_block,
            shared_memory_per_multiprocessor=spec.shared_memory_per_sm,
            pci_bus_id=device.index + 1,
            uuid=identifier,
        )

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // MiB}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, L2_cache_size={self.L2_cache_size // MiB}MB)"
        )


class CudaError(enum.IntEnum):
    """The values of `cudaError` that a script can meet here."""

    success = 0


class _Runtime:
    """`torch.cuda.cudart()`: what torch and scripts call of the CUDA runtime."""

    cudaError = CudaError  # noqa: N815  (CUDA's name)

    def __init__(self, answers: _Answers) -> None:
        self.cudaMemGetInfo = answers.memory_info
        for name in (
            "cudaProfilerStart",
            "cudaProfilerStop",
            "cudaHostRegister",
            "cudaHostUnregister",
            "cudaStreamCreate",
            "cudaStreamDestroy",
            "cudaDeviceSynchronize",
        ):
            setattr(self, name, answer(CudaError.success))

    def cudaGetErrorString(self, error: int) -> str:  # noqa: N802
        return "no error" if error == CudaError.success else "unknown error"

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"the CUDA runtime of a virtual GPU has no '{name}'")
