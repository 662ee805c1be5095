"""Mixed precision: autocast, loss scaling and gradient clipping in the right order.

    precision = legroom.precision("auto")           # bf16 if the GPU supports it; see precision.reason
    with precision.autocast():
        loss = loss_fn(model(x), y)
    precision.backward(loss)                        # scaled if needed, outside autocast
    precision.clip_grad_norm_(optimizer, 1.0)       # unscales first
    precision.step(optimizer)
    precision.update()

The same code works for every format, because the calls for loss scaling do nothing for bfloat16 and float32. Save the
`state_dict` in checkpoints, because a resumed float16 run would otherwise skip its first steps until the loss scale is
low enough.

Non-finite gradients are detected with little overhead. With float16, a hook on the optimizer detects which steps the
GradScaler skips, without synchronization. With other formats, gradients are checked only at steps 1, 2, 4, 8, ... and
at every 50th step. Problems are passed to `on_finding`. If `on_finding` is not given, a warning is issued once for each
problem.
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
from legroom.train.precision_choice import DTYPES, chosen_precision, default_device

CHECK_INTERVAL = 50
RECENT_STEPS = 100
MAX_SKIPPED = 10
"""If the GradScaler skips at least this many of the recent steps, a finding is reported. A healthy GradScaler skips
about one in 2000 steps, because it tries a larger scale every 2000 steps."""


def precision(
    kind: "str | Precision" = "auto",
    *,
    device: str | torch.device | None = None,
    init_scale: float = 65536.0,
    on_finding: Callable[[Finding], None] | None = None,
) -> "Precision":
    """Return the precision `bf16`, `fp16` or `fp32`. `auto` selects the best format for the device, which is the GPU by
    default."""
    if isinstance(kind, Precision):
        return kind
    target = default_device() if device is None else _device(device)
    if target.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "No CUDA device is available. Omit device=, or use a virtual GPU (legroom.VirtualGPU)."
        )
    name, reason = chosen_precision(kind, target)
    return Precision(name, reason, target.type, init_scale=init_scale, on_finding=on_finding)


def _device(device: Any) -> torch.device:
    try:
        return torch.device(device)
    except (TypeError, RuntimeError):
        raise UsageError("device= is not a valid device. Pass a string such as 'cuda' or 'cpu'.") from None


class Precision:
    def __init__(
        self,
        name: str,
        reason: str,
        device_type: str,
        *,
        init_scale: float = 65536.0,
        on_finding: Callable[[Finding], None] | None = None,
    ) -> None:
        self.name = name
        """The number format: `bf16`, `fp16` or `fp32`."""
        self.reason = reason
        self.device_type = device_type
        self.dtype = DTYPES[name]
        self.scaler = GradScaler(device_type, init_scale=init_scale) if name == "fp16" else None
        self._on_finding = on_finding
        self._findings: dict[str, Finding] = {}
        self._steps = 0
        self._recent: deque[bool] = deque(maxlen=RECENT_STEPS)
        self._unscaled: set[int] = set()
        self._hooked: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._stepped = False
        self._skipped = False

    def __repr__(self) -> str:
        return f"<Precision {self.name} on {self.device_type}: {self.reason}>"

    # --- one step

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the autocast context for the forward pass and the loss."""
        return torch.autocast(self.device_type, dtype=self.dtype, enabled=self.name != "fp32")

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss if self.scaler is None else self.scaler.scale(loss)

    def backward(self, loss: torch.Tensor, *, retain_graph: bool = False) -> None:
        """Run the backward pass outside autocast. The backward pass uses the same dtypes as the forward pass."""
        with torch.autocast(self.device_type, enabled=False):
            self.scale(loss).backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Unscale this optimizer's gradients. A second call before the next `update` does nothing."""
        if self.scaler is not None and id(optimizer) not in self._unscaled:
            self.scaler.unscale_(optimizer)
            self._unscaled.add(id(optimizer))

    def clip_grad_norm_(
        self, optimizer: torch.optim.Optimizer, max_norm: float, norm_type: float = 2.0
    ) -> torch.Tensor:
        """Unscale this optimizer's gradients, and clip their total norm. Return the norm before clipping."""
        self.unscale_(optimizer)
        return torch.nn.utils.clip_grad_norm_(list(_parameters(optimizer)), max_norm, norm_type)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Step the optimizer. Return False if the GradScaler skipped the step because of non-finite gradients.

        A fused optimizer (`fused=True`) decides on the GPU whether to skip a step, so for a fused optimizer the result
        is always True.
        """
        if self.scaler is None:
            if is_check_step(self._steps + 1):
                with contextlib.suppress(torch.OutOfMemoryError):  # the check is optional
                    self._check_gradients(optimizer)
            optimizer.step()
            return True
        self._register_hook(optimizer)
        self._stepped = False
        self.scaler.step(optimizer)
        self._skipped |= not self._stepped
        return self._stepped

    def update(self) -> None:
        """Update the loss scale. Call this method after the last optimizer of the step."""
        self._steps += 1
        if self.scaler is None:
            return
        self.scaler.update()
        self._unscaled.clear()
        skipped, self._skipped = self._skipped, False
        self._recent.append(skipped)
        if skipped or is_check_step(self._steps):
            self._check_scale(self.scaler)

    def discard(self) -> None:
        """Reset the GradScaler for a step that will be repeated.

        This method clears a private table of the GradScaler. If a version of torch lacks this table, the GradScaler
        raises an error when the repeated step is unscaled.
        """
        self._unscaled.clear()
        self._skipped = False
        table = getattr(self.scaler, "_per_optimizer_states", None)
        if table is not None:
            table.clear()

    # --- state

    def state_dict(self) -> dict[str, Any]:
        return {
            "precision": self.name,
            "steps": self._steps,
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of `state_dict()`. If the state was saved for a different number format, only the number of
        steps is loaded."""
        if not isinstance(state, dict) or state.get("precision") not in DTYPES:
            raise UsageError(
                "The argument is not the state of legroom.precision. Pass the result of state_dict()."
            )
        self._steps = int(state.get("steps", 0))
        scaler = state.get("scaler")
        if self.scaler is not None and scaler:
            self.scaler.load_state_dict(scaler)

    def findings(self) -> tuple[Finding, ...]:
        """Return the problems found so far, without duplicates."""
        return tuple(self._findings.values())

    # --- checks

    def _register_hook(self, optimizer: torch.optim.Optimizer) -> None:
        """Register a hook that detects whether the GradScaler calls `optimizer.step`. All other public methods to
        detect a skipped step require a synchronization.
        """
        if optimizer in self._hooked:
            return
        reference = weakref.ref(self)

        def stepped(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
            precision = reference()
            if precision is not None:
                precision._stepped = True

        optimizer.register_step_post_hook(stepped)
        self._hooked.add(optimizer)

    def _check_scale(self, scaler: GradScaler) -> None:
        skipped = sum(self._recent)
        scale = scaler.get_scale()
        if scale < 1.0:
            self._report(low_loss_scale(scale, self._steps, skipped))
        elif len(self._recent) == RECENT_STEPS and skipped >= MAX_SKIPPED:
            self._report(
                Finding(
                    code="LG421",
                    message=f"{skipped} of the last {RECENT_STEPS} steps were skipped because of non-finite gradients (step {self._steps}).",
                    fix="Find batches with an infinite loss, clip gradients after unscaling, or use bf16.",
                    evidence={"scale": scale, "step": self._steps, "skipped_recently": skipped},
                )
            )

    def _check_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        finding = non_finite_gradients(optimizer, self._steps + 1)
        if finding is not None:
            self._report(finding)

    def _report(self, finding: Finding) -> None:
        if finding.code in self._findings:
            return
        self._findings[finding.code] = finding
        if self._on_finding is not None:
            self._on_finding(finding)
        else:
            warnings.warn(f"{finding.code}: {finding.message} {finding.fix}", RuntimeWarning, stacklevel=4)


def is_check_step(step: int) -> bool:
    """Return True if gradients are checked at this step. A check synchronizes with the GPU, so most steps are not
    checked.
    """
    return step & (step - 1) == 0 or step % CHECK_INTERVAL == 0


def low_loss_scale(scale: float, step: int, skipped: int) -> Finding:
    return Finding(
        code="LG420",
        message=f"The loss scale dropped to {scale:g} at step {step}: gradients overflow float16 at any scale.",
        fix='If the GPU supports bfloat16, use legroom.precision("bf16"). Otherwise, check the inputs and the loss for infinities, '
        "and lower the learning rate.",
        evidence={"scale": scale, "step": step, "skipped_recently": skipped},
    )


def non_finite_gradients(optimizer: torch.optim.Optimizer, step: int) -> Finding | None:
    """Return a finding if gradients are non-finite, otherwise None. The check synchronizes with the GPU."""
    gradients = [
        parameter.grad
        for parameter in _parameters(optimizer)
        if parameter.grad is not None and parameter.grad.layout is torch.strided
    ]
    if not gradients or bool(torch.nn.utils.get_total_norm(gradients).isfinite()):
        return None
    names = list(_non_finite_parameters(optimizer))
    if not names:
        return None
    first = f" (first: {names[0]})" if names[0] else ""
    parameters = "1 parameter" if len(names) == 1 else f"{len(names)} parameters"
    return Finding(
        code="LG421",
        message=f"Non-finite gradients of {parameters} at step {step}{first}. The optimizer step will make the weights NaN.",
        fix="Find the batch with an infinite loss (torch.autograd.set_detect_anomaly(True) identifies the "
        "operation), clip gradients, or lower the learning rate.",
        evidence={"step": step, "parameters": len(names), "first": names[0]},
    )


def _parameters(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _non_finite_parameters(optimizer: torch.optim.Optimizer) -> Iterator[str]:
    """Yield the names of the parameters with non-finite gradients. A name is "" if the optimizer has no parameter
    names.
    """
    for group in optimizer.param_groups:
        names = group.get("param_names") or [""] * len(group["params"])
        for name, parameter in zip(names, group["params"], strict=True):
            if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
                yield name
