"""Models with derivatives inside the loss or with `torch.func`: physics, hypernetworks, meta-learning and
differential privacy."""

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, vmap

from bench.accuracy.cases.case import CaseSet
from bench.lib.models.blocks import binary_loss
from bench.lib.models.parts import Spec, StepParts, batch_of, mlp, no_loss, normal, uniform, unlabelled

CASES = CaseSet()
case = CASES.case


def _gradient(y: Tensor, x: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return found


@case("adam", "fp32", 9000)
def wake_of_a_cylinder() -> Spec:
    """Build a Navier-Stokes PINN with a stream function. The loss uses third derivatives and measured velocities."""

    def loss(model: nn.Module, points: Tensor, speeds: Tensor) -> Tensor:
        points = points.requires_grad_(True)
        stream, pressure = model(points).unbind(1)
        along = _gradient(stream, points)
        press = _gradient(pressure, points)
        u, v = along[:, 1], -along[:, 0]
        total = F.mse_loss(torch.stack([u, v], 1), speeds)
        for axis, speed in enumerate((u, v)):
            first = _gradient(speed, points)
            bent = _gradient(first[:, 0], points)[:, 0] + _gradient(first[:, 1], points)[:, 1]
            rest = first[:, 2] + u * first[:, 0] + v * first[:, 1] + press[:, axis] - 0.01 * bent
            total = total + rest.square().mean()
        return total

    return Spec(mlp(3, *[80] * 7, 2, act=nn.Tanh), batch_of(uniform(3), normal(2)), loss)


@case("adamw", "fp32", 3000)
def charges_by_curvature() -> Spec:
    """Build a network for Poisson's equation in five dimensions, with the full Hessian of every point."""

    def loss(model: nn.Module, points: Tensor) -> Tensor:
        weights = dict(model.named_parameters())

        def output(point: Tensor) -> Tensor:
            found: Tensor = functional_call(model, weights, (point,))
            return found.squeeze(0)

        bends = vmap(lambda point: torch.diagonal(hessian(output)(point)).sum())(points)
        return (bends + points.sin().sum(1)).square().mean()

    return Spec(mlp(5, 160, 160, 160, 1, act=nn.Tanh), unlabelled(5), loss)


class _Hamiltonian(nn.Module):
    """A Hamiltonian network with a symplectic integrator."""

    def __init__(self, bodies: int = 12, width: int = 320) -> None:
        super().__init__()
        self.still, self.moving = (mlp(bodies, width, width, 1, act=nn.Softplus) for _ in range(2))

    def forward(self, place: Tensor, push: Tensor) -> tuple[Tensor, Tensor]:
        place, push = place.requires_grad_(True), push.requires_grad_(True)
        for _ in range(6):
            push = push - 0.05 * _gradient(self.still(place), place)
            place = place + 0.1 * _gradient(self.moving(push), push)
            push = push - 0.05 * _gradient(self.still(place), place)
        return place, push


@case("adam", "fp32", 2000)
def pendulums_in_a_row() -> Spec:
    def loss(model: nn.Module, place: Tensor, push: Tensor, later: Tensor) -> Tensor:
        return F.mse_loss(torch.cat(model(place, push), 1), later)

    return Spec(_Hamiltonian(), batch_of(normal(12), normal(12), normal(24)), loss)


class _Hypernetwork(nn.Module):
    """A hypernetwork that generates one small coordinate network per image."""

    def __init__(self, code: int = 96, sizes: tuple[int, ...] = (2, 48, 48, 48, 3)) -> None:
        super().__init__()
        self.shapes = list(itertools.pairwise(sizes))
        count = sum((inputs + 1) * outputs for inputs, outputs in self.shapes)
        self.make = mlp(code, 512, 512, count)

    def forward(self, code: Tensor, places: Tensor) -> Tensor:
        pieces = self.make(code).split([(inputs + 1) * outputs for inputs, outputs in self.shapes], 1)
        for number, (piece, (inputs, outputs)) in enumerate(zip(pieces, self.shapes, strict=True)):
            weight = piece.view(-1, inputs + 1, outputs)
            places = torch.baddbmm(weight[:, -1:], places, weight[:, :-1])
            places = places if number == len(pieces) - 1 else torch.sin(3 * places)
        return places


@case("adamw", "tf32", 40, clip=True)
def a_network_for_each_picture() -> Spec:
    return Spec(
        _Hypernetwork(),
        batch_of(normal(96), uniform(4096, 2), uniform(4096, 3)),
        lambda m, code, places, colours: F.mse_loss(m(code, places), colours),
    )


@case("adam", "fp32", 160)
def tasks_side_by_side() -> Spec:
    """Build MAML with two inner steps on ten samples per task, vectorized over tasks."""

    def loss(
        model: nn.Module, support: Tensor, output: Tensor, query: Tensor, query_target: Tensor
    ) -> Tensor:
        first = dict(model.named_parameters())

        def loss_of(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return F.mse_loss(functional_call(model, weights, (x,)), y)

        def task(x: Tensor, y: Tensor, later: Tensor, right: Tensor) -> Tensor:
            weights = first
            for _ in range(2):
                gradients = grad(loss_of)(weights, x, y)
                weights = {name: old - 0.01 * gradients[name] for name, old in weights.items()}
            return loss_of(weights, later, right)

        return vmap(task)(support, output, query, query_target).mean()

    batch = batch_of(normal(10, 24), normal(10, 4), normal(60, 24), normal(60, 4))
    return Spec(mlp(24, 320, 320, 4), batch, loss)


def _dp_sgd(parts: StepParts) -> Callable[[], Tensor]:
    """Return a DP-SGD step. Per-sample gradients are clipped to norm one and summed, and noise is added."""
    model = parts.model
    optimizer = parts.optimizer(model.parameters())
    names = [name for name, _ in model.named_parameters()]

    def loss_of(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        output = functional_call(model, weights, (x.unsqueeze(0),))
        return F.binary_cross_entropy_with_logits(output, y.unsqueeze(0))

    each = vmap(grad(loss_of), in_dims=(None, 0, 0))

    def step() -> Tensor:
        x, y = parts.batch()
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        gradients = each(weights, x, y)
        lengths = torch.stack([gradients[name].flatten(1).norm(dim=1) for name in names], 1).norm(dim=1)
        factor = (1 / (lengths + 1e-6)).clamp(max=1)
        for name, parameter in model.named_parameters():
            total = torch.einsum("n,n...->...", factor, gradients[name])
            parameter.grad = (total + 1.1 * torch.randn_like(total)) / len(x)
        optimizer.step()
        with torch.no_grad():
            return binary_loss(model, x, y)

    return step


@case("sgdm", "fp32", 300)
def private_records() -> Spec:
    model = mlp(200, 384, 384, 12, act=nn.Tanh)
    return Spec(model, batch_of(normal(200), uniform(12)), no_loss, _dp_sgd)
