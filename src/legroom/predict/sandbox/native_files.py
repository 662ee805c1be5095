"""Redirects the functions of torch and safetensors that open a path in C++ or Rust instead of in Python."""

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from legroom.observe.virtual.patching import Replacement, optional_module
from legroom.predict.sandbox.sandbox import Sandbox

_FUNCTIONS = (
    ("torch._C.PyTorchFileWriter", "__init__", 1, "w"),  # torch.save, torch.export.save, torch.package
    ("torch._C.PyTorchFileReader", "__init__", 1, "r"),
    ("torch._C.ScriptModule", "save", 1, "w"),
    ("torch._C.ScriptModule", "_save_for_mobile", 1, "w"),
    ("torch._C.ScriptFunction", "save", 1, "w"),
    ("torch._C", "import_ir_module", 1, "r"),  # torch.jit.load
    ("torch._C", "_load_for_lite_interpreter", 0, "r"),
    ("torch._C", "_save_jit_module", 1, "w"),
    ("torch._C", "_load_jit_module_from_file", 0, "r"),
    ("torch._C._autograd._ProfilerResult", "save", 1, "w"),
    ("torch", "from_file", 0, "r+"),
    ("torch.UntypedStorage", "from_file", 0, "r+"),
    ("safetensors", "serialize_file", 1, "w"),
    ("safetensors.torch", "serialize_file", 1, "w"),
    ("safetensors.numpy", "serialize_file", 1, "w"),
    ("safetensors", "safe_open", 0, "r"),
    ("safetensors.torch", "safe_open", 0, "r"),
    ("safetensors.numpy", "safe_open", 0, "r"),
)
"""The owner and the name of each function, the position of its path, and how it opens the path."""


def native_files_in(sandbox: Sandbox) -> Iterator[Replacement]:
    """Yield replacements that pass the location in the sandbox to these functions. A function that this version of torch
    lacks is not replaced. If torch opens a path in a function that is not listed, only Landlock protects the file.
    """
    for path, name, position, mode in _FUNCTIONS:
        owner = _owner(path)
        function = getattr(owner, name, None)
        if function is not None:
            call = _redirected(function, sandbox, position, mode)
            yield Replacement(owner, name, staticmethod(call) if owner is torch.UntypedStorage else call)


def _owner(path: str) -> Any:
    module = optional_module(path.partition(".")[0])
    return functools.reduce(lambda owner, name: getattr(owner, name, None), path.split(".")[1:], module)


def _redirected(function: Any, sandbox: Sandbox, position: int, mode: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if "filename" in options:
            args = (*args[:position], options.pop("filename"), *args[position:])
        path = args[position] if len(args) > position else None
        if sandbox.overlay.is_plain or not isinstance(path, str | bytes | os.PathLike):
            return function(*args, **options)
        is_read = mode == "r" or (mode == "r+" and not options.get("shared", args[1:2] == (True,)))
        with sandbox.located(path, "r" if is_read else mode) as location:
            return function(*args[:position], location, *args[position + 1 :], **options)

    return call
