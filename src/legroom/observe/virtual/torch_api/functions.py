"""Replaces torch functions and modules outside `torch.cuda` that would not recognize the program's CUDA tensors.

The original functions read the real device of a tensor, often in C++ code where no mode applies. The real device of a
tensor on a virtual GPU is the CPU. The replacements treat tensors on a virtual GPU as CUDA tensors, but compute on the
CPU.
"""

import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn, overrides

from legroom.observe.dispatch.storages import note_wrapper, storage_of
from legroom.observe.fake.fake_tensors import active_fake_mode
from legroom.observe.virtual.host import VirtualHost
from legroom.observe.virtual.patching import Replacement, optional_module, replaced, table


def replacements(host: VirtualHost) -> Iterable[Replacement]:
    yield from _autocast()
    yield from _unsafe_losses(host)
    yield from _transformer_fast_paths()
    yield from _nested_tensors()
    yield from _wrapper_subclasses(host)
    yield from _grouped_tensors(host)
    yield from _optimizers()


def _autocast() -> Iterable[Replacement]:
    """Make `torch.autocast("cuda")` also enable autocast for the CPU, with the same dtype.

    PyTorch keeps one autocast state per device type. Entering an autocast region sets the states for CUDA and the CPU,
    and leaving it restores both. Therefore `torch.is_autocast_enabled("cuda")`, `custom_fwd` and checkpointing behave
    as on a GPU. Host tensors in the region are also cast, because autocast cannot distinguish them from device tensors.
    """
    autocast: Any = torch.amp.autocast_mode.autocast
    enter, leave = autocast.__enter__, autocast.__exit__

    def __enter__(self: Any) -> Any:  # noqa: N807
        if self.device == "cuda":
            before = (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))
            # A stack, because one object may be entered several times, as the decorator of a recursive function.
            vars(self).setdefault("_cpu_states", []).append(before)
            torch.set_autocast_enabled("cpu", self._enabled)
            torch.set_autocast_dtype("cpu", self.fast_dtype)
        return enter(self)

    def __exit__(self: Any, *error: Any) -> Any:  # noqa: N807
        try:
            return leave(self, *error)
        finally:
            if states := vars(self).get("_cpu_states"):
                enabled, dtype = states.pop()
                torch.set_autocast_enabled("cpu", enabled)
                torch.set_autocast_dtype("cpu", dtype)

    return table(autocast, {"__enter__": __enter__, "__exit__": __exit__})


def _unsafe_losses(host: VirtualHost) -> Iterable[Replacement]:
    """Raise the error of CUDA for a loss of probabilities in an autocast region. The CPU computes the loss in
    float32.
    """
    functions: Any = torch._C._nn
    original = functions.binary_cross_entropy

    @functools.wraps(original)
    def binary_cross_entropy(input: Any, *arguments: Any, **options: Any) -> Any:
        if torch.is_autocast_enabled("cuda") and host.device_of(input) is not None:
            raise RuntimeError(_UNSAFE_LOSS)
        return original(input, *arguments, **options)

    return table(functions, {"binary_cross_entropy": binary_cross_entropy})


_UNSAFE_LOSS = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
    "safe to autocast."
)


_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


def _transformer_fast_paths() -> Iterable[Replacement]:
    """Keep the fast path of `nn.TransformerEncoder` and `nn.MultiheadAttention` in evaluation mode.

    On the CPU and on CUDA, these modules call one fused operation, unless an argument overrides torch functions. An
    active function mode would also disable the fused operation, and change the results. Therefore `has_torch_function`
    is replaced in these modules. Other torch functions use a separate copy of `has_torch_function`, which is not
    replaced.
    """

    def has_torch_function(relevant: Iterable[Any]) -> bool:
        return torch._C._is_torch_function_enabled() and any(
            isinstance(value, torch.Tensor) and type(value) not in _PLAIN_TENSORS for value in relevant
        )

    return table(overrides, {"has_torch_function": has_torch_function})


def _nested_tensors() -> Iterable[Replacement]:
    """Create nested tensors on the host and move them to the device, because torch creates them in C++, where no mode
    applies.
    """
    nested = optional_module("torch.nested")
    for name in ("nested_tensor", "as_nested_tensor"):
        original = getattr(nested, name, None)
        if original is not None:
            yield from table(nested, {name: _created_on_host(original)})


def _created_on_host(original: Any) -> Any:
    @functools.wraps(original)
    def make(*arguments: Any, device: Any = None, requires_grad: bool = False, **options: Any) -> Any:
        target = None if device is None else torch.device(device)
        if target is None or target.type != "cuda":
            extra = {"requires_grad": True} if requires_grad else {}
            return original(*arguments, device=device, **extra, **options)
        made = original(*arguments, **options).to(target)
        return made.requires_grad_() if requires_grad else made

    return make


def _wrapper_subclasses(host: VirtualHost) -> Iterable[Replacement]:
    """Create wrapper tensors (`AsyncCollectiveTensor`), which contain other tensors, on the CPU and register their
    device.

    If a wrapper tensor were created on a device that this build of torch does not support, a backward pass through it
    would terminate the process.
    """
    original: Any = getattr(torch.Tensor, "_make_wrapper_subclass", None)
    if original is None:
        return []

    def make(*arguments: Any, device: Any = None, **options: Any) -> Any:
        if arguments and isinstance(arguments[0], type):
            note_wrapper(arguments[0])
        named = None if device is None else torch.device(device)
        if named is None or named.type != "cuda" or active_fake_mode() is not None:
            return original(*arguments, **options, **({} if device is None else {"device": device}))
        made = original(*arguments, **options, device="cpu")
        with torch._C.DisableTorchFunction():
            storage = storage_of(made)
        if storage is not None:
            host.mark(storage, host.current if named.index is None else named.index, counted=False)
        return made

    return table(torch.Tensor, {"_make_wrapper_subclass": staticmethod(make)})


_Groups = dict[tuple[torch.device, torch.dtype], tuple[list[list[Any]], list[int]]]


def _grouped_tensors(host: VirtualHost) -> Iterable[Replacement]:
    """Make optimizers and gradient clipping group tensors by their virtual device.

    PyTorch groups the tensors in C++, which treats all tensors of a virtual GPU as CPU tensors. If the parameters are
    on several virtual GPUs, or on a virtual GPU and the host, one group would contain tensors on different devices. If
    torch has no C function for grouping, it groups the tensors in Python, and no replacement is needed.
    """
    original = getattr(torch._C, "_group_tensors_by_device_and_dtype", None)
    if original is None:
        return []

    def group(lists: list[list[Any]], with_indices: bool = False) -> _Groups:
        groups: _Groups = {}
        for (device, dtype), (columns, positions) in original(lists, True).items():
            for row, first in enumerate(columns[0]):
                index = host.device_of(first)
                key = (device if index is None else torch.device("cuda", index), dtype)
                group, numbers = groups.setdefault(key, ([[] for _ in columns], []))
                for column, grouped_column in zip(columns, group, strict=True):
                    if column:
                        grouped_column.append(column[row])
                if with_indices:
                    numbers.append(positions[row])
        return groups

    return table(torch._C, {"_group_tensors_by_device_and_dtype": group})


ROUND_DIFFERENTLY = ("asgd", "nadam", "radam")


def _optimizers() -> Iterable[Replacement]:
    """Make an optimizer use the for-loop implementation if its `foreach` implementation rounds differently.

    On CUDA, optimizers update all parameters at once (`foreach`). Optimizers also use `foreach` on a virtual GPU, so
    that the memory of `foreach` is counted. Three optimizers and weight averaging compute in a different order with
    `foreach`, but a virtual GPU must return bit-for-bit the same results as the CPU. For these optimizers, the
    temporary tensors of `foreach`, which are about as large as the parameters, are not counted.
    """

    def neither_fused_nor_foreach(*_arguments: Any, **_options: Any) -> tuple[bool, bool]:
        return False, False

    for name in ROUND_DIFFERENTLY:
        module = optional_module(f"torch.optim.{name}")
        yield from table(module, {"_default_to_fused_or_foreach": neither_fused_nor_foreach})
    averaging = optional_module("torch.optim.swa_utils")
    yield from table(averaging, {"_get_foreach_kernels_supported_devices": list})


_parameter: Any = nn.parameter


@contextlib.contextmanager
def lazy_parameters_without_data() -> Iterator[None]:
    """Inside the `with` block, the parameters of lazy modules (`nn.LazyLinear`) become fake tensors, like all other
    parameters.

    Before the first forward pass, a lazy parameter is an empty real tensor of a special class, outside the fake mode.
    When the shape is known, torch allocates memory for the parameter and changes its class in place. A real tensor
    cannot become a fake tensor in place, so the real and the fake tensor are swapped.
    """

    def materialize(tensor: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        target = tensor.data.device if device is None else device
        made: Any = torch.empty(shape, device=target, dtype=dtype or tensor.data.dtype)
        if issubclass(tensor.cls_to_become, nn.Parameter):
            # Without `detach`, fake mode keeps a weak reference to the parameter, and then the swap fails.
            made = nn.Parameter(made.detach(), requires_grad=tensor.requires_grad)
        torch.utils.swap_tensors(tensor, made)  # type: ignore[no-untyped-call]

    def on_host_first(original_new: Any) -> Any:
        def new(
            kind: Any, requires_grad: bool = True, device: Any = None, dtype: Any = None, **more: Any
        ) -> Any:
            made = original_new(kind, requires_grad, None, dtype, **more)
            if device is not None:
                made.data = made.to(device)
            return made

        return staticmethod(new)

    with replaced(
        [
            *table(_parameter.UninitializedTensorMixin, {"materialize": materialize}),
            *(
                replacement
                for kind in (_parameter.UninitializedParameter, _parameter.UninitializedBuffer)
                for replacement in table(kind, {"__new__": on_host_first(kind.__new__)})
            ),
        ]
    ):
        yield
