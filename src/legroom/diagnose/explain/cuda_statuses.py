"""The CUDA status codes, grouped by the page that explains them.

 A status appears in logs in five forms: `cudaErrorIllegalAddress`
(runtime), `CUDA_ERROR_ILLEGAL_ADDRESS` (driver), `hipErrorIllegalAddress` (AMD), its number (`error=700`), and its
message. A message that is specific to CUDA matches anywhere in a log. A generic message matches only after a prefix
such as `CUDA error:`. `oom.known_messages` contains the out-of-memory statuses.
"""

import re
from typing import NamedTuple


class CudaStatus(NamedTuple):
    number: int
    name: str
    """The name in the CUDA runtime, without `cudaError`."""
    message: str
    driver: str = ""
    """The name in the CUDA driver, without `CUDA_ERROR_`, if it differs from the name in the runtime."""


_SPECIFIC_WORDS = 3
"""The minimum number of words in a message that is assumed to come only from CUDA."""
_LARGE_NUMBER = 700
"""The smallest status number that is assumed to come only from CUDA."""
_OF_THE_SYSTEM = ("operation not permitted", "operation not supported")
"""Messages that the operating system also uses."""

_FAULT = (
    CudaStatus(700, "IllegalAddress", "an illegal memory access was encountered"),
    CudaStatus(715, "IllegalInstruction", "an illegal instruction was encountered"),
    CudaStatus(716, "MisalignedAddress", "misaligned address"),
    CudaStatus(717, "InvalidAddressSpace", "operation not supported on global/shared address space"),
    CudaStatus(718, "InvalidPc", "invalid program counter"),
    CudaStatus(719, "LaunchFailure", "unspecified launch failure", "LAUNCH_FAILED"),
)
_ASSERT = (
    CudaStatus(59, "Assert", "device-side assert triggered"),
    CudaStatus(710, "Assert", "device-side assert triggered"),
)
_HARDWARE = (
    CudaStatus(214, "ECCUncorrectable", "uncorrectable ECC error encountered", "ECC_UNCORRECTABLE"),
    CudaStatus(220, "NvlinkUncorrectable", "uncorrectable NVLink error detected during the execution"),
    CudaStatus(702, "LaunchTimeout", "the launch timed out and was terminated"),
    CudaStatus(714, "HardwareStackError", "hardware stack error"),
    CudaStatus(910, "ExternalDevice", "the async operation in another process or external device failed"),
    CudaStatus(721, "TensorMemoryLeak", "tensor memory leak detected"),
    CudaStatus(226, "Contained", "invalid access of peer GPU memory over nvlink or a hardware error"),
)
_TOO_LARGE = (
    CudaStatus(7, "LaunchOutOfResources", "too many resources requested for launch"),
    CudaStatus(701, "LaunchOutOfResources", "too many resources requested for launch"),
    CudaStatus(720, "CooperativeLaunchTooLarge", "too many blocks in cooperative launch"),
)
_NO_KERNELS = (
    CudaStatus(98, "InvalidDeviceFunction", "invalid device function"),
    CudaStatus(200, "InvalidKernelImage", "device kernel image is invalid", "INVALID_IMAGE"),
    CudaStatus(
        209, "NoKernelImageForDevice", "no kernel image is available for execution", "NO_BINARY_FOR_GPU"
    ),
    CudaStatus(218, "InvalidPtx", "a PTX JIT compilation failed"),
    CudaStatus(221, "JitCompilerNotFound", "PTX JIT compiler library not found"),
    CudaStatus(222, "UnsupportedPtxVersion", "the provided PTX was compiled with an unsupported toolchain"),
    CudaStatus(223, "JitCompilationDisabled", "PTX JIT compilation was disabled"),
    CudaStatus(300, "InvalidSource", "device kernel image is invalid"),
)
_DRIVER = (
    CudaStatus(34, "StubLibrary", "CUDA driver is a stub library"),
    CudaStatus(35, "InsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"),
    CudaStatus(36, "CallRequiresNewerDriver", "API call is not supported in the installed CUDA driver"),
    CudaStatus(
        803, "SystemDriverMismatch", "system has unsupported display driver / cuda driver combination"
    ),
    CudaStatus(804, "CompatNotSupportedOnDevice", "forward compatibility was attempted on non supported HW"),
)
_NO_GPU = (
    CudaStatus(3, "InitializationError", "initialization error", "NOT_INITIALIZED"),
    CudaStatus(
        46, "DevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable", "DEVICE_UNAVAILABLE"
    ),
    CudaStatus(100, "NoDevice", "no CUDA-capable device is detected"),
    CudaStatus(101, "InvalidDevice", "invalid device ordinal"),
    CudaStatus(216, "DeviceAlreadyInUse", "exclusive-thread device already in use by a different thread"),
    CudaStatus(802, "SystemNotReady", "system not yet initialized"),
    CudaStatus(805, "MpsConnectionFailed", "MPS client failed to connect to the MPS control daemon"),
    CudaStatus(807, "MpsServerNotReady", "the MPS server is not ready to accept new MPS client requests"),
    CudaStatus(808, "MpsMaxClientsReached", "resources required to create MPS client have been exhausted"),
    CudaStatus(809, "MpsMaxConnectionsReached", "resources required to support device connections"),
    CudaStatus(999, "Unknown", "unknown error"),
)
_LIBRARY = (
    CudaStatus(302, "SharedObjectSymbolNotFound", "shared object symbol not found"),
    CudaStatus(303, "SharedObjectInitFailed", "shared object initialization failed"),
    CudaStatus(500, "SymbolNotFound", "named symbol not found", "NOT_FOUND"),
)
_REFUSED = (
    CudaStatus(1, "InvalidValue", "invalid argument"),
    CudaStatus(4, "CudartUnloading", "driver shutting down", "DEINITIALIZED"),
    CudaStatus(9, "InvalidConfiguration", "invalid configuration argument"),
    CudaStatus(11, "InvalidValue", "invalid argument"),
    CudaStatus(12, "InvalidPitchValue", "invalid pitch argument"),
    CudaStatus(13, "InvalidSymbol", "invalid device symbol"),
    CudaStatus(201, "DeviceUninitialized", "invalid device context", "INVALID_CONTEXT"),
    CudaStatus(304, "OperatingSystem", "OS call failed or operation not supported on this OS"),
    CudaStatus(400, "InvalidResourceHandle", "invalid resource handle", "INVALID_HANDLE"),
    CudaStatus(401, "IllegalState", "the operation cannot be performed in the present state"),
    CudaStatus(600, "NotReady", "device not ready"),
    CudaStatus(704, "PeerAccessAlreadyEnabled", "peer access is already enabled"),
    CudaStatus(709, "ContextIsDestroyed", "context is destroyed"),
    CudaStatus(712, "HostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"),
    CudaStatus(800, "NotPermitted", "operation not permitted"),
    CudaStatus(801, "NotSupported", "operation not supported"),
    CudaStatus(900, "StreamCaptureUnsupported", "operation not permitted when stream is capturing"),
    CudaStatus(901, "StreamCaptureInvalidated", "operation failed due to a previous error during capture"),
    CudaStatus(904, "StreamCaptureUnjoined", "operation failed on a capturing stream with unjoined work"),
    CudaStatus(906, "StreamCaptureImplicit", "operation would make the legacy stream depend on a capturing blocking stream"),
    CudaStatus(908, "StreamCaptureWrongThread", "attempt to terminate a thread-local capture sequence from another thread"),
)  # fmt: skip
_PEERS = (
    CudaStatus(217, "PeerAccessUnsupported", "peer access is not supported between these two devices"),
    CudaStatus(711, "TooManyPeers", "peer mapping resources exhausted"),
)

STATUSES: dict[str, tuple[CudaStatus, ...]] = {
    "LG710": _ASSERT,
    "LG711": _FAULT,
    "LG725": _HARDWARE,
    "LG750": _TOO_LARGE,
    "LG722": _NO_KERNELS,
    "LG723": _DRIVER,
    "LG724": _NO_GPU,
    "LG726": _LIBRARY,
    "LG731": _PEERS,
    "LG728": _REFUSED,
}


def pattern_of(statuses: tuple[CudaStatus, ...]) -> str:
    variants = []
    for status in statuses:
        driver = status.driver or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", status.name).upper()
        variants += [rf"(?:cuda|hip)Error{status.name}\b", rf"(?:CUDA|HIP)_ERROR_{driver}\b"]
        message = re.sub(r"([().])", r"\\\1", status.message).replace("CUDA-capable", "(?:CUDA|ROCm)-capable")
        is_specific = len(status.message.split()) >= _SPECIFIC_WORDS and status.message not in _OF_THE_SYSTEM
        variants.append(message if is_specific else _AFTER_CUDA + message)
    numbers = "|".join(sorted({str(status.number) for status in statuses}))
    variants += [rf"{prefix}(?:{numbers})\b(?![.%])" for prefix in _NUMBER_PREFIXES]
    large = [number for number in numbers.split("|") if int(number) >= _LARGE_NUMBER]
    variants += [rf"failed(?:!| with error){_SEPARATOR}(?:{'|'.join(large)})\b(?![.%])"] if large else []
    return "|".join(dict.fromkeys(variants))


_SEPARATOR = r"[ =:#]{0,3}\(?"
_NUMBER_PREFIXES = (
    r"THCudaCheck FAIL[^\n]{0,160}error=",
    *(
        prefix + _SEPARATOR
        for prefix in (
            "cuda error",
            "cuda runtime error",
            "cuda driver error",
            r"cuda (?:\w+ )?failed with error",
            "hip error",
        )
    ),
)
"""Patterns for the text before a status number.

Each pattern contains a long literal, so that long logs are searched quickly.
"""
_AFTER_CUDA = r"(?:CUDA|HIP|Triton)[^\n]{0,60}(?:error|failure|failed)[^\n]{0,30}[:' ] ?"
