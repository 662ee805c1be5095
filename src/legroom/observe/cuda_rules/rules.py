"""All rules for one GPU, behind three doors: what an operation does to memory, CUDA's path for operations made of others,
and what would run if nobody watched."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from legroom.gpus.catalog import GpuSpec
from legroom.observe.cuda_rules import autocast, libraries, optimizers
from legroom.observe.cuda_rules.attention import attention
from legroom.observe.cuda_rules.convolution import convolution, deformable
from legroom.observe.cuda_rules.convolution.cudnn_process import cudnn_process, installed_cudnn
from legroom.observe.cuda_rules.dispatcher import Overrides
from legroom.observe.cuda_rules.ops import (
    accumulation,
    changed_views,
    communication,
    copies,
    ctc,
    distances,
    dropout,
    embedding,
    fourier,
    linear,
    losses,
    masks,
    matmul,
    normalization,
    products,
    reductions,
    rms_norm,
    softmax,
    sorting,
    sparse,
    temporaries,
)
from legroom.observe.cuda_rules.plan import Call, Plan, Rule
from legroom.observe.cuda_rules.recurrent import cells, layers, packed_sequences
from legroom.observe.cuda_rules.versions import RULES_VERSION, minor_version
from legroom.observe.dispatch.backward_engine import in_backward_pass

MEASURED_RELEASE = minor_version(RULES_VERSION.torch)
"""The rules describe this release's CUDA kernels where releases differ."""


class CudaRules:
    """What CUDA would do on `gpu` where a trace over CPU or fake tensors does otherwise."""

    def __init__(self, gpu: GpuSpec, *, release: tuple[int, int] = MEASURED_RELEASE) -> None:
        self.gpu = gpu
        self.release = release
        self._known: dict[int, tuple[Rule, list[tuple[str, Any]]] | None] = {}
        self._accumulation = accumulation.Accumulation()
        self._unseen = libraries.FakesUnseen()
        self.notes: dict[str, None] = {}
        """What people should know of an estimate made with these rules, in the order of its discovery."""
        self._installed = False
        self._uses_cudnn = False
        cudnn_process()  # starts here, so that the forks of a traced script share it

    def instead_of(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> Any:
        """The operation to run in place of `func`, before it is run: what torch would run were it not watched."""
        return self._accumulation.instead_of(func, args, kwargs)

    def plan(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None, result: Any) -> Plan | None:
        """What the operation does to memory; None where it only makes its results."""
        try:
            known = self._known[id(func)]
        except KeyError:
            known = self._known[id(func)] = _rule_for(func)
            self._uses_cudnn |= known is not None and known[0] in _CUDNN_RULES
            if self._installed:  # an operation not seen before: libraries may have been loaded since
                self._unseen.check()
        if known is None:
            return None
        rule, parameters = known
        arguments = {
            name: args[index] if index < len(args) else kwargs.get(name, default) if kwargs else default
            for index, (name, default) in enumerate(parameters)
        }
        plan = rule(Call(func, arguments, result, self.gpu, in_backward_pass()))
        if plan is not None and plan.notes:
            self.notes.update(dict.fromkeys(plan.notes))
        return plan

    def differing_versions(self) -> dict[str, str]:
        """Library → its installed version, if the rules were measured with another one and the program uses it."""
        cudnn = installed_cudnn() if self._uses_cudnn else None
        return RULES_VERSION.differing(torch=torch.__version__, cudnn=cudnn)

    @contextlib.contextmanager
    def installed(
        self, stands_for_cuda: Callable[[torch.Tensor], bool], *, with_data: bool = False
    ) -> Iterator[None]:
        """Within the block, operations that are made of others take CUDA's path for stand-in tensors.

        `with_data`: these have data, and only such paths are taken as compute what they should; the others give shapes alone.
        """
        with Overrides(stands_for_cuda) as overrides, contextlib.ExitStack() as entered:
            dropout.install(overrides)
            linear.install(overrides)
            if not with_data:
                self._install_shapes(overrides)
                entered.enter_context(layers.installed(overrides, self.gpu))
                entered.enter_context(self._unseen.active())
                entered.enter_context(optimizers.installed())
            entered.enter_context(autocast.installed(overrides))
            self._installed = not with_data
            try:
                yield
            finally:
                self._installed = False

    def _install_shapes(self, overrides: Overrides) -> None:
        softmax.install(overrides)
        normalization.install(overrides)
        rms_norm.install(overrides, self.release)
        attention.install(overrides, self.gpu, self.release)
        cells.install(overrides)
        packed_sequences.install(overrides)
        ctc.install(overrides)
        products.install(overrides)


def _rule_for(func: Any) -> tuple[Rule, list[tuple[str, Any]]] | None:
    """The rule for an operation, and its parameters with their defaults."""
    schema = getattr(func, "_schema", None)
    rule = None if schema is None else _RULES.get(schema.name)
    if rule is None or schema is None:
        return None
    parameters = [
        (argument.name, argument.default_value if argument.has_default_value() else None)
        for argument in schema.arguments
    ]
    return rule, parameters


_RULES: dict[str, Rule] = {
    **reductions.RULES,
    **cells.RULES,
    **matmul.RULES,
    **convolution.RULES,
    **layers.RULES,
    **attention.RULES,
    **normalization.RULES,
    **embedding.RULES,
    **distances.RULES,
    **fourier.RULES,
    **communication.RULES,
    **losses.RULES,
    **products.RULES,
    **temporaries.RULES,
    **copies.RULES,
    **masks.RULES,
    **sorting.RULES,
    **sparse.RULES,
    **deformable.RULES,
    **changed_views.RULES,
}
_CUDNN_RULES = {*convolution.RULES.values(), *layers.RULES.values()}
