"""A training step described as data, and sets of such cases."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training step."""

    model: str
    optimizer: str
    precision: str
    """The precision: `fp32`, `tf32` (fp32 with TF32 matrix products), `amp_fp16`, `amp_bf16` or `bf16` (all tensors
    in bfloat16)."""
    batch: int
    channels_last: bool = False
    checkpoint: bool = False
    """True if the model uses activation checkpointing through its own method."""
    accumulate: int = 1
    """The number of micro-batches per optimizer step."""
    clip: bool = False
    """True if `clip_grad_norm_` is called before the optimizer step."""
    ema: bool = False
    """True if an exponential moving average of the parameters is kept on the device."""
    frozen: bool = False
    """True if only the last quarter of the parameter tensors is trained."""
    keep_grads: bool = False
    """True if `zero_grad(set_to_none=False)` is called."""
    benchmark: bool = False
    """True if `torch.backends.cudnn.benchmark` is enabled."""
    retain: bool = False
    """True if backward runs twice, the first time with `retain_graph=True`."""
    ddp: bool = False
    """True if the model is wrapped in `DistributedDataParallel` over NCCL with one rank."""
    inference: bool = False
    """True if the case runs only a forward pass in evaluation mode without gradients."""
    evaluate: bool = False
    """True if a batch is evaluated without gradients after every step."""
    inputs_first: bool = False
    """True if the batch is created before gradients are cleared and stays alive until the step ends. This option is
    not part of the key."""

    @property
    def key(self) -> str:
        """The name of the case in tables, for example `resnet50/sgdm/fp32/b16`, followed by the enabled options."""
        options = [
            name if value is True else f"{name}{value}"
            for name, value in asdict(self).items()
            if name not in ("model", "optimizer", "precision", "batch", "inputs_first")
            and value != type(self).__dataclass_fields__[name].default
        ]
        return "/".join([self.model, self.optimizer, self.precision, f"b{self.batch}", *options])


class CaseSet:
    """Cases that are measured and scored together. A decorator registers the builder of a model and one case that
    trains the model:

    @SET.case("adam", "fp32", 64, clip=True)
    def cats_and_dogs() -> Spec: ...
    """

    def __init__(self) -> None:
        self.builders: dict[str, Callable[[], Any]] = {}
        self.cases: list[Case] = []

    @classmethod
    def joined(cls, *parts: "CaseSet") -> "CaseSet":
        """Combine the cases of several files into one set."""
        whole = cls()
        for part in parts:
            whole.builders |= part.builders
            whole.cases += part.cases
        return whole

    def case(self, optimizer: str, precision: str, batch: int, **options: Any) -> Callable[[Any], Any]:
        """Return a decorator that registers a model's builder and one case that trains the model."""

        def register(builder: Any) -> Any:
            name = builder.__name__
            if self.builders.setdefault(name, builder) is not builder:
                raise ValueError(f"Two models are named {name}.")
            self.cases.append(
                Case(model=name, optimizer=optimizer, precision=precision, batch=batch, **options)
            )
            return builder

        return register
