"""A training step as plain data, and sets of such cases beside the models they train."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training step, as data."""

    model: str
    optimizer: str
    precision: str
    """`fp32`, `tf32` (fp32 with TF32 matrix products), `amp_fp16`, `amp_bf16` or `bf16` (everything in bfloat16)."""
    batch: int
    channels_last: bool = False
    checkpoint: bool = False
    """Activation checkpointing, as the model offers it."""
    accumulate: int = 1
    """Micro-batches per optimizer step."""
    clip: bool = False
    """`clip_grad_norm_` before the optimizer's step."""
    ema: bool = False
    """An exponential moving average of the parameters, kept on the device."""
    frozen: bool = False
    """Only the last quarter of the parameter tensors is trained."""
    keep_grads: bool = False
    """`zero_grad(set_to_none=False)`."""
    benchmark: bool = False
    """`torch.backends.cudnn.benchmark`."""
    retain: bool = False
    """The graph is kept with `retain_graph=True` and walked a second time."""
    ddp: bool = False
    """`DistributedDataParallel` over NCCL, on one rank."""
    inference: bool = False
    """A forward pass in evaluation mode, without gradients; no optimizer step."""

    evaluate: bool = False
    """After every step, a batch is looked at in evaluation mode, without gradients."""

    inputs_first: bool = False
    """The batch is made before gradients are cleared and lives until the step has ended. Not part of the name."""

    @property
    def key(self) -> str:
        """The name of the case in tables: `resnet50/sgdm/fp32/b16`, then the habits that are switched on."""
        habits = [
            name if value is True else f"{name}{value}"
            for name, value in asdict(self).items()
            if name not in ("model", "optimizer", "precision", "batch", "inputs_first")
            and value != type(self).__dataclass_fields__[name].default
        ]
        return "/".join([self.model, self.optimizer, self.precision, f"b{self.batch}", *habits])


class CaseSet:
    """Cases that are measured and scored together. A builder of a model is listed with the cases that train it:

    @SET.case("adam", "fp32", 64, clip=True)
    def cats_and_dogs() -> Spec: ...
    """

    def __init__(self) -> None:
        self.builders: dict[str, Callable[[], Any]] = {}
        self.cases: list[Case] = []

    @classmethod
    def joined(cls, *parts: "CaseSet") -> "CaseSet":
        """One set of several files' cases."""
        whole = cls()
        for part in parts:
            whole.builders |= part.builders
            whole.cases += part.cases
        return whole

    def case(self, optimizer: str, precision: str, batch: int, **habits: Any) -> Callable[[Any], Any]:
        """Lists the function below as the builder of a model, and one case that trains it."""

        def listed(builder: Any) -> Any:
            name = builder.__name__
            if self.builders.setdefault(name, builder) is not builder:
                raise ValueError(f"two models are called {name}")
            self.cases.append(
                Case(model=name, optimizer=optimizer, precision=precision, batch=batch, **habits)
            )
            return builder

        return listed
