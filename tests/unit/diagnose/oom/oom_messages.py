"""Error messages from real reports: the text and its source, grouped by certainty."""

TRAILER = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable "
    "device-side assertions.\n"
)

CUDA_NOW = (
    "CUDA out of memory. Tried to allocate 546.00 MiB. GPU 1 has a total capacity of 15.77 GiB of which 514.19 MiB is free. "
    "Process 4321 has 2.00 GiB memory in use. Including non-PyTorch memory, this process has 13.25 GiB memory in use. "
    "14.00 GiB allowed; Of the allocated memory 12.50 GiB is allocated by PyTorch, with 46.00 MiB allocated in private pools "
    "(e.g., CUDA Graphs), and 512.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large "
    "try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
CUDA_2_0 = (
    "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.93 GiB total capacity; 6.84 GiB already allocated; "
    "13.31 MiB free; 6.88 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting "
    "max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
)
CUDA_1_1 = (
    "CUDA out of memory. Tried to allocate 1.50 GiB (GPU 2; 10.92 GiB total capacity; 8.00 GiB already allocated; "
    "1.25 GiB free; 1.10 GiB cached)"
)
ASYNC = (
    "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 15.00 GiB\n"
    "Requested               : 512.00 KiB\nDevice limit            : 16.00 GiB\nFree (according to CUDA): 0 bytes\n"
    "PyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB"
)
MPS = (
    "MPS backend out of memory (MPS allocated: 17.50 GB, other allocations: 4.00 MB, max allowed: 18.13 GB). "
    "Tried to allocate 1024.00 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for "
    "memory allocations (may cause system failure)."
)

SURE = [
    (CUDA_NOW, "CUDA"),
    (CUDA_2_0, "CUDA"),
    (CUDA_1_1, "CUDA"),
    (ASYNC, "CUDA"),
    ("CUDA error: out of memory" + TRAILER, "CUDA"),
    (
        "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda",
        "CUDA",
    ),
    (
        "cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58",
        "CUDA",
    ),
    ("CUDA driver error: out of memory", "CUDA"),
    ("cuMemAlloc failed: out of memory", "CUDA"),
    ("[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY", "CUDA"),
    (
        "std::bad_alloc: out_of_memory: CUDA error at: /rmm/mr/device/cuda_memory_resource.hpp:70: cudaErrorMemoryAllocation out of memory",
        "CUDA",
    ),
    ("torch.OutOfMemoryError: Allocation on device", "CUDA"),
    (
        "Caught OutOfMemoryError in replica 1 on device 1.\nOriginal Traceback (most recent call last):",
        "CUDA",
    ),
    ("terminate called after throwing an instance of 'c10::CUDAOutOfMemoryError'", "CUDA"),
    (
        'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":830, please report a bug to PyTorch.',
        "CUDA",
    ),
    (
        'NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":813',
        "CUDA",
    ),
    (
        "HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.98 GiB of which 1.21 GiB is free.",
        "HIP",
    ),
    ("HIP error: out of memory\nHIP kernel errors might be asynchronously reported", "HIP"),
    (
        "XPU out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 16.50 GiB.",
        "XPU",
    ),
    ("Native API failed. Native API returns: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", "XPU"),
    (MPS, "MPS"),
    ("Invalid buffer size: 24.00 GB", "MPS"),
    (
        "Error: command buffer exited with error status. Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
        "MPS",
    ),
    ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "cuDNN"),
    (
        "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled cuda error (run with NCCL_DEBUG=INFO for "
        "details), NCCL version 2.20.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
        "Cuda failure 2 'out of memory'",
        "NCCL",
    ),
    ("enqueue.cc:1085 NCCL WARN Cuda failure 'out of memory'", "NCCL"),
    ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.", "XLA"),
    (
        "-- Process 0 terminated with the following error:\nTraceback (most recent call last):\n  ...\n"
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "CUDA",
    ),
]

LIKELY = [
    ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasLtMatmul(...)`", "cuBLAS"),
    ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "cuDNN"),
    ("cuFFT error: CUFFT_ALLOC_FAILED", "cuFFT"),
    ("rocblas_status_memory_error", "cuBLAS"),
    ("Check failed: e == CUDNN_STATUS_SUCCESS (2 vs. 0)", "cuFFT"),
]

DISGUISED = [
    ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "cuBLAS"),
    ("CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`", "cuBLAS"),
    ("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`", "cuSOLVER"),
    ("CUDA error: CUSPARSE_STATUS_ALLOC_FAILED when calling `cusparseCreate(handle)`", "cuSPARSE"),
    ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "cuBLAS"),
    ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`", "cuBLAS"),
    ("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "cuDNN"),
    ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "cuDNN"),
    ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", "cuDNN"),
    ("FIND was unable to find an engine to execute this computation", "cuDNN"),
    ("GET was unable to find an engine to execute this computation", "cuDNN"),
    ("Unable to find a valid cuDNN algorithm to run convolution", "cuDNN"),
    (
        "cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`",
        "cuSOLVER",
    ),
    ("cusolver error: 7, when calling `cusolverDnCreate(handle)`", "cuSOLVER"),
    ("cuFFT error: CUFFT_INTERNAL_ERROR", "cuFFT"),
    ("CUDA error: CUSPARSE_STATUS_INSUFFICIENT_RESOURCES when calling `cusparseSpMM(...)`", "cuSPARSE"),
    (
        "NCCL Error 1: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "NCCL",
    ),
    ("Native API failed. Native API returns: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)", "XPU"),
    ('!handles_.at(i) INTERNAL ASSERT FAILED at "c10/cuda/CUDACachingAllocator.cpp":487', "CUDA"),
    ("the renderer ran out of memory", ""),
]

HOST = [
    (
        "[enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
        "17179869184 bytes. Error code 12 (Cannot allocate memory)",
        "CPU",
    ),
    (
        "[enforce fail at ..\\c10\\core\\impl\\alloc_cpu.cpp:81] data. DefaultCPUAllocator: not enough memory: you tried to "
        "allocate 1073741824 bytes.",
        "CPU",
    ),
    ("$ Torch: not enough memory: you tried to allocate 4GB. Buy new RAM!", "CPU"),
    ("unable to mmap 4096 bytes from file </weights.bin>: Cannot allocate memory (12)", "CPU"),
    (
        "Unable to allocate 7.45 GiB for an array with shape (1000000000,) and data type float64",
        "NumPy",
    ),
    ("std::bad_alloc", "C++"),
    ("bad allocation", "C++"),
    ("[Errno 12] Cannot allocate memory", "system"),
    (
        "DataLoader worker (pid 22239) is killed by signal: Bus error. It is possible that dataloader's workers are out of "
        "shared memory. Please try to raise your shared memory limit.",
        "shared memory",
    ),
    ("unable to write to file </torch_18692_1954506624>: No space left on device (28)", "shared memory"),
    (
        "unable to allocate shared memory(shm) for file </torch_9_1>: Resource temporarily unavailable (11)",
        "shared memory",
    ),
    (
        "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)",
        "shared memory",
    ),
    ("DataLoader worker (pid 1234) is killed by signal: Killed. ", "system"),
    (
        "[  510.1] Out of memory: Killed process 1234 (python) total-vm:80000000kB, anon-rss:61000000kB",
        "system",
    ),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0", "system"),
    ("Root Cause (first observed failure):\n  exitcode  : -9 (pid: 77)", "system"),
    (
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        "Ray",
    ),
    ("Traceback (most recent call last):\n  ...\nMemoryError", "Python"),
    ("posix_memalign failed to allocate 1073741824 bytes", "CPU"),
]

PINNED = [
    (
        "Caught RuntimeError in pin memory thread for device 0.\nOriginal Traceback (most recent call last):\n"
        '  File "pin_memory.py", line 37, in do_one_step\nRuntimeError: CUDA error: out of memory',
        "CUDA",
    ),
    (
        "cudaHostAlloc(&ptr, size, cudaHostAllocDefault) failed: CUDA error: out of memory",
        "CUDA",
    ),
    ("failed to alloc 34359738368 bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory", "CUDA"),
]

NOT_MEMORY = [
    "CUDA out of memory. Tried to allocate more than 1EB memory.",
    "CUDA out of memory. Tried to allocate 17179869184.00 GiB (GPU 0; 15.77 GiB total capacity; 13 GiB free)",
    "HIP out of memory. Tried to allocate 17592186044416.00 MiB (GPU 0; 15.98 GiB total capacity)",
    "DefaultCPUAllocator: can't allocate memory: you tried to allocate 18446744073709551608 bytes. Error code 12",
    "out of resource: shared memory, Required: 147456, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.",
    "CUDA error: too many resources requested for launch" + TRAILER,
    "CUDA error: an illegal memory access was encountered" + TRAILER,
    "CUDA error: device-side assert triggered" + TRAILER,
    "CUDA error: misaligned address",
    "CUDA error: invalid device ordinal",
    "[Errno 28] No space left on device: 'checkpoint.pt'",
    "unable to open shared memory object </torch_9> in read-write mode: Too many open files (24)",
    "libgomp.so.1: cannot allocate memory in static TLS block",
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory location.",
    "required rank 4 tensor to use channels_last memory format",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input.",
    "CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm(...)`",
    "NCCL error: unhandled cuda error, NCCL version 2.20.5\nncclUnhandledCudaError: Call to CUDA function failed.\n"
    "Last error:\nCuda failure 1 'invalid argument'",
    "RESOURCE_EXHAUSTED: Received message larger than max (4194305 vs. 4194304)",
    "DataLoader worker (pid(s) 512) exited unexpectedly",
    "mat1 and mat2 shapes cannot be multiplied (8x10 and 12x4)",
    "The out-of-memory handler is not callable",
    "",
]
