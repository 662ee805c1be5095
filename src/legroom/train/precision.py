"""Mixed precision, rightly put together.

    precision = legroom.precision("auto")           # bf16 where the GPU has it; precision.reason says why
    with precision.autocast():
        loss = loss_fn(model(x), y)
    precision.backward(loss)                        # scaled where needed, outside autocast
    precision.clip_grad_norm_(optimizer, 1.0)       # unscaled first
    precision.step(optimizer)
    precision.update()

The same lines do the right thing in every format: with bfloat16 and float32 there is nothing to scale, and what would scale
does nothing. `state_dict` belongs in the checkpoint: a resumed float16 run without it starts by skipping steps.

Training that computes nonsense is noticed without slowing it: a step that the scaler skipped has already been waited for, and
the gradients of other formats are looked at now and then (steps 1, 2, 4, … and every 50th). What is found is a `Finding`: told to
`on_finding`, otherwise warned about once.
"""

import contextlib
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from legroom.errors import UsageError
from legroom.findings import Finding
from legroom.train.precision_choice import DTYPES, chosen_precision, device_at_hand

WATCH_EVERY = 50
RECENT = 100
TOO_MANY_SKIPPED = 10
"""Of the recent steps. A scaler tries a larger scale every 2000 steps and skips one where that was too much."""


def precision(
    kind: "str | Precision" = "auto",
    *,
    device: str | torch.device | None = None,
    initial_scale: float = 65536.0,
    on_finding: Callable[[Finding], None] | None = None,
) -> "Precision":
    """`bf16`, `fp16`, `fp32`, or `auto`: what the device (by default the GPU, if there is one) computes well in."""
    if isinstance(kind, Precision):
        return kind
    where = device_at_hand() if device is None else torch.device(device)
    if where.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "there is no CUDA device here: leave device= out, or use a virtual one (legroom.VirtualGPU)"
        )
    name, reason = chosen_precision(kind, where)
    return Precision(name, reason, where.type, initial_scale=initial_scale, on_finding=on_finding)


class Precision:
    """One format for one training loop. Made by `precision`."""

    def __init__(
        self,
        name: str,
        reason: str,
        device_type: str,
        *,
        initial_scale: float = 65536.0,
        on_finding: Callable[[Finding], None] | None = None,
    ) -> None:
        self.name = name
        """`bf16`, `fp16` or `fp32`."""
        self.reason = reason
        self.device_type = device_type
        self.dtype = DTYPES[name]
        self.scaler = GradScaler(device_type, init_scale=initial_scale) if name == "fp16" else None
        self._on_finding = on_finding
        self._found: dict[str, Finding] = {}
        self._steps = 0
        self._recent: deque[bool] = deque(maxlen=RECENT)
        self._unscaled: set[int] = set()
        self._followed: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._stepped = False
        self._skipped = False

    def __repr__(self) -> str:
        return f"<Precision {self.name} on {self.device_type}: {self.reason}>"

    # --- one step

    def autocast(self) -> AbstractContextManager[Any]:
        """For the forward pass and the loss."""
        return torch.autocast(self.device_type, dtype=self.dtype, enabled=self.name != "fp32")

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss if self.scaler is None else self.scaler.scale(loss)

    def backward(self, loss: torch.Tensor, *, retain_graph: bool = False) -> None:
        """The backward pass computes in the format of the forward pass by itself; autocast around it would interfere."""
        with torch.autocast(self.device_type, enabled=False):
            self.scale(loss).backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Bring this optimizer's gradients back to their true size. A second call before `update` does nothing."""
        if self.scaler is not None and id(optimizer) not in self._unscaled:
            self.scaler.unscale_(optimizer)
            self._unscaled.add(id(optimizer))

    def clip_grad_norm_(
        self, optimizer: torch.optim.Optimizer, max_norm: float, norm_type: float = 2.0
    ) -> torch.Tensor:
        """Unscale, then clip the norm of all of this optimizer's gradients together. Gives the norm before."""
        self.unscale_(optimizer)
        return torch.nn.utils.clip_grad_norm_(list(_parameters(optimizer)), max_norm, norm_type)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Step the optimizer. False if the scaler skipped it because gradients were not finite; an optimizer that decides
        that on the GPU itself (`fused=True`) always says True."""
        if self.scaler is None:
            if _is_due(self._steps + 1):
                with contextlib.suppress(torch.OutOfMemoryError):  # looking must not be what fails
                    self._look_at_gradients(optimizer)
            optimizer.step()
            return True
        self._follow(optimizer)
        self._stepped = False
        self.scaler.step(optimizer)
        self._skipped |= not self._stepped
        return self._stepped

    def update(self) -> None:
        """After the last optimizer of the step."""
        self._steps += 1
        if self.scaler is None:
            return
        self.scaler.update()
        self._unscaled.clear()
        skipped, self._skipped = self._skipped, False
        self._recent.append(skipped)
        if skipped or _is_due(self._steps):
            self._look_at_scale(self.scaler)

    def discard(self) -> None:
        """Forget a step that was begun and is to be repeated. Without the scaler's private table this is nothing, and the
        scaler refuses to unscale the repeated step."""
        self._unscaled.clear()
        self._skipped = False
        table = getattr(self.scaler, "_per_optimizer_states", None)
        if table is not None:
            table.clear()

    # --- what lasts

    def state_dict(self) -> dict[str, Any]:
        return {
            "precision": self.name,
            "steps": self._steps,
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Of another format, only the number of steps is taken over."""
        if not isinstance(state, dict) or state.get("precision") not in DTYPES:
            raise UsageError(
                "this is no state of legroom.precision: give load_state_dict what state_dict() gave"
            )
        self._steps = int(state.get("steps", 0))
        scaler = state.get("scaler")
        if self.scaler is not None and scaler:
            self.scaler.load_state_dict(scaler)

    def findings(self) -> tuple[Finding, ...]:
        """What went wrong so far, each thing once."""
        return tuple(self._found.values())

    # --- noticing

    def _follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Learn whether the scaler called `optimizer.step`: the only public sign of it that does not wait for the GPU."""
        if optimizer in self._followed:
            return
        itself = weakref.ref(self)

        def stepped(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
            precision = itself()
            if precision is not None:
                precision._stepped = True

        optimizer.register_step_post_hook(stepped)
        self._followed.add(optimizer)

    def _look_at_scale(self, scaler: GradScaler) -> None:
        skipped = sum(self._recent)
        scale = scaler.get_scale()
        if scale < 1.0:
            self._tell(
                Finding(
                    code="LG420",
                    message=f"The loss scale has collapsed to {scale:g} by step {self._steps}: gradients overflow float16 at any scale.",
                    fix='Use legroom.precision("bf16") where the GPU has it; otherwise look for infinities in the inputs and the '
                    "loss, and lower the learning rate.",
                    evidence={"scale": scale, "step": self._steps, "skipped_recently": skipped},
                )
            )
        elif len(self._recent) == RECENT and skipped >= TOO_MANY_SKIPPED:
            self._tell(
                Finding(
                    code="LG421",
                    message=f"Gradients were not finite in {skipped} of the last {RECENT} steps, which were skipped (step {self._steps}).",
                    fix="Look for batches that make the loss infinite; clip gradients after unscaling, or use bf16.",
                    evidence={"scale": scale, "step": self._steps, "skipped_recently": skipped},
                )
            )

    def _look_at_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """One small sum over all gradients, and one wait for the GPU."""
        step = self._steps + 1
        gradients = [
            parameter.grad
            for parameter in _parameters(optimizer)
            if parameter.grad is not None and parameter.grad.layout is torch.strided
        ]
        if not gradients or bool(torch.nn.utils.get_total_norm(gradients).isfinite()):
            return
        names = list(_not_finite(optimizer))
        if names:
            first = f", {names[0]} first" if names[0] else ""
            parameters = "1 parameter" if len(names) == 1 else f"{len(names)} parameters"
            self._tell(
                Finding(
                    code="LG421",
                    message=f"The gradients of {parameters} are not finite at step {step}{first}: the weights are about to become NaN.",
                    fix="Find the batch that makes the loss infinite (torch.autograd.set_detect_anomaly(True) names the "
                    "operation), clip gradients, or lower the learning rate.",
                    evidence={"step": step, "parameters": len(names), "first": names[0]},
                )
            )

    def _tell(self, finding: Finding) -> None:
        if finding.code in self._found:
            return
        self._found[finding.code] = finding
        if self._on_finding is not None:
            self._on_finding(finding)
        else:
            warnings.warn(f"{finding.code}: {finding.message} {finding.fix}", RuntimeWarning, stacklevel=4)


def _is_due(step: int) -> bool:
    return step & (step - 1) == 0 or step % WATCH_EVERY == 0


def _parameters(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _not_finite(optimizer: torch.optim.Optimizer) -> Iterator[str]:
    """The parameters whose gradients are not, by name where the optimizer was given names."""
    for group in optimizer.param_groups:
        names = group.get("param_names") or [""] * len(group["params"])
        for name, parameter in zip(names, group["params"], strict=True):
            if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
                yield name
