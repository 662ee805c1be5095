"""Runs the kernels of operators that a program registers (`torch.library.custom_op`, `Library.impl`,
`torch.library.impl`).

PyTorch selects a kernel by the real device of the tensors. For tensors on a virtual GPU, the real device is the CPU.
Therefore this module registers one function for the CPU, which calls the program's kernel for CUDA or for the CPU,
depending on the virtual device. A CUDA kernel written in Triton or C++ raises its own error, because it cannot run on
the CPU. Kernels are user code, so they run with the virtual GPU's modes. The tensors of a kernel are on virtual
devices, and their memory is counted.

An operator that was defined before the virtual GPU became active is supported only if it is a `custom_op`.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from legroom.observe.dispatch.storages import tensors_in
from legroom.observe.virtual.host import VirtualHost
from legroom.observe.virtual.patching import optional_module, replaced, table

UserCode = Callable[[], AbstractContextManager[None]]
"""A function that returns a context manager. Inside its `with` block, user code runs with the modes of the virtual
GPU."""
_BACKENDS = ("CPU", "CUDA")
_COMPOSITE = ("", "CompositeExplicitAutograd", "CompositeImplicitAutograd")


@contextlib.contextmanager
def operator_kernels(host: VirtualHost, user_code: UserCode) -> Iterator[None]:
    """Inside the `with` block, the virtual device of the tensors determines which of the program's kernels runs."""
    library: Any = torch.library.Library
    original_impl = library.impl

    @functools.wraps(original_impl)
    def impl(
        self: Any, op_name: Any, fn: Any, dispatch_key: str = "", *, with_keyset: bool = False, **options: Any
    ) -> Any:
        key = dispatch_key or self.dispatch_key
        if callable(fn) and fn is not torch.library.fallthrough_kernel:
            kernel = _as_user_code(fn, user_code)
            if key in _COMPOSITE:
                fn = kernel
                _composites[_qualified(self, op_name)] = (weakref.ref(self), kernel, with_keyset)
            elif key in _BACKENDS:
                is_selected = _register(host, original_impl, self, op_name, key, kernel, with_keyset)
                if is_selected and key == "CPU":
                    return None
        return original_impl(self, op_name, fn, dispatch_key, with_keyset=with_keyset, **options)

    definitions = optional_module("torch._library.custom_ops")
    existing = list(getattr(definitions, "OPDEFS", {}).values())
    with contextlib.ExitStack() as stack:
        for definition in existing:
            stack.enter_context(_existing_operator(definition, host, original_impl, user_code))
        tables = table(library, {"impl": impl})
        owner: Any = getattr(definitions, "CustomOpDef", None)
        if (register := getattr(owner, "register_autograd", None)) is not None:
            tables += table(owner, {"register_autograd": _autograd_as_user_code(register, user_code)})
        stack.enter_context(replaced(tables))
        yield


def _as_user_code(function: Callable[..., Any], user_code: UserCode) -> Callable[..., Any]:
    @functools.wraps(function)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with user_code():
            return function(*args, **kwargs)

    return kernel


def _autograd_as_user_code(register: Any, user_code: UserCode) -> Any:
    @functools.wraps(register)
    def register_autograd(self: Any, backward: Any, /, *, setup_context: Any = None) -> Any:
        if setup_context is not None:
            setup_context = _as_user_code(setup_context, user_code)
        return register(self, backward, setup_context=setup_context)

    return register_autograd


@contextlib.contextmanager
def _existing_operator(
    definition: Any, host: VirtualHost, impl: Callable[..., Any], user_code: UserCode
) -> Iterator[None]:
    """Run the kernels of an existing operator as user code inside the `with` block. The operator's CUDA kernel stays
    registered after the block.
    """
    kernels: dict[Any, Any] | None = getattr(definition, "_backend_fns", None)
    if not kernels:
        yield
        return
    before = dict(kernels)
    for device_type, function in before.items():
        kernels[device_type] = _as_user_code(function, user_code)
    if "cuda" in kernels:
        _register(host, impl, definition._lib, definition._name, "CUDA", kernels["cuda"], False)
    try:
        yield
    finally:
        kernels.update(before)


# --- one function for both devices


_Kernel = tuple[Any, Callable[..., Any], bool]
"""A kernel: a weak reference to the library that owns it, its function, and whether this function receives the
dispatch key set.
"""


class _Kernels:
    def __init__(self, name: str, host: VirtualHost, library: Any) -> None:
        self.name = name
        self.host = host
        self.registered_by = weakref.ref(library)
        self.kernels: dict[str, _Kernel] = {}
        self.previous = _kernel_before(name)

    def __call__(self, keyset: Any, *args: Any, **kwargs: Any) -> Any:
        on_device = any(self.host.device_of(tensor) is not None for tensor in tensors_in((args, kwargs)))
        backend = "CUDA" if on_device else "CPU"
        if (found := self.kernels.get(backend)) is not None and _is_alive(found[0]):
            return _call(found, keyset, args, kwargs)
        if self.previous is not None:
            return self.previous.call_boxed(keyset, *args, **kwargs)
        if (found := _composite(self.name)) is not None:
            return _call(found, keyset, args, kwargs)
        raise NotImplementedError(
            f"Could not run '{self.name}' with arguments from the '{backend}' backend. "
            f'Register a kernel for the operator with `Library.impl(..., "{backend}")`.'
        )


_operators: dict[str, _Kernels] = {}
"""Maps the qualified name of each operator to its kernels. The function that selects a kernel stays registered until
its library is deleted, so this dict is kept after a virtual GPU ends.
"""
_composites: dict[str, _Kernel] = {}
"""Maps the qualified name of each operator to the kernel that the program registered for all devices. The kernels are
stored because versions of torch without `get_kernel` cannot return them.
"""


def _composite(name: str) -> _Kernel | None:
    found = _composites.get(name)
    return found if found is not None and _is_alive(found[0]) else None


def _call(found: _Kernel, keyset: Any, args: Any, kwargs: Any) -> Any:
    _, kernel, with_keyset = found
    return kernel(keyset, *args, **kwargs) if with_keyset else kernel(*args, **kwargs)


def _qualified(library: Any, op_name: Any) -> str:
    name: str = op_name if isinstance(op_name, str) else getattr(op_name, "_name", str(op_name))
    return name if "::" in name else f"{library.ns}::{name}"


def _register(
    host: VirtualHost,
    impl: Callable[..., Any],
    library: Any,
    op_name: Any,
    backend: str,
    kernel: Callable[..., Any],
    with_keyset: bool,
) -> bool:
    """Add a kernel that the registered function of the operator can select. Return False if the operator has an
    existing kernel that the function cannot call.
    """
    name = _qualified(library, op_name)
    known = _operators.get(name)
    if known is None or not _is_alive(known.registered_by):
        fresh = _Kernels(name, host, library)
        if fresh.previous is None and _has_kernel(name) and _composite(name) is None:
            return False
        if known is not None:
            fresh.kernels = {key: entry for key, entry in known.kernels.items() if _is_alive(entry[0])}
        known = _operators[name] = fresh
        impl(library, op_name, known, "CPU", with_keyset=True)
    known.host = host
    known.kernels[backend] = (weakref.ref(library), kernel, with_keyset)
    return True


def _is_alive(library: Any) -> bool:
    found = library()
    return found is not None and found.m is not None


def _has_kernel(name: str) -> bool:
    has = getattr(torch._C, "_dispatch_has_computed_kernel_for_dispatch_key", None)
    try:
        return bool(has is not None and has(name, "CPU"))
    except RuntimeError:
        return False


def _kernel_before(name: str) -> Any:
    """Return the CPU kernel that the program's kernel replaces. Return None if the operator has no CPU kernel, or if
    this version of torch lacks `get_kernel`.
    """
    get: Any = getattr(torch.library, "get_kernel", None)
    if get is None or not _has_kernel(name):
        return None
    try:
        return get(name, "CPU")
    except RuntimeError:
        return None
