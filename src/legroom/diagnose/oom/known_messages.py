"""Messages of out-of-memory errors from PyTorch, drivers, GPU libraries, Python and the operating system.

The table is read from the top, and the first match is used. Patterns for impossibly large sizes come first. Patterns
for page-locked memory come before CUDA's general messages. Messages that mention memory but have another cause come
before vague messages. An error with a `disguised` message may have other causes, so the caller must check the free
memory. Every pattern matches a limited number of characters, because a log may be many megabytes long.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property


class Certainty(StrEnum):
    SURE = "sure"
    """Device memory ran out."""
    LIKELY = "likely"
    """A library could not allocate a resource, probably because device memory ran out."""
    DISGUISED = "disguised"
    """A library failed in a way that is often, but not always, caused by a lack of device memory."""
    HOST = "host"
    """Host memory ran out, including shared memory."""
    PINNED = "pinned"
    """Page-locked host memory could not be allocated."""
    NOT_MEMORY = "not-memory"


@dataclass(frozen=True)
class MessagePattern:
    """One kind of error message, with its variants."""

    certainty: Certainty
    source: str
    pattern: str
    """A regular expression. Its top-level alternatives are the variants of the message."""
    reason: str
    informal: bool = False
    """True if ordinary log lines may also contain the message, as in `the out of memory handler`.

    A message of this kind is used only on lines that look like an error.
    """

    @cached_property
    def variants(self) -> tuple[tuple[str, re.Pattern[str]], ...]:
        """Regular expressions, each with a lower-case literal that every match contains.

        The expressions are compiled on first use, because compiling all of them takes a tenth of a second and most
        runs do not fail.
        """
        return compile_variants(self.pattern)


def find_pattern(text: str) -> tuple[MessagePattern, str, str] | None:
    """Return the pattern that matches in the text, the matching line, and the text around the match."""
    lowered = text.lower()
    original = text if len(text) == len(lowered) else lowered
    for message in MESSAGE_PATTERNS:
        for literal, pattern in message.variants:
            for position in _occurrences(lowered, literal):
                match = pattern.search(lowered, max(position - _BEFORE, 0), position + _AFTER)
                if match is not None:
                    begin = original.rfind("\n", 0, match.start()) + 1
                    end = original.find("\n", match.end())
                    line = original[begin : end if end >= 0 else len(original)].strip()
                    return message, line, original[max(begin - _BEFORE, 0) : match.end() + _AFTER]
    return None


_BEFORE, _AFTER = 500, 5000
"""The number of characters before and after the literal that are searched for the pattern."""
_MAX_OCCURRENCES = 40


def _occurrences(text: str, literal: str) -> Iterator[int]:
    """Yield the positions of `literal`.

    If there are many positions, only those near the start and the end of the text are used.
    """
    position = -1
    for _ in range(_MAX_OCCURRENCES):
        position = text.find(literal, position + 1)
        if position < 0:
            return
        yield position
    last = len(text)
    for _ in range(_MAX_OCCURRENCES):
        last = text.rfind(literal, position + 1, last)
        if last < 0:
            return
        yield last


def compile_variants(pattern: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Return the top-level alternatives of a pattern, each with a lower-case literal that every match contains."""
    return tuple(
        (longest_literal(variant), re.compile(variant, re.IGNORECASE | re.DOTALL))
        for variant in _alternatives(pattern)
    )


def _alternatives(pattern: str) -> list[str]:
    """Return the top-level alternatives of a pattern."""
    variants, depth = [""], 0
    for part in _PARTS.findall(pattern):
        depth += (part == "(") - (part == ")")
        if part == "|" and not depth:
            variants.append("")
        else:
            variants[-1] += part
    return variants


_PARTS = re.compile(r"\\.|\[(?:\\.|[^\]])*\]|.", re.DOTALL)


_NOT_LITERAL = re.compile(
    r"""\\[bsSwWdDn](?:\{[^}]*\})?[*+?]?   # a character class
    |  \[[^\]]*\](?:\{[^}]*\})?[*+?]?   # a character set
    |  .\{[^}]*\}             # a counted repetition
    |  .[*?]                  # an optional or repeated character
    |  [\^$]""",
    re.VERBOSE,
)


def longest_literal(pattern: str) -> str:
    """Return the longest literal that every match contains, in lower case.

    Searching for the literal first makes the search a hundred times faster.
    """
    escaped = pattern.replace(r"\(", "\0").replace(r"\)", "\1").replace(r"\[", "\2").replace(r"\]", "\3")
    group = re.compile(r"\([^()]*\)[*?]?")
    while group.search(escaped):
        escaped = group.sub("\n", escaped)
    literals = _NOT_LITERAL.sub("\n", escaped).replace("\\.", ".")
    for placeholder, character in zip("\0\1\2\3", "()[]", strict=True):
        literals = literals.replace(placeholder, character)
    return max(literals.lower().split("\n"), key=len)


_NOT, _SURE, _HOST = Certainty.NOT_MEMORY, Certainty.SURE, Certainty.HOST
_PINNED, _DISGUISED, _LIKELY = Certainty.PINNED, Certainty.DISGUISED, Certainty.LIKELY

_CUDA = "A GPU memory allocation failed."
_LIBRARY = "The library could not allocate its GPU workspace."
_RESOURCE = (
    "The library could not allocate a resource, most likely GPU memory. An earlier GPU fault or a lack of host memory "
    "can also cause this status."
)
_HEAP = "Another runtime (Java, Node.js) reached its heap limit, which is independent of the amount of free host memory."
_TOO_SMALL = "The model or its cache is larger than the free GPU memory."
_HANDLE = "The library could not be initialized on the GPU, often because no GPU memory is free."
_FAILED = "The library failed on the GPU without reporting a reason. A lack of memory is one possible cause."
_ARENA = (
    "ONNX Runtime's memory pool could not grow. With the CUDA execution provider, GPU memory ran out. With the CPU provider, "
    "host memory ran out."
)
_ENGINE = (
    "cuDNN found no algorithm whose workspace fits. An unsupported data type or layout can also cause this "
    "message."
)
_SYSTEM = "A host memory allocation failed."
_SHARED = "The shared memory (/dev/shm) through which processes exchange tensors is full."
_KILLED = (
    "A process was killed, often by the operating system because host memory ran out. A user, a scheduler or a launcher may "
    "also have killed the process."
)

IMPOSSIBLE_SIZE = (
    "The requested size is more than 300 times the memory of the largest GPU. A size in the shape is probably "
    "negative, has overflowed or was computed incorrectly. The error does not depend on the amount of free memory."
)
_HUGE = (
    r"(?:\d{1,3}(?:,\d{3}){5,} ?b|(?:[4-9]\d{14}|\d{16,})(?:\.\d+)? ?(?:b|\(|$|\n|\.)|(?:[4-9]\d{8}|\d{10,})(?:\.\d+)? ?m"
    r"|(?:[3-9]\d{5}|\d{7,})(?:\.\d+)? ?g|(?:[3-9]\d{2}|\d{4,})(?:\.\d+)? ?t|[\d.]+ ?[pe]i?b\b)"
)
"""Matches a size of more than about 300 TiB."""
IMPOSSIBLE_SIZES = (
    rf"(?:tried|trying) to allocate (?:more than )?{_HUGE}|(?:unable|failed) to allocate {_HUGE}|memory allocating {_HUGE}|large alloc \d{{15}}.{{0,1000}}bad_alloc|requested *: *{_HUGE}"
    rf"|invalid buffer size: {_HUGE}|memory allocation of {_HUGE}|OOM when allocating tensor with shape\[[^\]\n]{{0,200}}\d{{12}}"
)

UNUSABLE_DEVICE = r"MPS allocated: 0 (?:B|bytes),[^\n]{0,120}Tried to allocate [\d.]+ (?:B|bytes|KB)\b"
"""Matches a small first allocation that fails, which means that the GPU cannot be used at all."""

_GPU = r"(?:free |available )?(?:GPU|CUDA|device|video|graphics|VRAM)(?: (?:video |device )?(?:memory|RAM|VRAM))?\b"
_MEMORY_OF = r"\b(?:GPU|CUDA|VRAM|Metal|Vulkan|HBM|[NXT]PU)(?: memory| buffer)? (?:is |was )?"
_CANNOT = r"(?:failed to|unable to|could not|cannot|can't)"
_HOSTS = r"(?:free |available )?(?:(?:system |host |CPU |main )RAM|(?:system|host|CPU|main|physical|virtual|application) memory|RAM)\b"
_BY_SIGNAL_9 = r"\W{0,8}(?:-9|137)\b"
_BY_SIGNAL_7 = r"\W{0,8}(?:-7|135)\b"

MESSAGE_PATTERNS: tuple[MessagePattern, ...] = (
    MessagePattern(_NOT, "CUDA", IMPOSSIBLE_SIZES, IMPOSSIBLE_SIZE),
    MessagePattern(_NOT, "MPS", UNUSABLE_DEVICE, "The first allocation failed although no memory is in use."),
    # --- page-locked memory
    MessagePattern(
        _PINNED, "CUDA", r"cudaHostAlloc|cudaMallocHost|hipHostMalloc|cuMemHostAlloc|cuMemAllocHost|(?:cuda|hip|cuMem)HostRegister(?![^\n]{0,60}invalid)|CachingHostAllocator[^\n]{0,200}out of memory|out of memory.{0,1500}CachingHostAllocator|could not allocate pinned host memory|RLIMIT_MEMLOCK|\bmlock\w* failed|failed to mlock|ibv_reg_mr\w*[^\n]{0,60}Cannot allocate memory",
        "Page-locked host memory could not be allocated, because host memory is full or the limit on locked memory is reached.",
    ),
    MessagePattern(
        _PINNED, "CUDA", r"in pin memory thread .{0,4000}(?:out of memory|memory allocation)|bytes on host: CUDA_ERROR_OUT_OF_MEMORY",
        "The thread that pins batches could not allocate page-locked host memory.",
    ),
    # --- host memory, although a GPU library reports it
    MessagePattern(
        _HOST, "CPU", r"OOM when allocating tensor[^\n]{0,300}(?:allocator cpu|device:CPU)|RESOURCE[_ ]EXHAUSTED:[^\n]{0,120}(?:CpuAllocator|on host)|OUT_OF_HOST_MEMORY|ErrorOutOfHostMemory", _SYSTEM,
    ),
    MessagePattern(_HOST, "ONNX Runtime", r"_nchwc'[^\n]{0,300}Failed to allocate memory", _SYSTEM),  # kernels of the CPU
    MessagePattern(
        _HOST, "heap limit", r"java\.lang\.OutOfMemoryError|Java heap space|GC overhead limit exceeded|JavaScript heap out of memory", _HEAP,
    ),
    # --- device memory, certain
    MessagePattern(_SURE, "CUDA", r"CUDA out of (?:the )?memory\b", _CUDA),
    MessagePattern(_SURE, "HIP", r"HIP out of memory\b|HIP error: out of memory|hipErrorOutOfMemory|hipErrorMemoryAllocation", _CUDA),
    MessagePattern(_SURE, "XPU", r"XPU out of memory\b|(?:UR_RESULT|ZE_RESULT|PI)_ERROR_OUT_OF_DEVICE_MEMORY", _CUDA),
    MessagePattern(
        _SURE, "MPS", r"MPS backend out of memory|kIOGPUCommandBufferCallbackErrorOutOfMemory|Invalid buffer size: |greater than the maximum allowed buffer size",
        "A memory allocation on the Apple GPU (MPS) failed.",
    ),
    MessagePattern(_SURE, "NCCL", r"Cuda failure (?:\d+ )?'out of memory'", _LIBRARY),
    MessagePattern(
        _SURE, "CUDA", r"CUDA (?:driver |runtime )?error[^\n]{0,12}: out of memory|cuda runtime error \(2\)\s*:|cuda (?:\w+ )?failed with error:? 2\b|cuda driver error:? 2\s*(?:$|[\n:,])|cudaErrorMemoryAllocation"
        r"|CUDA_ERROR_OUT_OF_MEMORY|(?:cudaMalloc\w*|cuMemAlloc\w*|cuMemCreate|cuMemMap|cuMemSetAccess) failed: out of memory", _CUDA,
    ),
    MessagePattern(
        _SURE, "CUDA", r"failed to cudaMalloc|Failed to CUDA (?:malloc|calloc)|THCudaCheck FAIL [^\n]{0,300}error=2\b|Tried to allocate [\d.]+ ?[KMG]iB ?(?:\(|\. )[A-Z]{3,6} \d|cudaMalloc\w* (?:error|failed)[^\n]{0,20}out of memory|cudaMalloc\w*\([^\n]{0,80}out of memory|enforce allocating <= available failed"
        r"|Call to cuMemAlloc results in|cudaSuccess \(2 vs\. 0\)|RMM_ERROR_OUT_OF_MEMORY|maximum pool size exceeded", _CUDA,
    ),
    MessagePattern(_SURE, "Thrust", r"thrust::system::detail::bad_alloc'?(?:\s+what\(\):[^\n]*)?|thrust::system::system_error.{0,300}out of memory|parallel_for failed: out of memory", _CUDA),
    MessagePattern(_SURE, "CUDA", r"Allocation on device\b.{0,60}(?:out of memory|exceed allowed memory)", _CUDA),
    MessagePattern(
        _SURE, "CUDA", r"torch\.(?:cuda\.)?OutOfMemoryError: \S|Exception Type\W{1,8}torch\.(?:cuda\.)?OutOfMemoryError|c10::\w*OutOfMemoryError|Caught OutOfMemoryError in",
        "The exception is PyTorch's own out-of-memory error.",
    ),
    MessagePattern(
        _SURE, "CUDA", r"NVML_SUCCESS == [^\n]{0,80}INTERNAL ASSERT FAILED at [^\n]{0,300}CUDACachingAllocator",
        "An allocation failed. PyTorch could not query NVML (an NVIDIA driver library) for the sizes in its error message.",
    ),
    # Libraries that run on a GPU and report `out of memory` through their own check.
    MessagePattern(_SURE, "CUDA", r"out of memory in (?:cu|hip)[a-z]{3,30}\(|out of memory[^\n]{0,200}\.cuh?\b|\.cuh?\b[^\n]{0,120}\bout of memory|\bError out of memory at line \d", _CUDA),
    MessagePattern(
        _SURE, "CUDA", r"\bcuda[a-z]{3,30}\b[^\n]{0,60}[^\w\n]out of memory|\bhip[a-z]{3,30}\b[^\n]{0,60}[^\w\n]out of memory|\b(?:CUDA|HIP|ROCm) error\b[^\n]{0,120}[(:] ?out of memory\b|\b(?:CUDA|HIP|ROCm)(?:(?: \w+){0,3}) ?[:(\]] ?out of memory(?! (?:handler|hook|callback|recovery|handling))", _CUDA,
    ),
    MessagePattern(_SURE, "RMM", r"bad_alloc: (?:out_of_memory|cudaError|CUDA|RMM)", _CUDA),
    MessagePattern(_SURE, "CUDA", r"an instance of '[^'\n]{0,60}CUDA[^'\n]{0,60}'.{0,400}\bout of memory|\b(?:CUDA|HIP|GPU) (?:memory )?allocation (?:failed|failure|error)|(?:device|GPU) memory allocation of size \d+ failed|malloc (?:device|GPU) memory failed|_DEVMEM Allocation failed|vkAllocateMemory failed:? -2\b|Cuda\w*Allocator fail\w* to allocate|NvMapMem\w*: \d+ error 12\b", _CUDA),
    MessagePattern(_SURE, "TensorRT", r"Error Code \d+: OutOfMemory", _CUDA),
    MessagePattern(_SURE, "TensorRT", r"insufficient (?:memory|to use tactic).{0,4000}could not find any implementation for node", "The memory of the GPU was too small for every algorithm of a layer."),
    MessagePattern(_SURE, "TPU", r"That was not possible\. There are [\d.]+[KMG] free", _CUDA),
    MessagePattern(_SURE, "Accelerate", r"No executable batch size found", "Every batch size down to 1 ran out of memory."),
    MessagePattern(_SURE, "cuDNN", r"CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED|MAGMA_ERR_DEVICE_ALLOC", _LIBRARY),
    # --- libraries that could not allocate a resource
    # An index out of range makes the creation of a handle fail in the same way.
    MessagePattern(_DISGUISED, "cuBLAS", r"BLAS_STATUS_ALLOC_FAILED[^\n]{0,80}\b(?:cu|hip)blas(?:Lt)?Create|(?:create|initialize)(?: the)? (?:cublas|cudnn|cusolver|curand|cusparse) handle|INTERNAL: cublas error|initialize BLAS support|DNN library is not found|== CUBLAS_STATUS_SUCCESS \(1 vs\. 0\)", _HANDLE),
    MessagePattern(_DISGUISED, "cuSOLVER", r"SOLVER_STATUS_ALLOC_FAILED[^\n]{0,80}\b(?:cu|hip)solver\w{0,4}Create", _HANDLE),
    MessagePattern(_DISGUISED, "cuSPARSE", r"SPARSE_STATUS_ALLOC_FAILED[^\n]{0,80}\b(?:cu|hip)sparseCreate", _HANDLE),
    MessagePattern(_DISGUISED, "cuDNN", r"CUDNN_STATUS_ALLOC_FAILED[^\n]{0,80}\bcudnnCreate\b", _HANDLE),
    MessagePattern(_LIKELY, "cuBLAS", r"(?:CU|HIP)BLAS_STATUS_ALLOC_FAILED|rocblas_status_memory_error", _RESOURCE),
    MessagePattern(_LIKELY, "cuDNN", r"CUDNN_STATUS_ALLOC_FAILED|miopenStatusAllocFailed", _RESOURCE),
    MessagePattern(_LIKELY, "cuSOLVER", r"(?:CU|HIP)SOLVER_STATUS_ALLOC_FAILED|NVJPEG_STATUS_ALLOCATOR_FAILURE", _RESOURCE),
    MessagePattern(_LIKELY, "cuFFT", r"(?:CU|HIP)FFT_ALLOC_FAILED", _RESOURCE),
    MessagePattern(_LIKELY, "cuSPARSE", r"(?:CU|HIP)SPARSE_STATUS_ALLOC_FAILED", _RESOURCE),
    MessagePattern(_LIKELY, "cuRAND", r"(?:CU|HIP)RAND_STATUS_ALLOCATION_FAILED", _RESOURCE),
    # Checks that print only the status code of a failed allocation.
    MessagePattern(_LIKELY, "cuFFT", r"== CUFFT_SUCCESS \(2 vs\. 0\)|== CUBLAS_STATUS_SUCCESS \(3 vs\. 0\)|== CUDNN_STATUS_SUCCESS \(2 vs\. 0\)", _RESOURCE),
    MessagePattern(_SURE, "XLA", r"RESOURCE[_ ]EXHAUSTED:\s+(?:Out\s+of memory|Failed to allocate)(?![^\n]{0,120}(?:CpuAllocator|on host))|OOM when allocating tensor(?![^\n]{0,300}(?:allocator cpu|device:CPU))", _CUDA),
    MessagePattern(_SURE, "TensorFlow", r"Allocator \(\w+_bfc\) ran out of memory(?![^\n]{0,200}not a failure)|failed to allocate [^\n]{0,60} from device", _CUDA),
    MessagePattern(_SURE, "cupy", r"Out of memory allocating [\d,]+ bytes \(allocated so far|cupy\S{0,40}OutOfMemoryError|rmm::out_of_memory", _CUDA),
    MessagePattern(_SURE, "other devices", r"OUT_OF_DEVICE_MEMORY|ErrorOutOfDeviceMemory|NPU out of memory|Ran out of memory in memory space hbm|MEM_OBJECT_ALLOCATION_FAILURE|Memory Object Allocation Failure", _CUDA),
    MessagePattern(
        _SURE, "fairseq", r"Got an OOM, unloading|OOM in all workers|OOM during optimization|recover from OOM in|ran out of memory, (?:skipping|retrying) batch|ran out of memory with exception", _CUDA,
    ),
    MessagePattern(
        _SURE, "inference server", r"No available memory for the cache blocks|Available KV cache memory: -|larger than the (?:available KV cache memory|maximum number of tokens that can be stored in KV cache)"
        r"|Free memory on device[^\n]{0,120} is less than desired|enough GPU (?:RAM|VRAM|memory) to (?:fit|load|run)|Not enough memory to handle [\d.]+ |increase --mem-fraction-static", _TOO_SMALL,
    ),
    # --- host memory
    MessagePattern(_HOST, "shared memory", rf"killed by signal: Bus\s+error|Signal 7 \(SIGBUS\)|exitcode{_BY_SIGNAL_7}|exit code(?: is)?{_BY_SIGNAL_7}|exit_status{_BY_SIGNAL_7}|return code{_BY_SIGNAL_7}|exit status{_BY_SIGNAL_7}|returncode{_BY_SIGNAL_7}|(?:by|with|signal) SIGBUS\b|died with <Signals\.SIGBUS|Bus error \(core dumped\)|Fatal Python error: Bus error|zsh: bus error|out of shared memory|shared memory\(shm\)|bus error encountered in worker", _SHARED),
    MessagePattern(_HOST, "shared memory", r"(?:unable to write to file <|/dev/shm|shared memory segment|shared memory object)[^\n]{0,300}No space left on device|unable to (?:write to|resize) file </torch_|unable to mmap \d+ bytes from file </torch_[^\n]{0,100}Cannot allocate memory|posix_fallocate[^\n]{0,40}No space left on device|No space left on device[^\n]{0,20}/dev/shm|multiprocessing/shared_memory\.py.{0,300}No space left on device|ObjectStoreFullError", _SHARED),
    MessagePattern(_HOST, "shared memory", r"Error while (?:creating|attaching to) shared memory segment", _SHARED),
    MessagePattern(
        _HOST, "CPU", r"DefaultCPUAllocator|enforce fail at [^\n]{0,60}CPUAllocator(?![^\n]{0,60}nbytes\) >= 0)|posix_memalign(?:\(| failed)|(?:not enough|can't allocate) memory: you tried to allocate|unable to mmap [^\n]{0,300}Cannot allocate memory|unable to mmap \d+ bytes\s*(?:\n|$)", _SYSTEM,
    ),
    MessagePattern(_HOST, "cuDNN", r"CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED|(?:UR_RESULT|ZE_RESULT|PI)_ERROR_OUT_OF_HOST_MEMORY", _SYSTEM),
    MessagePattern(_HOST, "a library", r"Failed to allocate \d+ bytes in function|malloc of size \d+ failed|malloc failed \(tried to|requires more system memory|memory allocation of \d+ bytes failed|libgomp: Out of memory|runtime: out of memory|Insufficient system resources exist|C error: out of memory|LLVM ERROR: out of memory|OSError: [^\n]{0,120}memory allocation failed|\b(?:c|m|re)alloc(?:\(\))?: out of memory|System\.OutOfMemoryException|mmap: cannot allocate|OpenBLAS[^\n]{0,60}Memory allocation still failed", _SYSTEM),
    MessagePattern(_HOST, "NumPy", r"Unable to allocate [^\n]{0,40} for an array with shape", _SYSTEM),
    MessagePattern(_HOST, "C++", r"std::bad_alloc|^(?:RuntimeError: )?bad allocation$", _SYSTEM),
    MessagePattern(_HOST, "system", r"\[Errno 12\]|Cannot allocate memory(?! in static TLS)|paging file is too small|low virtual memory condition|WinError (?:8|14|1450|1455)\b|could not be allocated: malloc", _SYSTEM),
    MessagePattern(_HOST, "a cluster", r"low on resource: memory|instance type with more memory|MemoryPressure|tried to allocate more memory than is available|memory cgroup out of memory|exceeded \d+% memory budget|due to memory pressure", _SYSTEM),
    MessagePattern(
        _HOST, "a scheduler", r"TERM_MEMLIMIT|job killed: [pv]{0,2}mem \d+|hard limit \W?h_(?:vmem|rss)|gone over memory limit|YARN for exceeding|running beyond (?:physical|virtual) memory limits|killed due to memory usage|earlyoom[^\n]{0,40}(?:low memory|sending SIG)",
        "The process used more host memory than the scheduler or container allows.",
    ),
    MessagePattern(_HOST, "Ray", r"killed due to the node running low on memory", _SYSTEM),
    MessagePattern(
        _HOST, "system", r"Out of memory: Kill(?:ed)? process|\bKilled process \d+|systemd-oomd(?:\[\d+\])?:? killed|oom[-_ ]kill(?:er|ed)?\b|OOMKilled|killed by signal: ?Killed|Signal 9 \(SIGKILL\)|(?:by|with|signal|sent) SIGKILL\b|(?:killed by|exited on|died due to|terminated by|shutdown with) signal 9\b"
        r"|died with <Signals\.SIGKILL|Negsignal\.SIGKILL|: line \d+:\s+\d+ Killed\b|\[\d+\]\s+\+? *\d+ killed |zsh: killed\b|Killed: 9\b|(?:^|[\r\n|>]|\]:?|\)|\d:|stderr F| -)[ *\t]{0,6}Killed[ *]*(?:\s*[\r\n]|$)"
        r"|(?:srun|slurmstepd)[^\n]{0,80}: Out Of Memory", _KILLED,
    ),
    MessagePattern(_HOST, "nnU-Net", r"your RAM was full and the worker was killed", _KILLED),
    MessagePattern(
        _HOST, "system", rf"exitcode{_BY_SIGNAL_9}|exit code(?: is)?{_BY_SIGNAL_9}|exit_status{_BY_SIGNAL_9}|return code{_BY_SIGNAL_9}|status code{_BY_SIGNAL_9}|exit status{_BY_SIGNAL_9}|returncode{_BY_SIGNAL_9}|with code{_BY_SIGNAL_9}|non-zero code{_BY_SIGNAL_9}", _KILLED,
    ),
    MessagePattern(_HOST, "Python", r"Can't pickle <class 'MemoryError'|(?:^|\n|\]:? | - |\| )(?:\w+\.)*(?:_?Array|Arrow)?MemoryError\b", _SYSTEM),
    MessagePattern(_HOST, "a scheduler", r"(?:exceeded|reached|hit) (?:(?:the|its) )?(?:(?:job|step|container) )?memory limit|(?:container|job|pod|cgroup|process) memory limit (?:is |was |has been )?(?:exceeded|reached|hit)|using all available RAM|Workers?[^\n]{0,40} (?:exceeded|running out of)[^\n]{0,40}memory|excessive memory usage causing the Operating System to kill", _SYSTEM),
    # --- mentions memory, but has a different cause
    MessagePattern(
        _NOT, "Triton", r"out of resources?: (?:shared memory|tensor memory|threads|registers)",
        "A kernel requires more on-chip shared memory than the GPU has. Use smaller blocks. Freeing GPU memory does not help.",
    ),
    MessagePattern(
        _NOT, "CUDA", r"too many resources requested for launch|cudaErrorLaunchOutOfResources|CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        "A kernel requires more registers or threads than the GPU supports. The error is unrelated to memory.",
    ),
    MessagePattern(
        _NOT, "CUDA", r"illegal memory access|misaligned address|device-side assert triggered|invalid device ordinal|no kernel image",
        "A kernel performed an invalid operation. The error does not depend on the amount of free memory.",
    ),
    MessagePattern(
        _NOT, "system", r"Too many open files",
        "The process has too many open files. The error is unrelated to memory.",
    ),
    # --- often memory (ambiguous)
    MessagePattern(_DISGUISED, "cuBLAS", r"(?:CU|HIP)BLAS_STATUS_NOT_INITIALIZED|cublasCreate", _HANDLE),
    MessagePattern(_DISGUISED, "cuBLAS", r"(?:CU|HIP)BLAS_STATUS_(?:INTERNAL_ERROR|EXECUTION_FAILED)|cublas runtime error : |Blas \w+ launch failed", _FAILED),
    MessagePattern(_DISGUISED, "cuDNN", r"CUDNN_STATUS_NOT_INITIALIZED|CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED", _HANDLE),
    MessagePattern(_DISGUISED, "cuDNN", r"CUDNN_STATUS_(?:INTERNAL_ERROR|EXECUTION_FAILED|MAPPING_ERROR)|miopenStatus(?:Internal|Unknown)Error", _FAILED),
    MessagePattern(_DISGUISED, "cuDNN", r"unable to find an engine to execute|unable to find a valid cuDNN algorithm|no valid (?:execution plans|engine)|no valid convolution algorithm|no algorithm worked", _ENGINE),
    MessagePattern(_DISGUISED, "cuDNN", r"Failed to call Then\w+|Failed to get convolution algorithm", _FAILED),
    MessagePattern(_DISGUISED, "cuSOLVER", r"cusolverDnCreate|(?:CU|HIP)SOLVER_STATUS_NOT_INITIALIZED", _HANDLE),
    MessagePattern(_DISGUISED, "cuSOLVER", r"(?:CU|HIP)SOLVER_STATUS_(?:INTERNAL_ERROR|EXECUTION_FAILED)|cusolver error: 7\b", _FAILED),
    MessagePattern(_DISGUISED, "cuFFT", r"(?:CU|HIP)FFT_(?:INTERNAL_ERROR|SETUP_FAILED|EXEC_FAILED)", _FAILED),
    MessagePattern(
        _DISGUISED, "cuSPARSE", r"(?:CU|HIP)SPARSE_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR|EXECUTION_FAILED|INSUFFICIENT_RESOURCES)", _FAILED,
    ),
    MessagePattern(
        _DISGUISED, "NCCL", r"NCCL[^\n]{0,300}unhandled cuda error(?!.{0,2000}Cuda failure)|ncclUnhandledCudaError(?!.{0,2000}Cuda failure)",
        "A CUDA call inside NCCL failed, but no reason was reported. GPU memory may have run out: NCCL allocates its buffers outside PyTorch's allocator.",
    ),
    MessagePattern(_DISGUISED, "XPU", r"(?:UR_RESULT|PI)_ERROR_OUT_OF_RESOURCES|CL_OUT_OF_RESOURCES", _FAILED),
    MessagePattern(
        _DISGUISED, "CUDA", r"NVML_SUCCESS == [^\n]{0,80}INTERNAL ASSERT FAILED|handles_\.at\(i\) INTERNAL ASSERT FAILED",
        "An internal PyTorch check failed, usually after a failed allocation.",
    ),
    MessagePattern(_DISGUISED, "CUDA", r"assertion '[^'\n]{0,80}cudaSuccess' failed in [^\n]{0,120}(?:Memory|alloc)", _FAILED),
    MessagePattern(_LIKELY, "ONNX Runtime", r"Failed to allocate memory for requested buffer", _ARENA),
    MessagePattern(_DISGUISED, "TensorFlow", r"Dst tensor is not initialized|HSA_STATUS_ERROR_OUT_OF_RESOURCES", _FAILED),
    # --- informal messages from any program
    MessagePattern(_SURE, "", rf"out of {_GPU}|not enough {_GPU}|insufficient {_GPU}|out of memory (?:error )?(?:on|in|for) (?:the |a |your )?(?:GPU|CUDA|device)\b", _CUDA, informal=True),
    MessagePattern(_SURE, "", r"\b(?:GPU|CUDA|VRAM|video|device) memory is (?:insufficient|not enough|not sufficient|too small)|amount of GPU memory[^\n]{0,60}could not", _CUDA, informal=True),
    MessagePattern(_SURE, "", rf"\b(?:GPU|CUDA|VRAM)(?:[:_ ]?\d{{1,2}})?\b(?!-|: tasks? )[^\n]{{0,40}}[\s(]out of memory|\bCUDA OOM\b|\bGPU OOM\b|{_MEMORY_OF}exhausted|{_MEMORY_OF}full\b|{_MEMORY_OF}allocation fail", _CUDA, informal=True),
    MessagePattern(_SURE, "", r"\b(?:OOM|requested|needs?|requires?)\b[^\n]{0,60}\b(?:VRAM|GPU memory|device memory)\b[^\n]{0,40}\bbut only\b", _TOO_SMALL, informal=True),
    MessagePattern(_PINNED, "", rf"{_CANNOT} allocate\b[^\n]{{0,40}}\b(?:pinned|page-?locked)\b", "Page-locked host memory could not be allocated.", informal=True),
    MessagePattern(_SURE, "", rf"{_CANNOT} allocate\b[^\n]{{0,20}}\b(?:GPU|CUDA\d?|device|VRAM)\b", _CUDA, informal=True),
    MessagePattern(_HOST, "", rf"{_CANNOT} allocate\b[^\n]{{0,20}}\b(?:CPU|host|RAM)\b", _SYSTEM, informal=True),
    MessagePattern(_HOST, "", rf"out of {_HOSTS}|not enough {_HOSTS}|insufficient {_HOSTS}", _SYSTEM, informal=True),
    MessagePattern(
        _DISGUISED, "", r"\bout of memory\b|\bOutOfMemory\b|OUT_OF_MEMORY\b|not enough (?:free |available )?memory\b|insufficient (?:free |available )?memory\b|memory allocation (?:failed|failure|error)|\balloc(?:ation)? fail(?:ed|ure)\b[^\n]{0,20}\b(?:size|bytes)"
        rf"|{_CANNOT} allocate\b[^\n]{{0,40}}\b(?:bytes|memory(?! in static)|[KMG]i?B|buffer)\b",
        "The message reports a lack of memory, but not whether GPU memory or host memory ran out.", informal=True,
    ),
)  # fmt: skip
