"""The optimizers that cases can use."""

from collections.abc import Callable
from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """The Lion optimizer as a plain Python loop over the parameters, as in many projects."""

    def __init__(self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            slow, fast = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["average"] = torch.zeros_like(parameter)
                average = state["average"]
                update = average.mul(slow).add(parameter.grad, alpha=1 - slow).sign_()
                parameter.add_(update, alpha=-group["lr"])
                average.mul_(fast).add_(parameter.grad, alpha=1 - fast)


OPTIMIZERS: dict[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "sgdm": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-4),
    "adam_amsgrad": lambda p: torch.optim.Adam(p, lr=1e-4, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-4),
    "adamw_loop": lambda p: torch.optim.AdamW(p, lr=1e-4, foreach=False),
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-4),
    "rmsprop_momentum": lambda p: torch.optim.RMSprop(p, lr=1e-4, momentum=0.9, weight_decay=1e-5),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-3),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=1e-2),
    "adamax": lambda p: torch.optim.Adamax(p, lr=1e-3),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-4),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-4),
    "lion": Lion,
    "sgd_fused": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, fused=True),
    "sgd_loop": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, foreach=False),
    "adam_fused": lambda p: torch.optim.Adam(p, lr=1e-4, fused=True),
    "adam_loop": lambda p: torch.optim.Adam(p, lr=1e-4, foreach=False),
    "asgd": lambda p: torch.optim.ASGD(p, lr=1e-3),
    "rprop": lambda p: torch.optim.Rprop(p, lr=1e-4),
    "rmsprop_centered": lambda p: torch.optim.RMSprop(p, lr=1e-4, centered=True),
    "nadamw": lambda p: torch.optim.NAdam(p, lr=1e-4, weight_decay=0.01, decoupled_weight_decay=True),
    "sparse_adam": lambda p: torch.optim.SparseAdam(p, lr=1e-3),
}
