"""Sweep cases: optimizers, gradient clipping, loss scaling, averaging, checkpointing, higher-order gradients."""

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from bench.sweep.kit import TYPES, Case, custom_case

SIZES = {"small": (40, 4), "odd": (333, 3), "large": (1400, 2)}


def cases() -> Iterator[Case]:
    yield from _optimizers()
    yield from _clipping()
    yield from _scaled()
    yield from _averaged()
    yield from _computed_again()
    yield from _higher()


def _model(size: str, dtype: str = "fp32") -> nn.Sequential:
    width, layers = SIZES[size]
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [
            nn.Linear(width, width, device="cuda", dtype=TYPES[dtype]),
            nn.LayerNorm(width, device="cuda", dtype=TYPES[dtype]),
            nn.ReLU(),
        ]
    return nn.Sequential(*parts)


def _batch(size: str, dtype: str = "fp32", rows: int = 64) -> Tensor:
    return torch.randn(rows, SIZES[size][0], device="cuda", dtype=TYPES[dtype])


def _loss(model: Any, x: Tensor) -> Tensor:
    loss: Tensor = model(x).float().pow(2).mean()
    return loss


def _optimizers() -> Iterator[Case]:
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "SGD": ("SGD", {"lr": 0.1}),
        "SGD-momentum": ("SGD", {"lr": 0.1, "momentum": 0.9}),
        "SGD-nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        "SGD-dampened": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "maximize": True}),
        "Adam": ("Adam", {}),
        "Adam-decay": ("Adam", {"weight_decay": 0.1}),
        "Adam-amsgrad": ("Adam", {"amsgrad": True}),
        "Adam-maximize": ("Adam", {"maximize": True}),
        "AdamW": ("AdamW", {}),
        "AdamW-amsgrad": ("AdamW", {"amsgrad": True}),
        "NAdam": ("NAdam", {}),
        "NAdam-decoupled": ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
        "RAdam": ("RAdam", {}),
        "RAdam-decoupled": ("RAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
        "Adamax": ("Adamax", {"weight_decay": 0.1}),
        "Adadelta": ("Adadelta", {"weight_decay": 0.1}),
        "Adagrad": ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1}),
        "ASGD": ("ASGD", {"weight_decay": 0.1}),
        "RMSprop": ("RMSprop", {}),
        "RMSprop-centered": ("RMSprop", {"centered": True, "momentum": 0.9, "weight_decay": 0.1}),
        "Rprop": ("Rprop", {}),
        "Adafactor": ("Adafactor", {}),
        "Adafactor-decay": ("Adafactor", {"weight_decay": 0.1, "maximize": True}),
    }
    ways: dict[str, dict[str, Any]] = {
        "": {},
        "foreach": {"foreach": True},
        "loop": {"foreach": False},
        "fused": {"fused": True},
        "capturable": {"capturable": True},
        "capturable-loop": {"capturable": True, "foreach": False},
        "differentiable": {"differentiable": True},
    }
    for (name, (kind, options)), (way, choice) in itertools.product(kinds.items(), ways.items()):
        make: Any = getattr(torch.optim, kind, None)
        if make is None or not _takes(make, choice):
            continue
        for size, dtype in (("small", "fp32"), ("odd", "fp32"), ("large", "fp32"), ("odd", "bf16")):
            if way not in ("", "loop", "fused") and size == "small":
                continue
            yield custom_case(
                f"{name}-{way or 'default'}",
                f"{size} {dtype}",
                lambda m=make, o=options, c=choice, s=size, d=dtype: _stepped(lambda p: m(p, **o, **c), s, d),
            )
    yield custom_case("SparseAdam", "", lambda: _sparse_steps(torch.optim.SparseAdam))
    yield custom_case("SGD-sparse", "", lambda: _sparse_steps(lambda p: torch.optim.SGD(p, lr=0.1)))
    yield custom_case("Adagrad-sparse", "", lambda: _sparse_steps(torch.optim.Adagrad))
    for size, search in itertools.product(("small", "large"), (None, "strong_wolfe")):
        yield custom_case("LBFGS", f"{size} {search}", lambda s=size, w=search: _closures(s, w))
    if hasattr(torch.optim, "Muon"):
        for size, rule in itertools.product(("odd", "large"), (None, "match_rms_adamw")):
            yield custom_case("Muon", f"{size} {rule}", lambda s=size, r=rule: _stepped(lambda p: torch.optim.Muon([q for q in p if q.dim() == 2], adjust_lr_fn=r), s, "fp32"))  # fmt: skip
    yield custom_case(
        "groups", "", lambda: _stepped(lambda p: torch.optim.AdamW([{"params": [q], "lr": 0.1} for q in p]), "odd", "fp32")
    )  # fmt: skip
    yield custom_case("tensor-rate", "", lambda: _stepped(lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1, device="cuda"), capturable=True), "odd", "fp32"))  # fmt: skip
    yield custom_case("kept-gradients", "", lambda: _stepped(torch.optim.Adam, "odd", "fp32", keep=True))
    yield custom_case("one-cycle", "", lambda: _scheduled())
    yield custom_case("mixed-parameters", "", _mixed)


def _takes(make: Any, choice: dict[str, Any]) -> bool:
    return set(choice) <= set(inspect.signature(make).parameters)


def _stepped(make: Callable[[Any], Any], size: str, dtype: str, keep: bool = False) -> None:
    model = _model(size, dtype)
    optimizer = make(list(model.parameters()))
    for _ in range(3):
        _loss(model, _batch(size, dtype)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=not keep)


def _sparse_steps(make: Callable[[Any], Any]) -> None:
    table = nn.Embedding(20000, 64, sparse=True, device="cuda")
    optimizer = make(list(table.parameters()))
    for _ in range(2):
        table(torch.randint(0, 20000, (64, 30), device="cuda")).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def _closures(size: str, search: str | None) -> None:
    model, x = _model(size), _batch(size)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=3, line_search_fn=search)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = _loss(model, x)
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)  # type: ignore[arg-type]


def _scheduled() -> None:
    model = _model("odd")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    for _ in range(3):
        _loss(model, _batch("odd")).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def _mixed() -> None:
    model = nn.Sequential(_model("odd"), _model("odd", "bf16"))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        x = model[0](_batch("odd"))
        model[1](x.bfloat16()).float().sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def _clipping() -> Iterator[Case]:
    actions: dict[str, Callable[[Any], Any]] = {
        "clip-norm": lambda p: nn.utils.clip_grad_norm_(p, 1.0),
        "clip-norm-foreach": lambda p: nn.utils.clip_grad_norm_(p, 1.0, foreach=True),
        "clip-norm-loop": lambda p: nn.utils.clip_grad_norm_(p, 1.0, foreach=False),
        "clip-norm-one": lambda p: nn.utils.clip_grad_norm_(p, 1.0, norm_type=1),
        "clip-norm-inf": lambda p: nn.utils.clip_grad_norm_(p, 1.0, norm_type=float("inf")),
        "clip-norm-three": lambda p: nn.utils.clip_grad_norm_(p, 1.0, norm_type=3),
        "clip-value": lambda p: nn.utils.clip_grad_value_(p, 0.1),
        "clip-value-loop": lambda p: nn.utils.clip_grad_value_(p, 0.1, foreach=False),
        "total-norm": lambda p: nn.utils.get_total_norm([q.grad for q in p]),
        "norm-by-hand": lambda p: torch.norm(torch.stack([q.grad.norm(2) for q in p]), 2),
        "norm-of-vector": lambda p: nn.utils.parameters_to_vector([q.grad for q in p]).norm(),
        "vector-and-back": lambda p: nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(p), p),
        "l1-penalty": lambda p: sum(q.abs().sum() for q in p).backward(),
        "l2-penalty": lambda p: sum(q.pow(2).sum() for q in p).backward(),
        "noise": lambda p: [q.grad.add_(torch.randn_like(q.grad) * 0.1) for q in p],
        "zero-in-place": lambda p: [q.grad.zero_() for q in p],
        "soft-update": lambda p: [q.data.mul_(0.9).add_(q.grad, alpha=0.1) for q in p],
        "lerp-update": lambda p: [q.data.lerp_(q.grad, 0.1) for q in p],
        "foreach-lerp": lambda p: torch._foreach_lerp_([q.data for q in p], [q.grad for q in p], 0.1),
    }
    for (name, action), size, dtype in itertools.product(actions.items(), SIZES, ("fp32", "bf16", "fp16")):
        yield custom_case(name, f"{size} {dtype}", lambda a=action, s=size, d=dtype: _with_gradients(a, s, d))


def _with_gradients(action: Callable[[Any], Any], size: str, dtype: str) -> None:
    model = _model(size, dtype)
    _loss(model, _batch(size, dtype)).backward()
    action(list(model.parameters()))


def _scaled() -> Iterator[Case]:
    for size, dtype, how in itertools.product(
        SIZES, ("fp16", "bf16"), ("Adam", "SGD", "fused", "clipped", "accumulated")
    ):
        yield custom_case(f"scaled-{how}", f"{size} {dtype}", lambda s=size, d=dtype, h=how: _scaled_steps(s, d, h))  # fmt: skip


def _scaled_steps(size: str, dtype: str, how: str) -> None:
    model = _model(size)
    make: Any = {
        "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
        "fused": lambda p: torch.optim.AdamW(p, fused=True),
    }.get(how, torch.optim.Adam)
    optimizer, scaler = make(model.parameters()), torch.amp.GradScaler("cuda")
    for _ in range(2):
        for _ in range(2 if how == "accumulated" else 1):
            with torch.autocast("cuda", TYPES[dtype]):
                loss = _loss(model, _batch(size))
            scaler.scale(loss).backward()
        if how == "clipped":
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def _averaged() -> Iterator[Case]:
    from torch.optim import swa_utils

    ways: dict[str, dict[str, Any]] = {
        "swa": {},
        "ema": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9)},
        "ema-each": {"avg_fn": swa_utils.get_ema_avg_fn(0.9)},
        "ema-buffers": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9), "use_buffers": True},
        "swa-multi": {"multi_avg_fn": swa_utils.get_swa_multi_avg_fn()},
    }

    def run(size: str, dtype: str, options: dict[str, Any]) -> None:
        model = _model(size, dtype)
        average = swa_utils.AveragedModel(model, **options)
        for _ in range(3):
            average.update_parameters(model)

    for (name, options), size, dtype in itertools.product(ways.items(), SIZES, ("fp32", "bf16")):
        yield custom_case(name, f"{size} {dtype}", lambda s=size, d=dtype, o=options: run(s, d, o))
    yield custom_case("state-dict", "", lambda: _model("large").load_state_dict(_model("large").state_dict()))


def _computed_again() -> Iterator[Case]:
    def run(size: str, how: str, autocast: bool) -> None:
        model, x = _model(size), _batch(size, rows=512).requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            if how == "sequential":
                out = checkpoint_sequential(model, 2, x, use_reentrant=False)
            elif how == "nested":
                out = checkpoint(
                    lambda y: checkpoint(model[3:], model[:3](y), use_reentrant=False), x, use_reentrant=False
                )
            else:
                out = checkpoint(model, x, use_reentrant=how == "reentrant")
            loss = out.float().mean()
        loss.backward()

    for size, how, autocast in itertools.product(
        ("small", "odd", "large"), ("sequential", "nested", "reentrant", "plain"), (False, True)
    ):
        yield custom_case(f"checkpoint-{how}", f"{size}{' autocast' if autocast else ''}", lambda s=size, h=how, a=autocast: run(s, h, a))  # fmt: skip


def _penalty(model: nn.Module, x: Tensor) -> Tensor:
    x = x.requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return (gradient.norm(2, dim=1) - 1).pow(2).mean()


def _smooth(size: str) -> nn.Sequential:
    width = SIZES[size][0]
    return nn.Sequential(
        nn.Linear(width, width, device="cuda"), nn.Tanh(), nn.Linear(width, width, device="cuda"), nn.Softplus(),
        nn.LayerNorm(width, device="cuda"), nn.Linear(width, 1, device="cuda"),
    )  # fmt: skip


def _higher() -> Iterator[Case]:
    actions: dict[str, Callable[[str], Any]] = {
        "gradient-penalty": lambda s: _penalty(_smooth(s), _batch(s, rows=256)).backward(),
        "gradient-penalty-relu": lambda s: _penalty(_model(s), _batch(s, rows=256)).backward(),
        "hessian-product": lambda s: torch.autograd.functional.vhp(lambda x: _smooth(s)(x).sum(), _batch(s), _batch(s)),
        "jacobian": lambda s: torch.autograd.functional.jacobian(_smooth(s), _batch(s, rows=4)),
        "func-grad": lambda s: _functional(s, "grad"),
        "func-vmap-grad": lambda s: _functional(s, "vmap"),
        "func-jvp": lambda s: _functional(s, "jvp"),
        "func-jacrev": lambda s: _functional(s, "jacrev"),
        "func-vjp": lambda s: _functional(s, "vjp"),
        "functional-call": lambda s: _functional(s, "call"),
        "ensemble": _ensemble,
        "retained": lambda s: _retained(s),
        "saved-to-host": lambda s: _hooked(s),
        "hooked": lambda s: _with_hook(s),
        "anomaly": lambda s: _anomalous(s),
        "inner-step": _inner_step,
        "accumulated": lambda s: _accumulated(s),
        "two-losses": lambda s: _two_losses(s),
        "unused-parameter": lambda s: _smooth(s)[:4](_batch(s)).sum().backward(),
        "custom-function": lambda s: _Doubled.apply(_model(s)(_batch(s))).sum().backward(),
        "in-half": lambda s: _model(s, "fp16").half()(_batch(s, "fp16")).sum().backward(),
        "cast-model": lambda s: _model(s).to(torch.bfloat16)(_batch(s, "bf16")).sum().backward(),
        "no-grad": lambda s: _quiet(s),
        "frozen-half": lambda s: _frozen(s),
    }  # fmt: skip
    for (name, action), size in itertools.product(actions.items(), SIZES):
        yield custom_case(name, size, lambda a=action, s=size: a(s))


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.saved_tensors[0].sign()


def _functional(size: str, how: str) -> Any:
    from torch.func import functional_call, grad, jacrev, jvp, vjp, vmap

    model, x = _smooth(size), _batch(size, rows=16)
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(values: Any, rows: Tensor) -> Tensor:
        return functional_call(model, values, (rows,)).sum()

    if how == "grad":
        return grad(loss)(parameters, x)
    if how == "vmap":
        return vmap(grad(loss), in_dims=(None, 0))(parameters, x[:, None])
    if how == "jvp":
        return jvp(lambda rows: loss(parameters, rows), (x,), (torch.ones_like(x),))
    if how == "vjp":
        return vjp(lambda rows: functional_call(model, parameters, (rows,)), x)[1](
            torch.ones(16, 1, device="cuda")
        )
    if how == "jacrev":
        return jacrev(lambda rows: functional_call(model, parameters, (rows,)))(x)
    return functional_call(model, parameters, (x,))


def _ensemble(size: str) -> Any:
    from torch.func import functional_call, stack_module_state, vmap

    models: list[nn.Module] = [_smooth(size) for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    x = _batch(size)
    out = vmap(lambda p, b: functional_call(models[0], (p, b), (x,)))(parameters, buffers)
    out.sum().backward()


def _retained(size: str) -> None:
    model = _model(size)
    loss = _loss(model, _batch(size))
    loss.backward(retain_graph=True)
    loss.backward()


def _hooked(size: str) -> None:
    with torch.autograd.graph.save_on_cpu():
        loss = _loss(_model(size), _batch(size))
    loss.backward()


def _with_hook(size: str) -> None:
    model = _model(size)
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * 0.5)
        parameter.register_post_accumulate_grad_hook(lambda p: p.grad.clamp_(-1, 1))
    _loss(model, _batch(size)).backward()


def _anomalous(size: str) -> None:
    with torch.autograd.detect_anomaly(check_nan=False):
        _loss(_model(size), _batch(size)).backward()


def _inner_step(size: str) -> None:
    model = _smooth(size)
    names, values = zip(*model.named_parameters(), strict=True)
    first = torch.autograd.grad(model(_batch(size)).pow(2).mean(), values, create_graph=True)
    changed = {
        name: value - 0.1 * gradient for name, value, gradient in zip(names, values, first, strict=True)
    }
    torch.func.functional_call(model, changed, (_batch(size),)).pow(2).mean().backward()


def _accumulated(size: str) -> None:
    model = _model(size)
    for _ in range(3):
        (_loss(model, _batch(size)) / 3).backward()


def _two_losses(size: str) -> None:
    model, x = _model(size), _batch(size)
    out = model[:3](x)
    (_loss(model[3:], out) + 0.1 * F.l1_loss(out, x)).backward()


def _quiet(size: str) -> None:
    with torch.no_grad():
        _loss(_model(size), _batch(size))


def _frozen(size: str) -> None:
    model = _model(size)
    model[:3].requires_grad_(False)
    _loss(model, _batch(size)).backward()
