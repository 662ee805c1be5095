"""All rules for one GPU: memory plans, CUDA's implementation of composite operations, and in-place gradients."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from legroom.gpus.catalog import GpuSpec
from legroom.observe.cuda_rules import autocast, optimizers
from legroom.observe.cuda_rules.attention import attention
from legroom.observe.cuda_rules.convolution import convolution
from legroom.observe.cuda_rules.convolution.cudnn_process import cudnn_process, installed_cudnn
from legroom.observe.cuda_rules.dispatcher import Overrides
from legroom.observe.cuda_rules.ops import (
    accumulation,
    copies,
    ctc,
    embedding,
    fourier,
    losses,
    masks,
    matmul,
    normalization,
    reductions,
    sorting,
    temporaries,
)
from legroom.observe.cuda_rules.plan import MemoryPlan, OpCall, Rule
from legroom.observe.cuda_rules.recurrent import cells, layers
from legroom.observe.cuda_rules.versions import RULES_VERSION, minor_version
from legroom.observe.dispatch.backward_engine import in_backward_pass
from legroom.observe.notes import COMMUNICATION

MEASURED_RELEASE = minor_version(RULES_VERSION.torch)
"""The newest release of torch that the rules describe. The kernels may differ between releases, so the rules describe
the installed release. A newer release is treated like `MEASURED_RELEASE`.
"""


class CudaRules:
    def __init__(self, gpu: GpuSpec, *, release: tuple[int, int] | None = None) -> None:
        """The rules describe the kernels of torch `release`, or of the installed release if `release` is None."""
        self.gpu = gpu
        self.release = min(minor_version(torch.__version__), MEASURED_RELEASE) if release is None else release
        self._known: dict[int, tuple[Rule, list[tuple[str, Any]]] | None] = {}
        self._accumulation = accumulation.Accumulation()
        self._fake_checks = FakeTensorChecks()
        self.notes: dict[str, None] = {}
        self._installed = False
        self._uses_cudnn = False
        cudnn_process()  # start it now, so that the forks of a traced script share it

    def instead_of(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> Any:
        """Return the operation that torch would run instead of `func` if no dispatch mode were active."""
        return self._accumulation.instead_of(func, args, kwargs)

    def plan(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None, result: Any
    ) -> MemoryPlan | None:
        """Return the memory plan of an operation, or None if the operation allocates only its results."""
        try:
            known = self._known[id(func)]
        except KeyError:
            known = self._known[id(func)] = _rule_for(func)
            self._uses_cudnn |= known is not None and known[0] in _CUDNN_RULES
            if self._installed:  # a new operation: libraries may have been imported since
                self._fake_checks.replace()
        if known is None:
            return None
        rule, parameters = known
        arguments = {
            name: args[index] if index < len(args) else kwargs.get(name, default) if kwargs else default
            for index, (name, default) in enumerate(parameters)
        }
        plan = rule(OpCall(func, arguments, result, self.gpu, in_backward_pass()))
        if plan is not None and plan.notes:
            self.notes.update(dict.fromkeys(plan.notes))
        return plan

    def differing_versions(self) -> dict[str, str]:
        """Return the name and version of each library that the program uses and that the rules do not cover."""
        cudnn = installed_cudnn() if self._uses_cudnn else None
        return RULES_VERSION.differing(torch=torch.__version__, cudnn=cudnn)

    @contextlib.contextmanager
    def installed(
        self, is_on_device: Callable[[torch.Tensor], bool], *, with_data: bool = False
    ) -> Iterator[None]:
        """Within the block, composite operations on a virtual device follow CUDA's implementation.

        If the tensors have data (`with_data`), replacements that only infer shapes are not installed.
        """
        with Overrides(is_on_device) as overrides, contextlib.ExitStack() as entered:
            temporaries.install(overrides)
            matmul.install_linear(overrides)
            if not with_data:
                self._install_shapes(overrides)
                entered.enter_context(layers.installed(overrides, self.gpu))
                self._fake_checks.replace()
                entered.callback(self._fake_checks.restore)
                entered.enter_context(optimizers.installed())
            entered.enter_context(autocast.installed(overrides))
            self._installed = not with_data
            try:
                yield
            finally:
                self._installed = False

    def _install_shapes(self, overrides: Overrides) -> None:
        losses.install(overrides)
        normalization.install(overrides, self.release)
        attention.install(overrides, self.gpu, self.release)
        cells.install(overrides)
        ctc.install(overrides)
        matmul.install_one_hot(overrides)


class FakeTensorChecks:
    """Makes libraries that check for fake tensors behave as on a GPU.

    If transformers finds a fake tensor, it assumes that a graph is being traced, and builds attention masks that it
    skips in real runs. Even a mask of ones allocates a matrix with one value for each query and key. Until `restore` is
    called, the check in transformers returns False.
    """

    def __init__(self) -> None:
        self._originals: dict[str, Any] = {}

    def replace(self) -> None:
        for module_name, function in _FAKE_TENSOR_CHECKS.items():
            module = sys.modules.get(module_name)
            if module is None or module_name in self._originals or not hasattr(module, function):
                continue
            self._originals[module_name] = getattr(module, function)
            setattr(module, function, _is_not_fake)

    def restore(self) -> None:
        for module_name, original in self._originals.items():
            setattr(sys.modules[module_name], _FAKE_TENSOR_CHECKS[module_name], original)
        self._originals.clear()


def _is_not_fake(tensor: Any) -> bool:
    return False


_FAKE_TENSOR_CHECKS = {"transformers.utils.import_utils": "is_fake_tensor"}
"""The name of the function that checks whether a tensor is fake, by the name of its module."""


def _rule_for(func: Any) -> tuple[Rule, list[tuple[str, Any]]] | None:
    schema = getattr(func, "_schema", None)
    rule = None if schema is None else _RULES.get(schema.name)
    if rule is None or schema is None:
        return None
    parameters = [
        (argument.name, argument.default_value if argument.has_default_value() else None)
        for argument in schema.arguments
    ]
    return rule, parameters


def _collective(call: OpCall) -> MemoryPlan:
    # At the first collective, NCCL allocates memory outside PyTorch's allocator. The trace contains no request for it.
    return MemoryPlan((), (COMMUNICATION,))


_COLLECTIVES = (
    "allreduce_", "broadcast_", "allgather_", "_allgather_base_", "reduce_scatter_", "_reduce_scatter_base_", "alltoall_base_",
    "reduce_", "allreduce_coalesced_", "allgather_into_tensor_coalesced_", "reduce_scatter_tensor_coalesced_",
)  # fmt: skip

_RULES: dict[str, Rule] = {
    **reductions.RULES,
    **cells.RULES,
    **matmul.RULES,
    **convolution.RULES,
    **layers.RULES,
    **attention.RULES,
    **normalization.RULES,
    **embedding.RULES,
    **fourier.RULES,
    **{f"c10d::{name}": _collective for name in _COLLECTIVES},
    **losses.RULES,
    **temporaries.RULES,
    **copies.RULES,
    **masks.RULES,
    **sorting.RULES,
    **accumulation.RULES,
}
_CUDNN_RULES = {
    rule for name, rule in (*convolution.RULES.items(), *layers.RULES.items()) if name.startswith("aten::")
}
