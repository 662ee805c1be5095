"""The number, the properties and the selection of virtual devices, in `torch.cuda` and `torch.accelerator`.

PyTorch's own Python functions are not replaced. The Python functions check their arguments, raise their own errors, and
then call a C function such as `torch._C._cuda_getDevice`. This module replaces the C functions, or adds them on a CPU
build. Therefore functions that a script imported earlier (`from torch.cuda import is_available`) also work.

Memory, compute capability, multiprocessors and shared memory come from the `GpuSpec` of the device. The cache size, the
clock rates and similar values affect no result, so they are always the values of an A100.
"""

import contextlib
import copyreg
import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn
from uuid import NAMESPACE_OID, UUID, uuid5

import torch

from legroom.observe.virtual.host import VirtualDevice, VirtualHost
from legroom.observe.virtual.patching import Replacement, answer, optional_module, replaced, table
from legroom.units import MiB

CUDA_VERSION = "12.8"


def replacements(host: VirtualHost) -> Iterable[Replacement]:
    functions = _DeviceFunctions(host)
    cuda = optional_module("torch.cuda")
    accelerator = torch.device("cuda")
    yield from table(
        torch._C,
        {
            "_cuda_init": answer(),
            "_cuda_isInBadFork": answer(False),
            "_cuda_getDeviceCount": functions.count,
            "_cuda_getDevice": functions.current,
            "_cuda_setDevice": functions.select,
            "_cuda_exchangeDevice": functions.exchange,
            "_cuda_maybeExchangeDevice": functions.exchange,
            "_cuda_hasPrimaryContext": answer(True),
            "_cuda_getArchFlags": functions.architectures,
            "_cuda_getCompiledVersion": answer(12080),
            "_cuda_canDeviceAccessPeer": functions.can_access_peer,
            "_cuda_synchronize": answer(),
            "_cuda_ipc_collect": answer(),
            "_cuda_sleep": answer(),
            "_cuda_getCurrentBlasHandle": answer(0),
            "_cuda_getCurrentSolverHandle": answer(0),
            "_cuda_clearCublasWorkspaces": answer(),
            "_cuda_get_sync_debug_mode": functions.get_sync_debug_mode,
            "_cuda_set_sync_debug_mode": functions.set_sync_debug_mode,
            "_cuda_isCurrentStreamCapturing": answer(False),
            "_accelerator_getAccelerator": answer(accelerator),
            "_get_accelerator": answer(accelerator),
            "_accelerator_deviceCount": functions.count,
            "_accelerator_getDeviceIndex": functions.current,
            "_accelerator_setDeviceIndex": functions.select,
            "_accelerator_exchangeDevice": functions.exchange,
            "_accelerator_maybeExchangeDevice": functions.exchange,
            "_accelerator_synchronizeDevice": functions.check,
            "_accelerator_hooks_device_count": functions.count,
            "_accelerator_hooks_get_current_device": functions.current,
            "_accelerator_hooks_set_current_device": functions.select,
            "_accelerator_hooks_exchange_device": functions.exchange,
            "_accelerator_hooks_maybe_exchange_device": functions.exchange,
        },
        add=True,
    )
    yield from table(
        cuda,
        {
            # The real initialization would load drivers and register kernels permanently.
            "_initialized": True,
            "_lazy_init": functions.initialize,
            "_lazy_call": _call_now,
            "is_initialized": functions.is_initialized,
            "_cached_device_count": len(host.devices),
            "_is_in_bad_fork": answer(False),
            "_exchange_device": functions.exchange,
            "_maybe_exchange_device": functions.exchange,
            "_get_device_properties": functions.properties,
            "_cudart": _Runtime(functions),
        },
        add=True,
    )
    yield from table(
        cuda,
        {
            "utilization": functions.idle(0),
            "memory_usage": functions.idle(0),
            "temperature": functions.idle(25),
            "power_draw": functions.idle(0),
            "clock_rate": functions.idle(0),
        },
    )
    yield from table(optional_module("torch.cuda.graphs"), {"_cuda_isCurrentStreamCapturing": answer(False)})
    yield from table(optional_module("torch.backends.cuda"), {"is_built": answer(True)})
    yield from table(
        torch.accelerator,
        {"get_device_capability": functions.accelerator_capability},
    )
    if torch.version.cuda is None:
        yield from table(torch.version, {"cuda": CUDA_VERSION})


def _call_now(function: Callable[[], object], **options: Any) -> None:
    # PyTorch would delay the call until CUDA is initialized.
    function()


def invalid_ordinal() -> Exception:
    kind = getattr(torch, "AcceleratorError", RuntimeError)
    error: Exception = kind(
        "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?"
    )
    return error


def index_of(host: VirtualHost, device: Any) -> int:
    """Return the index of a device given as None, a number, a string or a torch.device. Raises CUDA's error if the
    device does not exist.
    """
    index = torch.cuda._utils._get_device_index(device, optional=True)
    if not 0 <= index < len(host.devices):
        raise invalid_ordinal()
    return int(index)


def free_bytes(device: VirtualDevice) -> int:
    """Return the free memory as `cudaMemGetInfo` reports it: the capacity minus the memory of the context and the
    memory that PyTorch's allocator reserves.
    """
    return max(device.capacity - device.context_bytes - device.allocator.reserved, 0)


class _DeviceFunctions:
    def __init__(self, host: VirtualHost) -> None:
        self._host = host
        self._is_initialized = False
        self._sync_debug_mode = 0
        self._properties = [DeviceProperties.of(device) for device in host.devices]

    def count(self) -> int:
        return len(self._host.devices)

    def architectures(self) -> str:
        found = {device.spec.capability for device in self._host.devices}
        return " ".join(f"sm_{major}{minor}" for major, minor in sorted(found))

    def initialize(self) -> None:
        self._is_initialized = True

    def is_initialized(self) -> bool:
        """Return whether the program has used a device. Libraries select the device of a rank only if this value is
        False.
        """
        return self._is_initialized or any(device.allocator.peak_reserved for device in self._host.devices)

    def current(self) -> int:
        self._is_initialized = True
        return self._host.current

    def check(self, index: int) -> None:
        if not 0 <= index < len(self._host.devices):
            raise invalid_ordinal()

    def select(self, index: int) -> None:
        if index >= 0:
            self.check(index)
            self._is_initialized = True
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

    def idle(self, value: int) -> Any:
        def read(device: Any = None) -> int:
            index_of(self._host, device)
            return value

        return read


@dataclass(frozen=True, kw_only=True)
class DeviceProperties:
    """The result of `torch.cuda.get_device_properties()`."""

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
    def of(cls, device: VirtualDevice) -> "DeviceProperties":
        # The same value in every run, because scripts use it as a key.
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
    success = 0


class _Runtime:
    """The result of `torch.cuda.cudart()`, with the CUDA runtime functions that torch and scripts call."""

    cudaError = CudaError  # noqa: N815  (CUDA's name)

    def __init__(self, functions: _DeviceFunctions) -> None:
        self.cudaMemGetInfo = functions.memory_info
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
        raise AttributeError(f"The CUDA runtime of a virtual GPU does not support `{name}`.")


_Device = torch.device


class _DeviceMeta(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> torch.device:
        if len(args) == 1 and not kwargs and type(args[0]) is int:
            return _Device("cuda", args[0])
        return _Device(*args, **kwargs)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _Device)

    def __subclasscheck__(cls, kind: type) -> bool:
        return kind is cls or issubclass(kind, _Device)


@contextlib.contextmanager
def integers_name_devices() -> Iterator[None]:
    """Inside the `with` block, `torch.device(1)` is `cuda:1`, as on a GPU build of torch. A CPU build of torch raises
    an error for an integer.

    `torch.device` cannot be subclassed, so a different class replaces it. The replacement class creates real devices,
    and `isinstance(device, torch.device)` stays True for real devices. Pickling looks up a class by name and would find
    the replacement class. Therefore devices are pickled through the replacement class while it is active. The pickled
    data refers to `torch.device` as usual.
    """
    replacement = _DeviceMeta("device", (), {"__module__": "torch", "__doc__": _Device.__doc__})

    def reduced(device: torch.device) -> tuple[Any, tuple[Any, ...]]:
        return replacement, (device.type,) if device.index is None else (device.type, device.index)

    copyreg.pickle(_Device, reduced)
    try:
        with replaced(table(torch, {"device": replacement})):
            yield
    finally:
        copyreg.dispatch_table.pop(_Device, None)
