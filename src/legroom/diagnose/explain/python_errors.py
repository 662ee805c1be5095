"""Classifies Python errors that match no known message, by class, wording and library.

The wording shows the kind of an error but not the exact cause, so the certainty is `likely`. A message that mentions
memory is not classified, because a wrong classification would be worse than none.
"""

import builtins
import re
from typing import Literal

from legroom.diagnose.explain.error_lines import ErrorLine

ErrorFamily = tuple[Literal["oom", "host-oom", "not-memory", "unknown"], str]
"""The kind of an error, and the code whose page explains this kind, or "" if no page exists."""


def classify_python_error(error: ErrorLine) -> ErrorFamily:
    """Classify an error by its class, then by its wording, then by the library that raised it."""
    name = error.kind.rpartition(".")[2]
    text = _NOT_ABOUT_SIZE.sub("", error.text)
    if name == "OutOfMemoryError" and error.kind.startswith(_HOST_LIBRARIES):
        return "host-oom", "LG702"
    if name == "OutOfMemoryError" and "." in error.kind and not error.kind.startswith(_GPU_LIBRARIES):
        return "unknown", ""
    if name == "MemoryError" and is_raised_by_program(error.frames):
        return "not-memory", ""
    if name in _BY_CLASS:
        return _BY_CLASS[name]
    if _PARSER_CLASS.search(name):
        return "not-memory", "LG783"
    if code := _code_of_errno(text):
        return "not-memory", code
    if name.endswith("Warning") and (name != "UserWarning" or _MAY_BE_MEMORY.search(text)):
        return ("unknown" if _MAY_BE_MEMORY.search(text) else "not-memory"), ""
    if name in _CLEAR_CLASSES and not (name == "KeyError" and _SENTENCE.search(text)):
        return "not-memory", _code_of_type_error(name, text) or _library_of(error)
    if error.text.rstrip().endswith(f"{name}:") and not hasattr(builtins, name):
        return "unknown", ""  # only the name of a library's own class
    if _MAY_BE_MEMORY.search(text):
        return ("not-memory" if name in _VALUE_ERRORS else "unknown"), ""
    code = next((code for code, pattern in _FAMILIES if pattern.search(text)), "") or _library_of(error)
    return "not-memory", code or ("LG791" if _rejects_settings(error) else "")


def is_raised_by_program(frames: str) -> bool:
    """Return True if the program itself raises MemoryError, usually because a data structure such as a replay buffer
    is full.
    """
    return _RAISED_BY_PROGRAM.search(frames) is not None


def is_uninformative(error: ErrorLine) -> bool:
    return classify_python_error(error) in (("not-memory", ""), ("unknown", "")) and error.kind.rpartition(
        "."
    )[2] not in (_CLEAR_CLASSES)


def _library_of(error: ErrorLine) -> str:
    """Return the code for the library that contains the last file of the traceback or the exception class."""
    frames = error.frames.replace("\\", "/")
    last = frames[frames.rfind("file ") :] if "file " in frames else frames[-400:]
    module = f"/{error.kind.lower().rpartition('.')[0].replace('.', '/')}/"
    return next((code for code, pattern in _LIBRARIES if pattern.search(last) or pattern.search(module)), "")


def _rejects_settings(error: ErrorLine) -> bool:
    """Return True if the error comes from code that checks settings, such as a configuration class or a settings
    file.
    """
    last = error.frames.replace("\\", "/")
    return bool(_SETTINGS.search(last[last.rfind("file ") :]) or _SETTINGS_CLASS.search(error.kind))


def _code_of_errno(text: str) -> str:
    match = _ERRNO.search(text)
    return _BY_ERRNO.get((match[1] or "errno").lower() + match[2], "") if match is not None else ""


def _code_of_type_error(name: str, text: str) -> str:
    return "LG718" if name == "TypeError" and _DTYPE.search(text) else ""


_BY_CLASS: dict[str, ErrorFamily] = {
    "OutOfMemoryError": ("oom", "LG700"),
    "MemoryError": ("host-oom", "LG702"),
    "ModuleNotFoundError": ("not-memory", "LG790"),
    "ImportError": ("not-memory", "LG790"),
    "FileNotFoundError": ("not-memory", "LG783"),
    "NotADirectoryError": ("not-memory", "LG783"),
    "IsADirectoryError": ("not-memory", "LG783"),
    "PermissionError": ("not-memory", "LG783"),
    "JSONDecodeError": ("not-memory", "LG783"),
    "UnicodeDecodeError": ("not-memory", "LG783"),
    "ConnectionError": ("not-memory", "LG782"),
    "HTTPError": ("not-memory", "LG782"),
    "URLError": ("not-memory", "LG782"),
    "SSLError": ("not-memory", "LG782"),
}
"""Exception classes with their own page, which is shown even if the log ends before the message."""

_PARSER_CLASS = re.compile(r"(?:Parse|Parser|Parsing|Scanner|Composer|Decode)Error$")
"""Matches exception classes of parsers for XML, YAML, CSV and other files."""
_ERRNO = re.compile(r"\[(?:(errno|winerror) |.{0,20}\bos error )(\d+)\]", re.IGNORECASE)
_BY_ERRNO = {
    f"{system}{number}": code
    for code, system, numbers in (
        ("LG783", "errno", (1, 2, 5, 13, 20, 21, 30, 36, 107, 116)),
        ("LG783", "winerror", (2, 3, 5, 32, 123, 206, 1314)),
        ("LG780", "errno", (27, 28, 122)),
        ("LG780", "winerror", (39, 112)),
        ("LG742", "errno", (11, 23, 24)),
        ("LG733", "errno", (98,)),
    )
    for number in numbers
}
"""Codes for operating system errors: files, permissions, full disks, process limits and a port in use."""

_DTYPE = re.compile(
    r"scalar ?type|\bdtypes?\b|ndarray of type|supported types are|torch\.b?(?:float|u?int|complex)\d",
    re.IGNORECASE,
)

_HOST_LIBRARIES = ("ray.",)
"""Libraries whose OutOfMemoryError refers to host memory."""
_GPU_LIBRARIES = ("torch.", "cupy", "cuda", "jax", "tensorflow.", "paddle.", "rmm.", "numba.")
"""Libraries whose OutOfMemoryError refers to GPU memory."""

_LIBRARIES = tuple(
    (code, re.compile(pattern))
    for code, pattern in (
        ("LG726", r"bitsandbytes/(?:cextension|cuda_setup|cuda_specs|diagnostics)"),
        (
            "LG782",
            r"/(?:huggingface_hub|requests|urllib3|httpx|aiohttp|botocore|modelscope/hub)/|/urllib/(?:request|error)|/http/client",
        ),
        ("LG783", r"/(?:datasets|pyarrow)/|/pil/|/json/decoder|/zipfile|/tarfile|/gzip|/pandas/errors"),
        ("LG752", r"/torch/(?:_dynamo|_inductor|_functorch|_export|jit|fx/experimental)/|/triton/"),
        ("LG743", r"/multiprocessing/(?:spawn|reduction|popen)"),
        ("LG740", r"/multiprocessing/connection|/torch/multiprocessing/reductions"),
        ("LG781", r"/torch/serialization|/safetensors/"),
        (
            "LG717",
            r"checkpoint/state_dict|/checkpoint_connector|\b(?:checkpoint|ckpt|state_dict)\[|/torch/distributed/(?:_shard/)?checkpoint/",
        ),
        ("LG733", r"/torch/distributed/(?:rendezvous|distributed_c10d|elastic)"),
    )
)
"""Maps codes to patterns for the last file of a traceback."""
_SETTINGS = re.compile(
    r'(?:[/_](?:args|arguments?|arg_?parser|config\w*|hparams|options|settings)|_connector)\.py"|in __post_init__'
)
"""Matches the last frame of a traceback if its file or function checks settings."""
_SETTINGS_CLASS = re.compile(
    r"Misconfiguration|omegaconf\.|hydra\.|\w*Config\w*(?:Error|Exception)$|(?:Option|Validation)Error$"
)


_CLEAR_CLASSES = frozenset(
    (
        "AttributeError", "FileExistsError", "IndentationError",
        "KeyError", "KeyboardInterrupt", "NameError", "RecursionError", "SyntaxError",
        "TabError", "TypeError", "UnboundLocalError", "UnicodeEncodeError", "ZeroDivisionError",
    )
)  # fmt: skip
"""Exception classes that are always programming errors, regardless of the message."""
_SENTENCE = re.compile(r"(?:\w+,? ){4}")
"""Matches a sentence. Most messages of a KeyError contain only the key."""
_VALUE_ERRORS = ("AssertionError", "IndexError", "NotImplementedError", "ValueError")
"""Exception classes whose message says more about the error than the class."""

_NOT_ABOUT_SIZE = re.compile(
    r"has not been allocated|memory[_ -](?:format|layout|location|efficient|overlap|view|order|bank|address|key|mask|map|access)\w*|(?:contiguous|laid out) in memory"
    r"|in-memory|pin_memory|memory_(?!allocat)\w+|(?:non-?contiguous|shared|associative|short-term|term) memory|\bGPUs?_memory_\w+",
    re.IGNORECASE,
)
"""Phrases that contain `memory` but do not refer to a lack of memory."""

_MAY_BE_MEMORY = re.compile(
    r"memory|\balloc(?:at\w+)?\b|\boom\b|\bkilled\b|\bsig(?:kill|bus)\b|signal 9\b|exhausted|insufficient resource|\bdied\b|exited (?:unexpectedly|with)|exit code",
    re.IGNORECASE,
)

_DTYPE_NAME = r"(?:\b(?:half|b?float(?:16|32|64|8\w*)|bf16|fp16|fp8|double|int(?:8|16|32|64))\b|\b(?:bool|byte|char|long|int|float|half)(?:ean)? ?tensors?\b|(?-i:\b(?:Bool|Byte|Char|Long|Int|Float)\b))"
"""Names of dtypes.

`int` and `bool` match only in a phrase such as `int tensor`, because they are also Python types.
"""
_SIZE = r"\b(?:(?:\w+_)?(?:shapes?|sizes?|dims?)|dimensions?|dimensional|ndim|numel|(?:of|same|input|weight|target|output) rank|rank[- ]\d+|matri(?:x|ces)|(?:\d+|single)-element|(?:empty|scalar) tensors?|channels?|lengths?|features|feature (?:number|dim\w*|size)|elements|d_model|embed_dim|num_heads|square|batch[_ ]?size|broadcast\w*|axis|columns|rows|\d-?D)\b"
_MISMATCH = r"\b(?:mis-?match\w*|match\w*|equal|same|expect\w*|must|should|got|requir(?:es?|ed)|incompatible|inconsistent|different|wrong|divisible|larger|smaller|greater|exceeds?|compatible|too (?:many|few|small|large|short|long)|mis-?align\w*|resize|reshape)\b"
_REJECTED = r"\b(?:invalid|cannot|can't|could not|unable|but|support\w*|only|negative|empty|previously|one of|don't|doesn't|do(?:es)? not)\b"
_DIFFERS = rf"(?:{_MISMATCH}|{_REJECTED})"
_FAMILIES = tuple(
    (code, re.compile(pattern, re.IGNORECASE))
    for code, pattern in (
        ("LG791", r"batch_size is not equal|batch_size.{0,40}divisible"),
        ("LG782", r"huggingface\.co/models|\brepo_id\b|path_or_model_id|on the Hub\b"),
        ("LG783", r"\bno data left in file|\bno file named|have a file named|\b(?:file|director(?:y|ies)|folder|path|dataset|checkpoint)\b.{0,200}(?:not found|not exist|no such|is missing|n't exist)|\bno (?:\w+ ){0,3}(?:checkpoints?|files|images?|labels|samples|weights) (?:were |was )?found\b|(?:not found|no such|(?:can't|cannot|couldn't|could not|unable to) find).{0,80}\b(?:file|directory|folder|dataset)\b|find (?:a |any )?(?:valid )?checkpoint\b"),
        ("LG731", r"\bnccl\b"),
        ("LG724", r"number of (?:available |visible )?(?:gpus|devices) \(?\d"),
        ("LG733", r"\binvalid rank\b|\bMPI_\w+|\bmpi4py\b|process group|rendezvous|\bMASTER_(?:ADDR|PORT)\b|init_process_group|TCPStore|world[_ ]size|\bgloo\b|\bc10d\b|(?:client|server) socket|waiting for clients|\bsocket timeout|(?<!\] )\bconnect\w*\W{0,4}timed out|\bDist(?:Network|Store|Backend)?Error\b"),
        ("LG728", r"\bcuda graph|stream is capturing|CUDAGraph|\bcapture\b.{0,40}\b(?:cuda|stream)"),
        ("LG770", r"torch\.utils\.checkpoint|grad_output|derivative|backward can only"),
        ("LG720", r"\bcudnn"),
        ("LG761", r"autocast|GradScaler|grad scaling|\bscaler\b|unscale_|mixed[- ]precision"),
        ("LG717", r"load weight.{0,60}into param|no module or parameter named|weights were not initialized from checkpoint|state[_ ]dict|distributed\.checkpoint|CheckpointException|\bckpt\b.{0,60}(?:match|missing|unexpected)|checkpoint.{0,60}(?:match|missing key|unexpected key|contains only)|found in checkpoint|optimizer state\b|load\w* (?:model|weights).{0,120}\b(?:mismatch|shape|expected)|mismatch.{0,20}load\w* weights"),
        ("LG781", r"inline_container|\bend of file\b|pickle|zip archive|safetensors.{0,40}(?:error|header|invalid|corrupt)|corrupt\w*|truncated|\bmagic\b|in the zipfile|weights_only|valid checkpoint|failed to load model|(?:load|read)\w*.{0,60}(?:checkpoint|archive|model file)"),
        ("LG722", r"\bCUDA arch\b|\bis_sm\d+|\bsm_?\d\d|compute_\d\d|compute capability"),
        ("LG723", r"\bCUDA version.{0,60}match"),
        ("LG724", r"device_count\b|(?:gpu|device) not found"),
        ("LG713", r"\bon (?:the )?(?:cpu|cuda|gpu)\b.{0,60}\b(?:got|but|found)\b|has not been allocated on \w+ device|\b(?:same|different|wrong|two|which|what|current|incompatible) (?:devices?|GPU)\b|cpu tensor(?:\?| to)|type associated with device|device.{0,60}(?:mismatch|\bbut\b|expected|does not match|must be)|(?:expected|must be|should be|to be|found|is|are|not) (?:a |an |all )?(?:on|in)? ?(?:the )?(?:cpu|cuda|gpu)\b|\b(?:cuda:\d|cpu)\b.{1,80}\b(?:cuda:\d|cpu)\b|^(?=.*\b(?:tensors?|parameters)\b).*(?:\bcpu\b.{1,80}\bcuda\b|\bcuda\b.{1,80}\bcpu\b)"),
        ("LG732", r"across (?:all )?ranks|DistributedDataParallel|\bDDP\b|\bFSDP\b|FlatParam"),
        ("LG760", r"\bnans?\b|infinity|non-?finite|(?<!buffer )(?<!capacity )(?<!stack )(?<!context )\boverflow|\bdiverged?\b"),
        ("LG712", r"satisfy the constraint|is not in \[|should be in \[|in (?:the )?range \[|expected .{0,40}\bin (?:the range )?[\[(]-?\d"),
        ("LG724", r"invalid (?:cuda '?)?device(?: id|=)|find any \w* ?accelerator|\bnum_gpus\b|accelerator.{0,40}(?:not |none is )available|backend found|requested .{0,20}\bgpus?\b|number of (?:required )?gpus|infer device type|no (?:visible |xpu |hip |rocm\S* )?(?:gpus?|devices?) (?:are |is |was )?(?:available|found|detected|devices)"),
        ("LG718", r"no (?:available )?kernel\b|no operator found|d-?type|scalar[_ ]?type|data ?type|element type|same type\b|not implemented for '|floating[- ]point|complex (?:tensors?|inputs?)|boolean? (?:inputs?|is not)|tensor of (?:long|int|float|bool)|" + _DTYPE_NAME + r".{0,80}" + _DIFFERS + "|" + _DIFFERS + r".{0,80}" + _DTYPE_NAME),
        ("LG712", r"(?<!list index )(?<!tuple index )(?<!string index )out[ -]of[ -](?:range|bounds)|out of vocabulary|invalid index|must be (?:non-?negative|positive|between)|outside (?:the|of)|exceeds dimension size|probabilit(?:y|ies)\b|n_sample|at most \d+, but|that is <= 0|non-?negative|\bbounds?\b"),
        ("LG760", r"\binf\b"),
        ("LG770", r"requires?[_ ]grad\b(?!')|grad_fn|forward (?:AD|grad)\b|\bctx\.\w+|gradients?\b|autograd|backward|in-?place|\bgraph\b|inference tensor|leaf variable|double backward"),
        ("", r"\bsingular\b|positive-definite|failed to converge"),
        ("LG751", r"\bCUDA_HOME\b|unable to compile"),
        ("LG716", r"\beinops\b|too many indices|rearrange-reduction|not broadcastable|inhomogeneous shape|" + _SIZE + r".{0,160}" + _MISMATCH + "|" + _MISMATCH + r".{0,160}" + _SIZE),
        ("LG716", r"^(?=.*(?:\d|tensor|shape|dimension|broadcast))(?:.*" + _SIZE + r".{0,160}" + _REJECTED + "|.*" + _REJECTED + r".{0,160}" + _SIZE + ")"),
        ("LG734", r"broken pipe"),
        ("LG752", r"Arguments for call are not valid|\btracer\b|dynamo|inductor|\bLowering\w*|torch\.?_?compile|\bjit\b|torchscript|fx\.?graph|symbolic(?:ally)? trac"),
        ("LG724", r"backend is supported on|cuda (?:is |was )?(?:not |un)available|no (?:cuda|gpu|nvidia)|(?:cuda|gpu)s? (?:is|are) (?:required|needed|not)|requires? (?:a )?(?:cuda|gpu)|is_available\(\)"),
        ("LG790", r"\bpip3? install\b|please (?:install|upgrade|update|downgrade|reinstall)\b"),
        ("LG726", r"(?:load|open|find|locate)\w*.{0,60}(?:shared library|\blib(?:cu|nv|torch)\w+|\blib\w+\.so|\.dll|dylib)"),
        ("LG728", r"\bcuda\b.{0,40}\b(?:error|fail\w*)"),
    )
)  # fmt: skip
"""Patterns of error messages, each with its code.

The first match is used.

Patterns for the source of an error, such as NCCL, come before patterns for devices and dtypes. Patterns for sizes
come last.
"""
_RAISED_BY_PROGRAM = re.compile(
    r'file "(?![^"\n]*(?:-packages/|/lib/python))[^"\n]+", line \d+[^\n]*\n[^\n]*raise memoryerror\([^\n]*\s*[^\n]{0,40}$',
    re.IGNORECASE,
)
