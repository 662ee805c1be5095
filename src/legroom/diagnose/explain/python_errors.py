"""Classifies Python errors that match no known message, by class, wording and library.

Torch and related libraries report a few problems in many wordings. Examples are mismatched sizes, types or devices,
and an index out of range. The wording shows the kind of an error but not its exact cause, so the certainty is
`likely`. An error whose message mentions memory is not classified, because a wrong classification would be worse than
none.
"""

import builtins
import re
from typing import Literal

from legroom.diagnose.explain.error_lines import ErrorLine

ErrorFamily = tuple[Literal["oom", "host-oom", "not-memory", "unknown"], str]
"""The kind of an error, and the code of the page that explains this kind, or "" if no page exists."""


def classify_python_error(error: ErrorLine) -> ErrorFamily:
    """Classify an error by its class, then by its wording, then by the library that raised it."""
    name = error.kind.rpartition(".")[2]
    text = _NOT_ABOUT_SIZE.sub("", error.text)
    if name == "OutOfMemoryError" and error.kind.startswith(_HOST_LIBRARIES):
        return "host-oom", "LG702"
    if name in _BY_CLASS:
        return _BY_CLASS[name]
    if name.endswith("Warning"):
        return ("unknown" if _MAY_BE_MEMORY.search(text) else "not-memory"), ""
    if name in _CLEAR_CLASSES:
        return "not-memory", _library_of(error)
    if error.text.rstrip().endswith(f"{name}:") and not hasattr(builtins, name):
        return "unknown", ""  # only the name of a library's own class
    if _MAY_BE_MEMORY.search(text):
        return ("not-memory" if name in _VALUE_ERRORS else "unknown"), ""
    code = next((code for code, pattern in _FAMILIES if pattern.search(text)), "")
    return "not-memory", code or _library_of(error)


def is_uninformative(error: ErrorLine) -> bool:
    """Return True if neither the class nor the wording of an error indicates the problem."""
    return classify_python_error(error) in (("not-memory", ""), ("unknown", "")) and error.kind.rpartition(
        "."
    )[2] not in (_CLEAR_CLASSES)


def _library_of(error: ErrorLine) -> str:
    """Return the code of the page for the library that contains the last file of the traceback."""
    frames = error.frames.replace("\\", "/")
    last = frames[frames.rfind("file ") :] if "file " in frames else frames[-400:]
    return next((code for code, pattern in _LIBRARIES if pattern.search(last)), "")


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
"""Exception classes that have their own page. The page applies even if the log ends before the message."""

_HOST_LIBRARIES = ("ray.",)
"""Libraries whose OutOfMemoryError refers to host memory."""

_LIBRARIES = tuple(
    (code, re.compile(pattern))
    for code, pattern in (
        ("LG726", r"bitsandbytes/(?:cextension|cuda_setup|cuda_specs|diagnostics)"),
        ("LG782", r"/(?:huggingface_hub|requests|urllib3|httpx|aiohttp|modelscope/hub)/|/urllib/request"),
        ("LG783", r"/(?:datasets|pyarrow)/|/pil/|/json/decoder|/zipfile|/tarfile"),
        ("LG752", r"/torch/_(?:dynamo|inductor|functorch)/|/triton/"),
        ("LG743", r"/multiprocessing/(?:spawn|reduction|popen)"),
        ("LG781", r"/torch/serialization|/safetensors/"),
        ("LG717", r"checkpoint/state_dict|/torch/distributed/(?:_shard/)?checkpoint/"),
        ("LG733", r"/torch/distributed/(?:rendezvous|distributed_c10d|elastic)"),
    )
)
"""Page codes of libraries, by a pattern for the last file of the traceback."""


_CLEAR_CLASSES = frozenset(
    (
        "AttributeError", "FileExistsError", "IndentationError",
        "KeyError", "KeyboardInterrupt", "NameError", "RecursionError", "SyntaxError",
        "TabError", "TypeError", "UnboundLocalError", "UnicodeEncodeError", "ZeroDivisionError",
    )
)  # fmt: skip
"""Exception classes that are always program errors, regardless of the message."""
_VALUE_ERRORS = ("AssertionError", "IndexError", "NotImplementedError", "ValueError")
"""Other exception classes that are not memory errors. Their message is more specific than the class."""

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
"""Words that may refer to a lack of memory."""

_SIZE = r"\b(?:shapes?|sizes?|dim(?:ension)?s?|dimensional|ndim|rank|channels?|lengths?|features|elements|batch[_ ]?size|broadcast\w*|axis|columns?|rows?|\d-?D)\b"
_DIFFERS = r"\b(?:mis-?match\w*|match\w*|equal|same|expect\w*|must|should|got|invalid|incompatible|inconsistent|cannot|can't|could not|unable|different|wrong|divisible|larger|smaller|greater|exceeds?|but|support\w*|only|compatible|negative|empty|previously|one of)\b"
_FAMILIES = tuple(
    (code, re.compile(pattern, re.IGNORECASE))
    for code, pattern in (
        ("LG783", r"\b(?:file|director(?:y|ies)|folder|path|dataset|checkpoint)\b.{0,200}(?:not found|not exist|no such|is missing|n't exist)|(?:not found|no such|can't find|cannot find|could not find).{0,80}\b(?:file|directory|folder|dataset)\b"),
        ("LG731", r"\bnccl\b"),
        ("LG733", r"process group|rendezvous|\bMASTER_(?:ADDR|PORT)\b|init_process_group|TCPStore|world[_ ]size|\bgloo\b|\bc10d\b|(?:client|server) socket|waiting for clients|\bsocket timeout|connect\w*\W{0,4}timed out|\bDist(?:Network|Store|Backend)?Error\b"),
        ("LG728", r"\bcuda graph|stream is capturing|CUDAGraph|\bcapture\b.{0,40}\b(?:cuda|stream)"),
        ("LG717", r"state_dict|Checkpoint(?:Exception|Error)|\bckpt\b.{0,60}(?:match|missing|unexpected)|checkpoint.{0,60}(?:match|missing key|unexpected key)"),
        ("LG781", r"inline_container|pickle|zip archive|safetensors.{0,40}(?:error|header|invalid|corrupt)|corrupt\w*|truncated|magic number|(?:load|read)\w*.{0,60}(?:checkpoint|archive|model file)"),
        ("LG722", r"\bis_sm\d+|\bsm_?\d\d|compute_\d\d|compute capability"),
        ("LG713", r"has not been allocated on \w+ device|\b(?:same|different|wrong|two|which|what) devices?\b|device.{0,60}(?:mismatch|\bbut\b|expected|does not match|must be)|(?:expected|must be|should be|to be|found|is|are|not) (?:a |an |all )?(?:on|in)? ?(?:the )?(?:cpu|cuda|gpu)\b|\b(?:cuda:\d|cpu)\b.{1,80}\b(?:cuda:\d|cpu)\b"),
        ("LG718", r"d-?type|scalar type|data ?type|\b(?:half|b?float(?:16|32|64|8\w*)|bf16|fp16|fp8|double|long|int(?:8|16|32|64)|bool|byte|char)\b.{0,80}" + _DIFFERS + "|" + _DIFFERS + r".{0,80}\b(?:half|b?float(?:16|32|64|8\w*)|bf16|fp16|fp8|double|long|int(?:8|16|32|64)|bool|byte|char)(?:Tensor)?\b"),
        ("LG712", r"(?<!list index )(?<!tuple index )(?<!string index )out[ -]of[ -](?:range|bounds)|must be (?:non-?negative|positive|between)|outside (?:the|of)"),
        ("LG760", r"\bnans?\b|\binf(?:inity)?\b|non-?finite|overflow|diverge"),
        ("LG770", r"requires?[_ ]grad|grad_fn|gradients?\b|autograd|backward|in-?place|\bgraph\b|inference tensor|leaf variable|double backward"),
        ("LG716", _SIZE + r".{0,160}" + _DIFFERS + "|" + _DIFFERS + r".{0,160}" + _SIZE),
        ("LG752", r"dynamo|inductor|\bLowering\w*|torch\.?_?compile|\bjit\b|torchscript|fx\.?graph|symbolic(?:ally)? trac"),
        ("LG724", r"backend is supported on|cuda (?:is |was )?(?:not |un)available|no (?:cuda|gpu|nvidia)|(?:cuda|gpu)s? (?:is|are) (?:required|needed|not)|requires? (?:a )?(?:cuda|gpu)|is_available\(\)"),
        ("LG726", r"(?:load|open|find|locate)\w*.{0,60}(?:shared library|\blib\w+\.so|\.dll|dylib)"),
        ("LG728", r"\bcuda\b.{0,40}\b(?:error|fail\w*)"),
    )
)  # fmt: skip
"""Wordings and their page codes. The first match is used. The source of an error (NCCL, a process group) comes before
its content, and devices and types come before sizes."""
