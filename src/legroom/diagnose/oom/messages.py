"""How running out of memory is spelled: by PyTorch, the drivers, the GPU libraries, Python and the system.

A table, read from the top: the first entry that matches decides, so what names page-locked memory stands before what
CUDA says of any memory, and what only sounds like memory before the vague. `disguised` spellings come with other causes
too; who asks must look at the free memory before believing them. Spans are bounded: a text may be a log of many megabytes.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Certainty(StrEnum):
    """What an error has to do with memory."""

    SURE = "sure"
    """The memory of a device ran out."""
    DISGUISED = "disguised"
    """A library failed in a way that it often does for want of device memory."""
    HOST = "host"
    """The host's memory ran out, shared memory included."""
    PINNED = "pinned"
    """Page-locked host memory could not be had."""
    NOT_MEMORY = "not-memory"


@dataclass(frozen=True, slots=True)
class Spelling:
    """One thing that is said, in one or more ways."""

    certainty: Certainty
    source: str
    """Who says it."""
    ways: tuple[tuple[str, re.Pattern[str]], ...]
    """Each with a part of it that is plain text, in lower case."""
    reason: str
    """A sentence for people: what it means."""
    in_words: bool = False
    """Words that one also writes in passing (`the out of memory handler`): in a log they count only where the line looks bad."""


def find_spelling(text: str) -> tuple[Spelling, str, str] | None:
    """The spelling that a text contains, the line where it stands, and what stands around it."""
    lowered = text.lower()
    shown = text if len(text) == len(lowered) else lowered
    for spelling in SPELLINGS:
        for plain, pattern in spelling.ways:
            for position in _occurrences(lowered, plain):
                match = pattern.search(lowered, max(position - _BEFORE, 0), position + _BEHIND)
                if match is not None:
                    begin = shown.rfind("\n", 0, match.start()) + 1
                    end = shown.find("\n", match.end())
                    line = shown[begin : end if end >= 0 else len(shown)].strip()
                    return spelling, line, shown[max(begin - _BEFORE, 0) : match.end() + _BEHIND]
    return None


_BEFORE, _BEHIND = 500, 5000
"""How far around its plain part a spelling is looked for."""
_MOST_OCCURRENCES = 40


def _occurrences(text: str, plain: str) -> Iterator[int]:
    """Where `plain` stands: the first ones, and the last ones of many. An error is seldom in the middle of its repetitions."""
    position = -1
    for _ in range(_MOST_OCCURRENCES):
        position = text.find(plain, position + 1)
        if position < 0:
            return
        yield position
    last = len(text)
    for _ in range(_MOST_OCCURRENCES):
        last = text.rfind(plain, position + 1, last)
        if last < 0:
            return
        yield last


def _says(
    certainty: Certainty, source: str, pattern: str, reason: str, *, in_words: bool = False
) -> Spelling:
    return Spelling(certainty, source, compiled_ways(pattern), reason, in_words)


def compiled_ways(pattern: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Each alternative of a pattern, with a part of it that is plain text, in lower case."""
    return tuple(
        (longest_plain_part(way), re.compile(way, re.IGNORECASE | re.DOTALL)) for way in _top_level(pattern)
    )


def _top_level(pattern: str) -> list[str]:
    """The alternatives of a pattern, those inside brackets left together."""
    ways, depth = [""], 0
    for part in _PARTS.findall(pattern):
        depth += (part == "(") - (part == ")")
        if part == "|" and not depth:
            ways.append("")
        else:
            ways[-1] += part
    return ways


_PARTS = re.compile(r"\\.|\[(?:\\.|[^\]])*\]|.", re.DOTALL)
"""An escaped sign, a set of signs, or a plain one."""


_NOT_PLAIN = re.compile(
    r"""\\[bsSwWdDn](?:\{[^}]*\})?[*+?]?   # a kind of character
    |  \[[^\]]*\](?:\{[^}]*\})?[*+?]?   # one of several
    |  .\{[^}]*\}             # so many of something
    |  .[*?]                  # any number of it, or none
    |  [\^$]""",
    re.VERBOSE,
)


def longest_plain_part(pattern: str) -> str:
    """What every match contains, letter by letter but for case: makes looking through a long log a hundred times faster."""
    escaped = pattern.replace(r"\(", "\0").replace(r"\)", "\1").replace(r"\[", "\2").replace(r"\]", "\3")
    group = re.compile(r"\([^()]*\)[*?]?")
    while group.search(escaped):
        escaped = group.sub("\n", escaped)
    plain = _NOT_PLAIN.sub("\n", escaped).replace("\\.", ".")
    for stand_in, sign in zip("\0\1\2\3", "()[]", strict=True):
        plain = plain.replace(stand_in, sign)
    return max(plain.lower().split("\n"), key=len)


_NOT, _SURE, _HOST = Certainty.NOT_MEMORY, Certainty.SURE, Certainty.HOST
_PINNED, _HIDDEN = Certainty.PINNED, Certainty.DISGUISED

_CUDA = "The GPU's memory could not serve an allocation."
_LIBRARY = "The library could not allocate the GPU memory that it works in."
_TOO_SMALL = "What is to be loaded or served is larger than the memory that the GPU has left."
_HANDLE = "The library could not be set up on the GPU, which it says when its own memory there cannot be had."
_FAILED = "The library failed on the GPU and does not say why; too little memory is one of the causes."
_ENGINE = "cuDNN found no algorithm whose workspace could be had; a type or layout that it does not know gives the same words."
_SYSTEM = "The host's memory could not serve an allocation."
_SHARED = "The shared memory (/dev/shm) that processes pass tensors through is full."
_KILLED = "The system killed a process, as it does when the host's memory runs out; a person can do the same."

_GPU = r"(?:free |available )?(?:GPU|CUDA|device|video|graphics|VRAM)(?: (?:video |device )?(?:memory|RAM|VRAM))?\b"
_CANNOT = r"(?:failed to|unable to|could not|cannot|can't)"
_HOSTS = r"(?:free |available )?(?:(?:system |host |CPU |main )RAM|(?:system|host|CPU|main|physical|virtual) memory|RAM)\b"
_BY_SIGNAL_9 = r"\W{0,4}(?:-9|137)\b"

SPELLINGS: tuple[Spelling, ...] = (
    # --- which pool: page-locked memory
    _says(
        _PINNED, "CUDA", r"cudaHostAlloc|cudaMallocHost|hipHostMalloc|cuMemHostAlloc|cuMemAllocHost|could not allocate pinned host memory",
        "Page-locked host memory could not be had: the host's memory, or what may be locked of it, is used up.",
    ),
    _says(
        _PINNED, "CUDA", r"in pin memory thread .{0,4000}(?:out of memory|memory allocation)|bytes on host: CUDA_ERROR_OUT_OF_MEMORY",
        "The thread that pins batches could not get page-locked host memory.",
    ),
    # --- a device's memory, beyond doubt
    _says(_SURE, "CUDA", r"CUDA out of memory\b", _CUDA),
    _says(_SURE, "HIP", r"HIP out of memory\b|HIP error: out of memory|hipErrorOutOfMemory|hipErrorMemoryAllocation", _CUDA),
    _says(_SURE, "XPU", r"XPU out of memory\b|(?:UR_RESULT|ZE_RESULT|PI)_ERROR_OUT_OF_DEVICE_MEMORY", _CUDA),
    _says(
        _SURE, "MPS", r"MPS backend out of memory|kIOGPUCommandBufferCallbackErrorOutOfMemory|Invalid buffer size: ",
        "The memory that the Mac's GPU may use could not serve an allocation.",
    ),
    _says(_SURE, "NCCL", r"Cuda failure (?:\d+ )?'out of memory'", _LIBRARY),
    _says(
        _SURE, "CUDA", r"CUDA (?:driver |runtime )?error[^\n]{0,12}: out of memory|cuda runtime error \(2\)\s*:|cuda failed with error 2\b|cudaErrorMemoryAllocation"
        r"|CUDA_ERROR_OUT_OF_MEMORY|(?:cudaMalloc\w*|cuMemAlloc\w*|cuMemCreate|cuMemMap|cuMemSetAccess) failed: out of memory", _CUDA,
    ),
    _says(
        _SURE, "CUDA", r"failed to cudaMalloc|Failed to CUDA (?:malloc|calloc)|THCudaCheck FAIL [^\n]{0,300}error=2\b|Tried to allocate [\d.]+ [KMG]iB(?: \(GPU|\. GPU \d)|cudaMalloc\w* (?:error|failed)[^\n]{0,20}out of memory|cudaMalloc\w*\([^\n]{0,80}out of memory|enforce allocating <= available failed"
        r"|Call to cuMemAlloc results in|cudaSuccess \(2 vs\. 0\)|RMM_ERROR_OUT_OF_MEMORY|maximum pool size exceeded", _CUDA,
    ),
    _says(_SURE, "Thrust", r"thrust::system::detail::bad_alloc'?(?:\s+what\(\):[^\n]*)?|thrust::system::system_error.{0,300}out of memory|parallel_for failed: out of memory", _CUDA),
    _says(_SURE, "CUDA", r"Allocation on device\b.{0,60}(?:out of memory|exceed allowed memory)", _CUDA),
    _says(
        _SURE, "CUDA", r"torch\.(?:cuda\.)?OutOfMemoryError: \S|Exception Type\W{1,8}torch\.(?:cuda\.)?OutOfMemoryError|c10::\w*OutOfMemoryError|Caught OutOfMemoryError in",
        "It is PyTorch's own out-of-memory error.",
    ),
    _says(
        _SURE, "CUDA", r"NVML_SUCCESS == [^\n]{0,80}INTERNAL ASSERT FAILED at [^\n]{0,300}CUDACachingAllocator",
        "An allocation failed, and then the driver library could not be asked for the figures of the message.",
    ),
    _says(_SURE, "cuBLAS", r"(?:CU|HIP)BLAS_STATUS_ALLOC_FAILED|rocblas_status_memory_error", _LIBRARY),
    _says(
        _SURE, "cuDNN", r"CUDNN_STATUS_ALLOC_FAILED|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED|miopenStatusAllocFailed",
        _LIBRARY,
    ),
    _says(_SURE, "cuSOLVER", r"(?:CU|HIP)SOLVER_STATUS_ALLOC_FAILED|MAGMA_ERR_DEVICE_ALLOC", _LIBRARY),
    _says(_SURE, "cuFFT", r"(?:CU|HIP)FFT_ALLOC_FAILED", _LIBRARY),
    _says(_SURE, "cuSPARSE", r"(?:CU|HIP)SPARSE_STATUS_ALLOC_FAILED", _LIBRARY),
    _says(_SURE, "cuRAND", r"(?:CU|HIP)RAND_STATUS_ALLOCATION_FAILED", _LIBRARY),
    # Where a check tells the number alone, it is that of a failed allocation.
    _says(_SURE, "cuFFT", r"== CUFFT_SUCCESS \(2 vs\. 0\)|== CUBLAS_STATUS_SUCCESS \(3 vs\. 0\)|== CUDNN_STATUS_SUCCESS \(2 vs\. 0\)", _LIBRARY),
    _says(_SURE, "XLA", r"RESOURCE[_ ]EXHAUSTED:\s+(?:Out\s+of memory|Failed to allocate)|OOM when allocating tensor", _CUDA),
    _says(_SURE, "TensorFlow", r"Allocator \(\w+_bfc\) ran out of memory|failed to allocate [^\n]{0,60} from device", _CUDA),
    _says(_SURE, "cupy", r"Out of memory allocating [\d,]+ bytes \(allocated so far|cupy\S{0,40}OutOfMemoryError|rmm::out_of_memory", _CUDA),
    _says(_SURE, "other devices", r"OUT_OF_DEVICE_MEMORY|ErrorOutOfDeviceMemory|NPU out of memory|Ran out of memory in memory space hbm|CL_MEM_OBJECT_ALLOCATION_FAILURE|Memory Object Allocation Failure", _CUDA),
    _says(
        _SURE, "fairseq", r"OOM in all workers|OOM during optimization|recover from OOM in|ran out of memory, (?:skipping|retrying) batch|ran out of memory with exception", _CUDA,
    ),
    _says(
        _SURE, "inference server", r"No available memory for the cache blocks|larger than the (?:available KV cache memory|maximum number of tokens that can be stored in KV cache)"
        r"|Free memory on device[^\n]{0,120} is less than desired|enough GPU (?:RAM|VRAM|memory) to (?:fit|load|run)", _TOO_SMALL,
    ),
    # --- the host's memory
    _says(_HOST, "shared memory", r"killed by signal: Bus\s+error|Signal 7 \(SIGBUS\)|exitcode\s*: -7\b|Bus error \(core dumped\)|out of shared memory|shared memory\(shm\)|bus error encountered in worker", _SHARED),
    _says(_HOST, "shared memory", r"(?:unable to write to file <|/dev/shm|shared memory segment)[^\n]{0,300}No space left on device", _SHARED),
    _says(_HOST, "shared memory", r"Error while (?:creating|attaching to) shared memory segment", _SHARED),
    _says(
        _HOST, "CPU", r"DefaultCPUAllocator|enforce fail at [^\n]{0,60}CPUAllocator(?![^\n]{0,60}nbytes\) >= 0)|posix_memalign(?:\(| failed)|(?:not enough|can't allocate) memory: you tried to allocate|unable to mmap [^\n]{0,300}Cannot allocate memory", _SYSTEM,
    ),
    _says(_HOST, "cuDNN", r"CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED|(?:UR_RESULT|ZE_RESULT|PI)_ERROR_OUT_OF_HOST_MEMORY", _SYSTEM),
    _says(_HOST, "a library", r"Failed to allocate \d+ bytes in function|malloc of size \d+ failed|Java heap space|JavaScript heap out of memory|mmap: cannot allocate|OpenBLAS[^\n]{0,60}Memory allocation still failed", _SYSTEM),
    _says(_HOST, "NumPy", r"Unable to allocate [^\n]{0,40} for an array with shape", _SYSTEM),
    _says(_HOST, "C++", r"std::bad_alloc|^(?:RuntimeError: )?bad allocation$", _SYSTEM),
    _says(_HOST, "system", r"\[Errno 12\]|Cannot allocate memory(?! in static TLS)|paging file is too small|WinError (?:8|14|1450|1455)\b|could not be allocated: malloc", _SYSTEM),
    _says(_HOST, "a cluster", r"low on resource: memory|MemoryPressure|tried to allocate more memory than is available|memory cgroup out of memory|exceeded \d+% memory budget", _SYSTEM),
    _says(_HOST, "Ray", r"killed due to the node running low on memory", _SYSTEM),
    _says(
        _HOST, "system", r"Out of memory: Kill(?:ed)? process|\bKilled process \d+|oom[-_ ]kill(?:er|ed)?\b|OOMKilled|killed by signal: Killed|Signal 9 \(SIGKILL\)|(?:by|with|signal) SIGKILL\b|killed by signal 9\b"
        r"|died with <Signals\.SIGKILL|: line \d+:\s+\d+ Killed\b|\[\d+\]\s+\+? *\d+ killed |zsh: killed\b|Killed: 9\b|(?:^|[\r\n|>]|\]:?|\)|\d:|stderr F| -)[ *\t]{0,6}Killed[ *]*(?:\s*[\r\n]|$)"
        r"|(?:^|\n)已杀死\s*(?:\n|$)|(?:^|\n)已殺死\s*(?:\n|$)|(?:^|\n)죽었음\s*(?:\n|$)|(?:^|\n)強制終了\s*(?:\n|$)|(?:^|\n)Getötet\s*(?:\n|$)|(?:^|\n)Processus arrêté\s*(?:\n|$)|(?:^|\n)Убито\s*(?:\n|$)|(?:^|\n)Terminado \(killed\)"
        r"|(?:srun|slurmstepd)[^\n]{0,80}: Out Of Memory", _KILLED,
    ),
    _says(
        _HOST, "system", rf"exitcode{_BY_SIGNAL_9}|exit code{_BY_SIGNAL_9}|return code{_BY_SIGNAL_9}|status code{_BY_SIGNAL_9}|exit status{_BY_SIGNAL_9}|returncode{_BY_SIGNAL_9}|with code{_BY_SIGNAL_9}", _KILLED,
    ),
    _says(_HOST, "Python", r"(?:^|\n|\]:? | - |\| )(?:\w+\.)*(?:_?Array|Arrow)?MemoryError\b", _SYSTEM),
    _says(_HOST, "a scheduler", r"exceeded (?:job |step |container |the )?memory limit|using all available RAM|Workers?[^\n]{0,40} (?:exceeded|running out of)[^\n]{0,40}memory|excessive memory usage causing the Operating System to kill", _SYSTEM),
    # --- sounds like memory, and is not
    _says(
        _NOT, "Triton", r"out of resources?: (?:shared memory|tensor memory|threads|registers)",
        "A kernel wants more shared memory on the chip than the GPU has: smaller blocks help, freeing GPU memory does not.",
    ),
    _says(
        _NOT, "CUDA", r"too many resources requested for launch|cudaErrorLaunchOutOfResources|CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        "A kernel wants more registers or threads than the GPU has; this is not its memory.",
    ),
    _says(
        _NOT, "CUDA", r"illegal memory access|misaligned address|device-side assert triggered|invalid device ordinal|no kernel image",
        "A kernel did something forbidden; this has nothing to do with how much memory is free.",
    ),
    _says(
        _NOT, "system", r"Too many open files",
        "The process has too many files open; this is not its memory.",
    ),
    # --- often memory
    _says(_HIDDEN, "cuBLAS", r"(?:CU|HIP)BLAS_STATUS_NOT_INITIALIZED|cublasCreate", _HANDLE),
    _says(_HIDDEN, "cuBLAS", r"(?:CU|HIP)BLAS_STATUS_(?:INTERNAL_ERROR|EXECUTION_FAILED)|cublas runtime error : ", _FAILED),
    _says(_HIDDEN, "cuDNN", r"CUDNN_STATUS_NOT_INITIALIZED|CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED", _HANDLE),
    _says(_HIDDEN, "cuDNN", r"CUDNN_STATUS_(?:INTERNAL_ERROR|EXECUTION_FAILED|MAPPING_ERROR)|miopenStatus(?:Internal|Unknown)Error", _FAILED),
    _says(_HIDDEN, "cuDNN", r"unable to find an engine to execute|unable to find a valid cuDNN algorithm|no valid (?:execution plans|engine)|no valid convolution algorithm|no algorithm worked", _ENGINE),
    _says(_HIDDEN, "cuDNN", r"Failed to call Then\w+|Failed to get convolution algorithm", _FAILED),
    _says(_HIDDEN, "cuSOLVER", r"cusolverDnCreate|(?:CU|HIP)SOLVER_STATUS_NOT_INITIALIZED", _HANDLE),
    _says(_HIDDEN, "cuSOLVER", r"(?:CU|HIP)SOLVER_STATUS_(?:INTERNAL_ERROR|EXECUTION_FAILED)|cusolver error: 7\b", _FAILED),
    _says(_HIDDEN, "cuFFT", r"(?:CU|HIP)FFT_(?:INTERNAL_ERROR|SETUP_FAILED|EXEC_FAILED)", _FAILED),
    _says(
        _HIDDEN, "cuSPARSE", r"(?:CU|HIP)SPARSE_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR|EXECUTION_FAILED|INSUFFICIENT_RESOURCES)", _FAILED,
    ),
    _says(
        _HIDDEN, "NCCL", r"NCCL[^\n]{0,300}unhandled cuda error(?!.{0,2000}Cuda failure)|ncclUnhandledCudaError(?!.{0,2000}Cuda failure)",
        "A CUDA call of NCCL failed and it does not say which; it asks for buffers on the GPU beside PyTorch's.",
    ),
    _says(_HIDDEN, "XPU", r"(?:UR_RESULT|PI)_ERROR_OUT_OF_RESOURCES|CL_OUT_OF_RESOURCES", _FAILED),
    _says(
        _HIDDEN, "CUDA", r"NVML_SUCCESS == [^\n]{0,80}INTERNAL ASSERT FAILED|handles_\.at\(i\) INTERNAL ASSERT FAILED",
        "PyTorch's bookkeeping stumbled where it does after an allocation failed.",
    ),
    _says(_HIDDEN, "CUDA", r"assertion '[^'\n]{0,80}cudaSuccess' failed in [^\n]{0,120}(?:Memory|alloc)", _FAILED),
    _says(_HIDDEN, "ONNX Runtime", r"Failed to allocate memory for requested buffer|Dst tensor is not initialized|HSA_STATUS_ERROR_OUT_OF_RESOURCES", _FAILED),
    # --- said in words, by whomever
    _says(_SURE, "", rf"out of {_GPU}|not enough {_GPU}|insufficient {_GPU}|out of memory (?:error )?(?:on|in|for) (?:the |a |your )?(?:GPU|CUDA|device)\b", _CUDA, in_words=True),
    _says(_SURE, "", r"\b(?:GPU|CUDA|VRAM|video|device) memory is (?:insufficient|not enough|not sufficient|too small)|amount of GPU memory[^\n]{0,60}could not", _CUDA, in_words=True),
    _says(_SURE, "", r"\b(?:GPU|CUDA|VRAM)(?:[:_ ]?\d{1,2})?\b(?!-)[^\n]{0,40}[\s(]out of memory|\bCUDA OOM\b|\bGPU OOM\b|GPU memory (?:is )?exhausted|GPU memory (?:is )?full", _CUDA, in_words=True),
    _says(_PINNED, "", rf"{_CANNOT} allocate\b[^\n]{{0,40}}\bpinned\b", "Page-locked host memory could not be had.", in_words=True),
    _says(_SURE, "", rf"{_CANNOT} allocate\b[^\n]{{0,20}}\b(?:GPU|CUDA\d?|device|VRAM)\b", _CUDA, in_words=True),
    _says(_HOST, "", rf"{_CANNOT} allocate\b[^\n]{{0,20}}\b(?:CPU|host|RAM)\b", _SYSTEM, in_words=True),
    _says(_HOST, "", rf"out of {_HOSTS}|not enough {_HOSTS}|insufficient {_HOSTS}", _SYSTEM, in_words=True),
    _says(
        _HIDDEN, "", r"\bout of memory\b|\bOutOfMemory\b|OUT_OF_MEMORY\b|not enough (?:free |available )?memory\b|insufficient (?:free |available )?memory\b|memory allocation (?:failed|failure|error)"
        rf"|{_CANNOT} allocate\b[^\n]{{0,40}}\b(?:bytes|memory(?! in static)|[KMG]i?B|buffer)\b",
        "The text speaks of too little memory, without saying of which.", in_words=True,
    ),
)  # fmt: skip
