"""Messages of errors that are not about memory, each with the code whose page explains the error.

If several entries match the same line, the first entry in the table is used.

A `weak` entry matches a message that another error causes, such as a launcher's list of exited processes. A weak
entry is the result only if the log contains no other error.

`oom.known_messages` contains the messages about memory, and `python_errors` classifies other messages by their
wording.
"""

import re
from dataclasses import dataclass

from legroom.diagnose.explain.cuda_statuses import STATUSES, pattern_of
from legroom.diagnose.oom.known_messages import (
    IMPOSSIBLE_SIZES,
    UNUSABLE_DEVICE,
    Certainty,
    MessagePattern,
    compile_variants,
)
from legroom.diagnose.oom.recognize import ErrorClassification


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of error that is not about memory."""

    code: str
    variants: tuple[tuple[str, re.Pattern[str]], ...]
    """Regular expressions, each with a lower-case literal that every match contains."""
    weak: bool = False


def memory_code(message: MessagePattern | ErrorClassification) -> str:
    """Return the code that explains a message about memory, or "" if the message is not about memory."""
    if message.certainty is Certainty.SURE:
        return "LG700"
    if message.certainty in (Certainty.DISGUISED, Certainty.LIKELY):
        return "LG706" if message.source == "NCCL" else "LG701"
    if message.certainty is Certainty.PINNED:
        return "LG704"
    if message.certainty is Certainty.HOST:
        return _HOST.get(message.source, "LG705" if "killed" in message.reason else "LG702")
    return ""


_HOST = {"shared memory": "LG703", "heap limit": "LG707"}


def _rule(code: str, pattern: str, *, weak: bool = False) -> Rule:
    return Rule(code, compile_variants(pattern), weak)


def _status(code: str) -> Rule:
    return _rule(code, pattern_of(STATUSES[code]))


_CRASH_CODES = r"(?:-11|139|-4|132|-8|136|-1073(?!741510)\d{6}|32212(?!25786)\d{5})\b"
_ABORT_CODES = r"(?:-6|134)\b"
"""Exit codes after a crash: signals on Linux, and status codes on Windows."""

SIZE_RULES: tuple[Rule, ...] = (
    _rule("LG719", IMPOSSIBLE_SIZES),
    _rule("LG724", UNUSABLE_DEVICE),
    # A call that the system rejects for a reason other than a lack of shared memory.
    _rule("LG731", r"NCCL WARN Call to (?:shm_)?open failed ?: (?:Permission denied|Operation not permitted|No such file).{0,600}shared memory segment"),
    _rule("LG783", r"(?:unable to open shared memory object|unable to mmap)[^\n]{0,300}(?:Permission denied|Operation not permitted|Read-only file system)"),
    # Without a GPU build, the whole model is placed on the CPU.
    _rule("LG726", r"compiled without GPU support.{0,6000}enough GPU RAM"),
    # PyTorch calls the driver directly for expandable segments, which Jetson does not support.
    _rule("LG728", r"\b(?:Jetson|Tegra|Orin)\b.{0,3000}CUDA driver error: out of memory"),
    _rule("LG742", r"unable to mmap \d{1,6} bytes from file <[^\n]{0,120}: Cannot allocate memory"),
    _rule(
        "LG719", r"alloc_cpu\(\) seems to have been called with negative number|create tensor with negative dimension|Storage size calculation overflowed|numel: integer multiplication overflow|tensor size exceeds: \d+"
        r"|more than INT_MAX elements|canUse32BitIndexMath|(?:too (?:large|many elements)|exceeds?) [^\n]{0,40}32-bit ind|more than 2\*\*31 elements|(?:less|more|larger) than 2(?:\*\*|\^|\*\*\*)3[12]\b|> 2\*\*3[12]\b|larger than currently supported by the \w+ backend|input tensor is too large|fit in(?:to)? int32|negative dimensions are not allowed|Maximum allowed dimension exceeded|Maximum allowed size exceeded|is larger than the maximum possible size|vector::_M_\w+|cannot create std::vector larger than max_size|into an index-sized integer",
    ),
)  # fmt: skip
"""Messages about impossible sizes, and about limits and missing permissions that are reported as a lack of memory.

The search for these messages comes before the search for messages about memory.
"""
RULES: tuple[Rule, ...] = (
    # --- what happened on the GPU
    _status("LG710"),
    _rule("LG710", r"Assertion `[^`\n]{1,200}[`'] failed[^\n]{0,20}$|Device-side assertion `|block: \[\d+,\d+,\d+\], thread: \[\d+,\d+,\d+\] Assertion"),
    _status("LG711"),
    _rule("LG711", r"Memory access fault by GPU node|command buffer exited with error status|HSA_STATUS_ERROR_(?:MEMORY|EXCEPTION|ILLEGAL)\w*|NVRM: Xid[^\n]{0,40}\): (?:13|31|43|45)\b(?![^\n]{0,120}caused by previous Xid)|Invalid __(?:global|shared|local)__ (?:read|write) of size|\baicore (?:error|exception)"),
    _status("LG725"),
    _rule("LG725", r"fallen off the bus[^\n]*(?:\n[^\n]*NVRM: The NVIDIA probe routine failed)?|NVRM: Xid|GPU_IS_LOST|GPU is lost|Unable to determine the device handle for GPU|GPU requires reset|RmInitAdapter failed|Critical Xid Error|infoROM is corrupted|_ERROR_DEVICE_LOST|HW Exception by GPU node"),
    _rule("LG750", r"out of resources?: [^\n]{0,120}|Required: \d+,? Hardware limit|triton\S*OutOfResources|uses too much shared (?:data|memory)"),
    _status("LG750"),
    # --- values and shapes
    _rule("LG712", r"index out of range in self|indices\[[\d,]+\] = -?\d+ is not in \[|Target -?\d+ is out of bounds|index -?\d+ is out of bounds for dimension \d+ with size"),
    _rule("LG712", r"Class values must be (?:smaller than num_classes|non-negative)|all elements of (?:input|target) should be between 0 and 1"),
    _rule("LG712", r"probability tensor contains either `?inf`?, `?nan`? or element < 0|cur_target >= 0 && cur_target < n_classes"),
    _rule("LG710", r"RuntimeError: Assertion `[^`\n]{1,200}[`'] failed"),
    _rule(
        "LG714", r"mat1 and mat2 shapes cannot be multiplied|size mismatch, (?:m1|get|got)|mat1 dim 1 must match mat2 dim 0"
        r"|shape '\[[^\n]{0,80}\]' is invalid for input of size \d+|Expected size for first two dimensions of batch2 tensor",
    ),
    _rule(
        "LG715", r"expected input\[[^\n]{0,80}\] to have \d+ channels|to have \d+ channels, but got \d+ channels instead|Kernel size can't be greater than actual input size"
        r"|Expected [^\n]{0,40}input to conv\dd|calculated padded input size per channel|running_mean should contain \d+ elements|expected \d+D(?: or \d+D)? input \(got \d+D input\)",
    ),
    _rule("LG715", r"Given (?:transposed=\w+|groups=\d+), (?:expected )?weight of size|expected \d-dimensional input for \d-dimensional weight|Given input size: \([^\n]{1,40}\)\. Calculated output size"),
    _rule("LG744", r"collate.{0,600}stack expects each tensor to be equal size|each element in list of batch should be of equal size"),
    _rule(
        "LG716", r"Sizes of tensors must match except in dimension|The size of tensor a \(\d+\) must match the size of tensor b|must match the existing size \(\d+\)"
        r"|stack expects each tensor to be equal size|Expected input batch_size \(\d+\) to match target batch_size|normalized_shape=|input\.size\(-1\) must be equal to input_size",
    ),
    _rule("LG716", r"Expected target size\b|Using a target size \([^\n]{0,60}\) that is different to the input size|Expected more than 1 value per channel when training|shape mismatch: (?:value|indexing) tensor"),
    _rule("LG716", r"invalid index of a 0-dim tensor|Dimension out of range \(expected to be in range of|Target size \([^\n]{0,60}\) must be the same as input size|batch1 dim \d must match batch2|multi-target not supported"),
    _rule("LG717", r"Error\(s\) in loading state_dict|(?:unexpected|missing) keys? [^\n]{0,200} in (?:source )?state_dict|While copying the parameter named|(?:Missing|Unexpected) key\(s\) in state_dict|size mismatch for \S+: copying a param|ignore_mismatched_sizes|Trying to set a tensor of shape"),
    # --- devices and data types
    _rule(
        "LG713", r"Expected all tensors to be on the same device|Placeholder storage has not been allocated on|should be the same or input should be a MKLDNN tensor|Expected object of (?:device|backend) type|to have the same device as tensor for argument"
        r"|Input and (?:parameter|hidden) tensors are not at the same device|Expected a 'cuda' device type for generator|module must have its parameters and buffers on device",
    ),
    _rule("LG713", r"can't convert (?:cuda\S*|CUDA|xpu\S*|mps\S*) (?:device type )?tensor to numpy|indices should be either on cpu or on the same device"),
    _rule("LG713", r"Input type \(torch\.cuda\.\w+\) and weight type \(torch\.\w+\) should be the same|Input type \(torch\.\w+\) and weight type \(torch\.cuda\.\w+\) should be the same"),
    _rule(
        "LG718", r"expected (?:scalar type \w+ but found \w+|m1 and m2 to have the same dtype)|mat1 and mat2 must have the same dtype"
        r"|Input type \([^\n]{1,40}\) and (?:bias|weight) type \([^\n]{1,40}\) should be the same|Found dtype \w+ but expected \w+|\w\W not implemented for '\w+",
    ),
    _rule("LG718", r"result type \w+ can't be cast to the desired output type|Expected tensor for argument #\d+ '\w+' to have (?:one of the following )?scalar type|self and mat2 must have the same dtype"),
    _rule("LG718", r"to have the same dtype, but got|query, key, and value to have the same dtype|expects (?:a )?\w+ scalar type|expected dtype \w+ for"),
    # --- GPU libraries
    _rule("LG723", r"Possibly insufficient driver version"),
    _rule("LG720", r"Loaded runtime CuDNN library: |cuDNN Frontend error|\[cudnn_frontend\]|cuDNN version incompatibility|CUDNN_STATUS_\w+|miopenStatus\w+|CUDNN_BACKEND_\w+[^\n]{0,80}(?:fail|error)"),
    _rule("LG721", r"(?:CU|HIP)(?:BLAS|SOLVER|SPARSE|RAND)_STATUS_\w+|(?:CU|HIP)FFT_(?!SUCCESS)[A-Z]+_[A-Z_]+|rocblas_status_\w+|MAGMA_ERR\w*|nvrtc: error|NVRTC_ERROR\w*|NVJITLINK_ERROR\w*|CUTENSOR_STATUS_\w+"),
    _status("LG722"),
    _rule("LG722", r"is not compatible with the\s+current PyTorch installation|supports CUDA capabilities|no longer supports? this GPU|only supports? (?:Ampere|Hopper|Turing|Volta|GPUs with|devices of CUDA Capability)|requires? (?:a GPU with )?(?:compute|device) capability|capability[^\n]{0,40}(?:too low|is too old|or (?:higher|above|newer))|sm_\d+[^\n]{0,60}not supported|sm_\d+[^\n]{0,60}not defined|Unsupported gpu architecture|TensileLibrary[^\n]{0,80}GPU arch|hipErrorNoBinaryForGpu[^\n]*(?:\n[^\n]{0,40}$)?"),
    _status("LG723"),
    _rule("LG723", r"driver on your system is too old|Driver/library version mismatch|NVRM: API mismatch|Error 80[34]:|The detected CUDA version \([\d.]+\) mismatches|CUDA version mismatch|requires? (?:a )?(?:newer )?(?:NVIDIA )?driver|unsatisfied condition: cuda>="),
    _status("LG724"),
    _rule(
        "LG724", r"Torch not compiled with CUDA enabled|No CUDA GPUs are available|Found no NVIDIA driver|ProcessGroupNCCL is only supported with GPUs|No HIP GPUs are available"
        r"|all CUDA-capable devices are busy or unavailable|CUDA unknown error|CUDA driver initialization failed|not linked with support for \w+ devices|CUDA-enabled jaxlib is not installed|_ERROR_DEVICE_NOT_(?:AVAILABLE|FOUND)",
    ),
    _rule("LG724", r"TPU is already in use|cuInit: |CUDA initialization: |NVIDIA-SMI has failed because|could not select device driver|No (?:NVIDIA )?devices? (?:were|was) found|NVML_ERROR_\w+|initialize NVML|invalid runtime name: nvidia|unknown runtime specified nvidia|no runtime binary found|NVMLError\w*|nvml error: |Module nvidia\S* not found|nvidia-container-cli: "),
    _status("LG726"),
    _rule(
        "LG726", r"cannot open shared object file|load the \S{1,40} shared library|Could not load (?:dynamic )?library '?\w+|undefined symbol: \w+|load symbol \w+|DLL load failed|version `[A-Z]+_[\d.]+' not found|cannot allocate memory in static TLS block",
    ),
    _rule("LG726", r"or one of its dependencies|fbgemm\.dll|operator torchvision::nms does not exist|couldn't load custom ops|libcu\w+\.so[.\d]* not found|CUDA Setup failed|no attribute 'cadam32bit|compiled against API version|numpy\.dtype size changed|Error while loading conda entry point|OMP: Error #15|multiple copies of the OpenMP runtime|Symbol not found: |PyTorch and torchvision (?:were|was) compiled with different CUDA"),
    _rule(
        "LG726", r"was built for:\s+PyTorch|load C.{0,3}/CUDA extensions|load custom C.{0,3} ops|dlopen some GPU libraries|Failed to create CUDAExecutionProvider|MKL_THREADING_LAYER=\w+ is incompatible"
        r"|Numpy is not available|compiled using NumPy 1\.x cannot be run|'NoneType' object has no attribute 'c(?:adam|lion|quantize|dequantize|igemm|gemm|get_c)\w+",
    ),
    _rule("LG726", r"CUDA SETUP: (?!Loading binary|CUDA runtime path found|Detected CUDA|Highest compute|PyTorch settings found)|bitsandbytes native library|implementation for device \S{1,20} not found|Could not run '[\w:.]+' with arguments from the|(?:compiled|built) without (?:GPU|CUDA) support|(?:not|n't) (?:compiled|built|build) with (?:GPU|CUDA) support|compiled with a different (?:ABI|CUDA)"),
    _rule("LG727", r"Cannot re-initialize (?:CUDA|XPU|HIP) in forked subprocess"),
    _rule("LG735", r"exit code\W{1,4}(?:-1073741510|3221225786)\b|exit status\W{1,4}(?:-1073741510|3221225786)\b|0xC000013A", weak=True),
    _rule(
        "LG729", rf"Segmentation fault|segfault at|Fatal Python error: (?!Aborted)|SIGSEGV(?! or (?:an)?other unexpected)|SIGILL|Illegal instruction|Floating point exception"
        rf"|exit code\W{{1,4}}{_CRASH_CODES}\b|exit status\W{{1,4}}{_CRASH_CODES}\b|return code\W{{1,4}}{_CRASH_CODES}\b|exitcode\s*: {_CRASH_CODES}\b|(?:shutdown with|killed by) signal (?:4|8|11)\b|0xC000(?!013a)[0-9a-f]{{4}}\b|Access ?Violation(?:Exception| reading| writing)|Windows fatal exception|zsh: (?:illegal hardware instruction|trace trap)",
        weak=True,
    ),
    # An abort often follows from an exception in C++ code, such as NCCL's watchdog.
    _rule(
        "LG729", r"SIGABRT|Fatal Python error: Aborted|Aborted \(core dumped\)|\bcore dumped\b|double free or corruption|free\(\): \w+|malloc\(\): \w+|munmap_chunk\(\): \w+"
        r"|corrupted (?:size vs|double-linked)|pure virtual method called|stack smashing detected|exit code\W{1,4}(?:-6|134)\b|exit status\W{1,4}(?:-6|134)\b|return code\W{1,4}-6\b|exitcode\s*: -6\b|(?:shutdown with|killed by) signal 6\b|(?:^|\n)Aborted\s*(?:\n|$)|zsh: abort",
        weak=True,
    ),
    # --- several processes
    _rule(
        "LG730", r"Watchdog caught collective operation timeout|ran for \d+ milliseconds before timing out|Timed out (?:waiting|initializing) \S+|collective operation timeout"
        r"|Watchdog got stuck for|Notify register times out|monitoredBarrier|program may be hanging|failed to recv, got 0 bytes",
    ),
    _rule("LG730", r"due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted|wait timeout after \d+ms", weak=True),
    _rule(
        "LG731", r"unhandled system error|ncclSystemError|ncclInternalError|NCCL[^\n]{0,200}internal error|invalid usage \(run with|ncclInvalidUsage|ncclInvalidArgument|Duplicate GPU detected|NCCL WARN (?:Net|Call to)"
        r"|Call to ibv_\w+ failed|Bootstrap : no socket interface found|Cuda failure (?:\d+ )?'(?!out of memory)|NCCL WARN [A-Z]|NCCL (?:error|failure)[^\n]{0,20}: (?!unhandled cuda error|[^\n]{0,300}remote process exited)",
    ),
    _status("LG731"),
    _rule("LG731", r"ncclRemoteError|remote process exited or there was a network error|Connection closed by (?:remote )?peer|Connection reset by peer|(?<!\[Errno 32\] )Broken pipe", weak=True),
    _rule("LG732", r"Expected to have finished reduction in the prior iteration|Expected to mark a variable ready only once|was marked (?:as )?ready (?:twice|multiple)|parameters? which did not receive grad"),
    _rule("LG732", r"DDP expects same model across all ranks|Detected mismatch between collectives|params?\[\d+\] in this process with sizes"),
    _rule(
        "LG733", r"EADDRINUSE|Address already in use|The (?:server|client) socket has (?:failed to listen|timed out)|RendezvousTimeoutError|RendezvousConnectionError|Distributed package doesn't have|Default process group has not been initialized"
        r"|environment variable (?:RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|LOCAL_RANK) expected",
    ),
    _rule("LG733", r"client socket has failed to connect to (?![^\n]{0,120}errno: 97)", weak=True),
    # Schedulers print the reason on the same line. A signal without a reason may follow from another error.
    _rule(
        "LG735", r"CANCELLED AT [^\n]{0,40}DUE TO|job killed: walltime \d+|TERM_RUNLIMIT|TERM_OWNER|reached its time limit|(?:active longer than specified|exceeded its) deadline|Preempted by |Node failure on \w+"
        r"|job submission failed: |Unable to (?:allocate resources|create step): |Unable to create step for job|Insufficient nvidia\.com/gpu|FailedScheduling|not enough slots available in the system|\d/\d\s+OutOf\w+",
    ),
    _rule("LG735", r"CANCELLED AT |Force Terminated job|Job step aborted|got signal: (?:1|2|15)\b|Signals\.SIG(?:TERM|INT|HUP)|exit code:?\s{0,8}143\b|TERM_\w+: job killed|SIGTERM received by|: line \d+:\s+\d+ Terminated\b|(?:^|[\r\n]|\])\s*Terminated\s*(?:[\r\n]|$)", weak=True),
    _rule("LG740", r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) exited unexpectedly|DataLoader worker exited unexpectedly|DataLoader timed out after|Pin memory thread exited unexpectedly", weak=True),
    _rule("LG734", rf"ChildFailedError|ExecuteUserScriptError|failed, log is in |please check its log|killed by unknown signal|exitcode\s*: [1-9]\d* \(pid|local_rank: \d+ \(pid: \d+\) of binary|ProcessExitedException|returned non-zero exit status (?!{_CRASH_CODES}|{_ABORT_CODES})|exited with code -?[1-9]|exit code:?\s{{0,8}}'?(?!{_CRASH_CODES}|{_ABORT_CODES})-?[1-9]\d*\b|exit status:? (?!{_CRASH_CODES}|{_ABORT_CODES})-?[1-9]\d*\b|exits with return code = [1-9]|ProcessRaisedException|Killing subprocess \d|Sending process \d+ closing signal SIGTERM|A worker died or was killed while executing a task|The (?:worker|actor) died|abruptly died|workers died|Horovod has been shut down|BrokenProcessPool|Back-off restarting failed container|See root cause above|stack trace for (?:the )?root cause|Trials did not complete|EngineDeadError|ShardCannotStart|KilledWorker|background workers are no longer alive", weak=True),
    # --- loading data
    _rule("LG743", r"from_parent.{0,200}Ran out of input|ForkingPickler.{0,200}Broken pipe|ForkingPickler.{0,200}Invalid argument"),
    _rule("LG740", r"DataLoader worker \(pid[^\n]{0,20}\) is killed by signal: (?!Killed|Bus)"),
    _rule("LG741", r"in DataLoader worker process \d+", weak=True),
    _rule("LG745", r"only dense CPU tensors can be pinned|provide pin_memory allocator|no pinned memory allocator|pinned memory requires|pin_memory' argument is set as true but no accelerator"),
    _rule("LG742", r"can't start new thread|pthread_create failed|fork: [^\n]{0,20}Resource temporarily unavailable|Too many open files|received 0 items of ancdata|unable to open shared memory object"),
    _rule("LG743", r"Can't (?:pickle|get) local object|Can't pickle <(?:function|class)|An attempt has been made to start a new process before|cannot pickle '[\w.]+' object|objects cannot be pickled|Can't get attribute '\w+' on <module '__main__' \(built-in\)>|freeze_support\(\)"),
    _rule("LG744", r"batch must contain tensors, numpy arrays, numbers, dicts or lists|Trying to resize storage that is not resizable"),
    # --- compiled code
    _rule("LG751", r"Failed to find C compiler|Cannot find a working triton installation|Cannot find working triton|No module named 'triton|ptxas (?:fatal|error)|ptxas [^\n]{0,200}; error|PTXASError|CUDA_HOME environment variable is not set|Ninja is required to load|find nvcc\b|Compiler: \S+ is not found|CppCompileError"),
    _rule("LG751", r"Error building extension '|Could not build wheels for|Failed building wheel for|ninja: build stopped|\['ninja', |unsupported GNU version|Microsoft Visual C.{0,40} is required|Command '\[(?:'which', )?'[^'\n]{0,80}(?:gcc|g\+\+|c\+\+|clang|nvcc|cl\.exe)'|does not match the version torch was compiled with"),
    _rule("LG751", r"error: command '[^'\n]{0,200}nvcc' failed|Error compiling objects for extension|fatal error: (?:cuda\w*|cublas\w*|cusparse|Python)\.h"),
    _rule("LG751", r"(?:nvcc|ninja|g\+\+|gcc|cmake): (?:command )?not found", weak=True),
    _rule("LG790", r"(?:torchrun|python3?|pip3?|accelerate|deepspeed|conda|huggingface-cli): (?:command )?not found|is not a supported wheel on this platform|PackagesNotFoundError|ResolvePackageNotFound|UnsatisfiableError", weak=True),
    _rule("LG752", r"output of CUDAGraphs that has been overwritten|torch\._dynamo\.exc\.\w+|triton\.compiler\.\S{0,30}Error|No valid triton configs|BackendCompilerFailed|torch\._inductor\.exc\.\w+|InductorError|LLVM ERROR: |recompile_limit|cache_size_limit|GuardOnDataDependentSymNode"),
    # --- precision
    _rule(
        "LG760", r"Function '\w+' returned nan values in its \d+\w+ output|cannot be converted to type (?:at::)?(?:c10::)?Half without overflow|loss is (?:nan|inf)\b|Loss is (?:nan|inf|NaN), stopping"
        r"|Gradient overflow\.\s+Skipping step|OVERFLOW! Rank \d+ Skipping step|overflow!? [^\n]{0,20}Skipping step|Grad(?:ient)?s? overflow\w* |overflow detected[^\n]{0,40}loss scale|Current loss scale already at minimum|Minimum loss scale reached",
    ),
    _rule("LG760", r"loss\w{0,12} {0,2}[:=] {0,2}nan\b|\b(?:loss|norm|grad)\w*: nan\b|\b(?:loss|norm|grad)\w*=nan\b|grad(?:ient)?[ _]norm is (?:inf|nan)|became infinite or NaN|became nan\b|found NaN in|NaN or Inf found in|nonfinite gradients|non-finite (?:loss|gradient)|The total norm of order [\d.]+ for gradients from `parameters` is non-finite|\bloss'?[:=]? nan\b|\bloss[:=]nan\b|\bloss = nan\b"),
    _rule("LG761", r"Attempting to unscale FP16 gradients|unscale_\(\) has already been called|No inf checks were recorded for this optimizer|step\(\) has already been called since the last update|unsafe to autocast|unscale_\(\) is being called after"),
    # --- autograd
    _rule(
        "LG770", r"Trying to backward through the graph a second time|does not require grad and does not have a grad_fn|has been modified by an inplace operation"
        r"|leaf Variable that requires grad (?:is being used in|has been moved)|Can't call numpy\(\) on Tensor that requires grad|grad can be implicitly created only for scalar outputs",
    ),
    _rule("LG770", r"One of the differentiated Tensors appears to not have been used in the graph|Only Tensors created explicitly by the user support the deepcopy|Inference tensors cannot be saved for backward"),
    # --- files
    _rule("LG780", r"\[Errno 28\]|unexpected pos \d+ vs \d+|write\(\): fd \d+ failed|PytorchStreamWriter failed|No space left on device|quota exceeded|\[Errno 122\]|StorageFull"),
    _rule("LG780", r"(?:not enough|insufficient|no|out of)(?: free)? (?:disk|storage) space|enough space on the disk|\bdisk (?:is )?full|low on resource: ephemeral-storage|ephemeral local storage usage exceeds|EmptyDir volume [^\n]{0,80}exceeds|DiskPressure|is over \d+% full, available space"),
    _rule(
        "LG781", r"PytorchStreamReader failed|failed finding central directory|invalid load key|Weights only load failed|unexpected EOF, expected \d+ more bytes|Ran out of input"
        r"|HeaderTooLarge|MetadataIncompleteBuffer|InvalidHeaderDeserialization|unpickling stack underflow|storage has wrong (?:byte )?size|INVALID_PROTOBUF|Can't get attribute '\w+' on <module|Attempting to deserialize object on (?:a )?CUDA device",
    ),
    # --- downloads, files, packages
    _rule(
        "LG782", r"\b\d{3} Client Error|\b\d{3} Server Error|gated repo|GatedRepoError|RepositoryNotFoundError|LocalEntryNotFoundError|OfflineModeIsEnabled|We couldn't connect to '|HfHubHTTPError"
        r"|is not a local folder and is not a valid model identifier|is not a valid model identifier listed on|Max retries exceeded with url|Failed to establish a new connection|NameResolutionError|Temporary failure in name resolution|SSLCertVerificationError|CERTIFICATE_VERIFY_FAILED|urlopen error|HTTP Error \d{3}|ReadTimeoutError|huggingface-cli login|HTTP status (?:client|server) error|invalid hash value|Consistency check failed: file|Repo id must be in the form",
    ),
    _rule(
        "LG783", r"mmap length is greater than file size|model is corrupted or incomplete|ArrowInvalid|ArrowTypeError|UnidentifiedImageError|cannot identify image file|JSONDecodeError|Error tokenizing data|image file is truncated|Unable to open file \(|Error loading file|Not able to read records in the JSON file",
    ),
    _rule("LG783", r"Assertion failed\) !\w{1,20}\.empty\(\)"),
    _rule("LG783", r"_open_zipfile_writer.{0,600}\bcannot be opened"),
    _rule("LG783", r"DatasetGenerationError", weak=True),
    _rule("LG790", r"cannot import name '|No module named '?\w|module '[\w.]+' has no attribute '|has no attribute '(?:bool|float|int|object)'\.|got an unexpected keyword argument '|Descriptors cannot (?:not )?be created directly|is required (?:for a normal functioning|but found)|requires? the \S+ library but it was not found|DistributionNotFound|VersionConflict|dependency conflicts|No matching distribution found for|does not recognize this architecture|unknown model architecture"),
    _rule(
        "LG791", r"error: unrecognized arguments|error: the following arguments are required|error: argument [^\n]{0,80}: (?:invalid|expected|not allowed|ignored explicit)|error: ambiguous option|No such option: |Unrecognized (?:CUDA ?)?(?:Caching)?Allocator option"
        r"|Error parsing CachingAllocator|Could not override '|Key '[^'\n]{1,80}' is not in struct|batch related parameters",
    ),
    # --- other CUDA errors: an earlier error, if any, is the cause
    _status("LG728"),
    _rule("LG728", r"INTERNAL ASSERT FAILED at [^\n]{0,80}CUDACachingAllocator"),
    _rule("LG728", r"\bcu(?:event|stream|mem|launch|ctx|module|device|graph)\w{2,30} failed|fail(?:ed|s|ure)? to launch (?:\w+ )?kernel|kernel fail(?:ed|s|ure)? to launch|CUDA error executing |cudaSuccess'? failed|(?:CUDA|HIP) kernel fail(?:ed|ure) ?:|NPU (?:function )?error, error code is \d+", weak=True),
    _rule("LG728", r"(?:CUDA|HIP) (?:runtime |driver |kernel )?error: (?!out of memory)|Triton Error \[(?:CUDA|HIP)\]: (?!out of memory)|(?:CUDA|HIP)_ERROR_\w+|cudaError[A-Z]\w+|hipError[A-Z]\w+", weak=True),
)  # fmt: skip

CAUSE_PATTERNS = tuple(
    (code, number, re.compile(pattern, re.IGNORECASE))
    for code, number, pattern in (
        ("LG702", 3, r"cgroup|memory ?limit|MemoryPressure|YARN|low on resource"),
        ("LG704", 2, r"memlock|ulimit -l|ibv_reg_mr"),
        ("LG710", 1, r"n_classes|cur_target"),
        ("LG710", 2, r"srcSelectDimSize|vectorized_gather_kernel|num_embeddings"),
        ("LG710", 3, r"index out of bounds|idx_dim"),
        ("LG710", 4, r"input_val >= zero|probability tensor|cumdist"),
        ("LG712", 1, r"\btarget\b|n_classes|class values|\blabel"),
        ("LG712", 2, r"index out of range in self"),
        (
            "LG712",
            3,
            r"probabilit|out of bounds for dimension|between 0 and 1|constraint|exceeds|invalid index",
        ),
        ("LG713", 3, r"to numpy"),
        ("LG716", 1, r"size of tensor a|except in dimension"),
        ("LG716", 2, r"stack expects each tensor"),
        ("LG716", 3, r"target"),
        ("LG716", 4, r"more than 1 value per channel"),
        ("LG716", 5, r"0-dim tensor|Dimension out of range|too many indices"),
        ("LG717", 1, r"\b(?:module|_orig_mod)\."),
        ("LG717", 2, r"size mismatch|set a tensor of shape"),
        ("LG717", 3, r"parameter groups?"),
        ("LG718", 2, r"\b(?:long|int64|integral|bool|indices|probabilities|Int)\b"),
        (
            "LG718",
            3,
            r"not implemented for|n't support|not support|no (?:available )?kernel|no operator|unsupported",
        ),
        ("LG718", 4, r"ndarray of type"),
        ("LG723", 2, r"too old|insufficient"),
        ("LG723", 3, r"80[34]\b|forward compatibility|unsatisfied condition"),
        ("LG724", 1, r"not compiled with|linked with support"),
        ("LG724", 5, r"MPS allocated"),
        ("LG724", 2, r"no nvidia driver|select device driver|couldn't communicate|NVML|runtime name"),
        (
            "LG724",
            3,
            r"no (?:CUDA|ROCm)-capable|invalid ?device|requested|num_gpus|only has|no \w+ (?:GPUs|devices) are",
        ),
        (
            "LG724",
            4,
            r"busy or unavailable|unknown error|is already in use by|\bMPS\b (?:client|server)|device connections",
        ),
        ("LG726", 3, r"cannot open shared|\bdll\b|dlopen|specified module"),
        ("LG726", 4, r"numpy"),
        ("LG728", 2, r"configuration argument"),
        ("LG719", 4, r"int_max|2(?:\*\*|\^)3[12]|32-?bit|supported by|too large"),
        ("LG728", 5, r"driver error: (?:out of memory|operation not supported)|expandable_segment"),
        ("LG731", 3, r"shm|shared memory"),
        ("LG728", 3, r"resource handle|destroyed|device context"),
        ("LG733", 1, r"already in use|EADDRINUSE"),
        ("LG733", 2, r"waiting for clients|connect|timed? ?out"),
        ("LG733", 3, r"not been initialized|environment variable"),
        ("LG734", 3, r"exitcode\s*: -|signal|SIG[A-Z]+"),
        ("LG735", 1, r"time limit|walltime|run_?limit|deadline"),
        ("LG735", 2, r"(?-i:PREEMPT|NODE FAIL)|preempted by|node failure"),
        ("LG735", 3, r"\bsignal\b|143"),
        ("LG735", 4, r"insufficient|slots|submission|unable to|scheduling"),
        ("LG740", 4, r"timed out"),
        ("LG742", 3, r"thread|fork|errno 11\b"),
        ("LG742", 4, r"unable to mmap"),
        ("LG743", 2, r"start a new process|freeze_support|__main__"),
        ("LG744", 2, r"equal size|not resizable"),
        ("LG745", 2, r"allocator|accelerator|requires CUDA"),
        ("LG752", 3, r"overwritten by"),
        ("LG760", 4, r"input \w+ contains? nan"),
        ("LG761", 1, r"fp16 gradients"),
        ("LG761", 2, r"has already been called|after step|no inf checks|_scale is None"),
        ("LG761", 3, r"unsafe to autocast"),
        ("LG761", 4, r"device_type|autocast.{0,40}dtype|mixed precision"),
        ("LG770", 1, r"second time"),
        ("LG770", 2, r"not require grad|not have been used in the graph"),
        ("LG770", 3, r"in-?place"),
        ("LG770", 4, r"recomput|utils\.checkpoint"),
        ("LG770", 5, r"derivative|gradients? \(expected|invalid gradient|grad_output"),
        ("LG770", 6, r"numpy|deepcopy"),
        ("LG780", 3, r"ephemeral|emptydir|diskpressure"),
        ("LG781", 2, r"weights only load"),
        ("LG781", 4, r"deserialize object on"),
        ("LG781", 5, r"can't get attribute"),
        ("LG782", 1, r"\b40[13]\b|gated|credential|login|logged in"),
        ("LG782", 2, r"\b404\b|not a valid|repo id|repo_id|\bhub\b"),
        ("LG782", 3, r"resolution|resolve|couldn't connect|max retries|offline|certificate"),
        ("LG782", 4, r"\b(?:429|50\d)\b|timeout|timed out|rate limit|closed connection|broken"),
        ("LG783", 2, r"json|image|truncated|\bzip|codec|arrow|parse|eof"),
        ("LG783", 3, r"column|cast\b"),
        ("LG783", 4, r"permission|not permitted|read-only"),
        ("LG791", 2, r"allocator"),
        ("LG791", 3, r"batch"),
    )
)
"""Patterns of messages that name a cause.

Each entry contains a code, the position of the cause on the page of that code (starting at 1), and the pattern.
"""
