"""Networks that make pictures: autoencoders, adversaries with an optimizer each, a painter, diffusion. Cases stand above
the model they train.
"""

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.model_parts import Spec, Workshop, alone, no_loss, torchvision

ORDINARY_MAKERS = CaseSet()
case = ORDINARY_MAKERS.case


@case("adam", "fp32", 128)
def squeezed_pictures() -> Spec:
    """A convolutional autoencoder that grows by transposed convolutions."""
    model = nn.Sequential(
        nn.Conv2d(3, 12, 4, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 4, 2, 1), nn.ReLU(), nn.Conv2d(24, 48, 4, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(48, 24, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(24, 12, 4, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(12, 3, 4, 2, 1), nn.Sigmoid(),
    )  # fmt: skip
    return Spec(model, alone(3, 96, 96), lambda m, x: F.binary_cross_entropy(m(x), x))


class _Faces(nn.Module):
    """A variational autoencoder with kernels of four."""

    def __init__(self, codes: int = 10) -> None:
        super().__init__()
        widths = (3, 32, 32, 64, 64)
        down: list[nn.Module] = []
        up: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(widths):
            down += [nn.Conv2d(inputs, outputs, 4, 2, 1), nn.ReLU()]
            up = [nn.ConvTranspose2d(outputs, inputs, 4, 2, 1), nn.ReLU(), *up]
        self.read = nn.Sequential(
            *down, nn.Flatten(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 2 * codes)
        )
        self.write = nn.Sequential(nn.Linear(codes, 256), nn.ReLU(), nn.Linear(256, 1024), nn.ReLU(), nn.Unflatten(1, (64, 4, 4)), *up[:-1])  # fmt: skip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.read(x).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * spread)
        return self.write(code), mean, spread


@case("adam", "fp32", 144)
def faces() -> Spec:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        told, mean, spread = model(x)
        far = -0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp(), dim=1).mean()
        return F.binary_cross_entropy_with_logits(told, x, reduction="sum") / len(x) + 4 * far

    return Spec(_Faces(), alone(3, 64, 64), loss)


def _digit_adversaries(shop: Workshop) -> Callable[[], Tensor]:
    make, judge = shop.model["make"], shop.model["judge"]
    of_make, of_judge = shop.optimizer(make.parameters()), shop.optimizer(judge.parameters())
    tell = nn.BCELoss()

    def step() -> Tensor:
        (real,) = shop.batch()
        yes, no = torch.ones(len(real), 1, device=real.device), torch.zeros(len(real), 1, device=real.device)
        of_make.zero_grad()
        made = make(torch.randn(len(real), 100, device=real.device))
        fooled = tell(judge(made), yes)
        fooled.backward()
        of_make.step()
        of_judge.zero_grad()
        caught = (tell(judge(real), yes) + tell(judge(made.detach()), no)) / 2
        caught.backward()
        of_judge.step()
        return caught.detach()

    return step


@case("adam", "fp32", 64)
def digit_adversaries() -> Spec:
    """The first GAN that people write: perceptrons over digits."""
    layers: list[nn.Module] = [nn.Linear(100, 128), nn.LeakyReLU(0.2)]
    for inputs, outputs in itertools.pairwise((128, 256, 512, 1024)):
        layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs, 0.8), nn.LeakyReLU(0.2)]
    make = nn.Sequential(*layers, nn.Linear(1024, 784), nn.Tanh())
    judge = nn.Sequential(
        nn.Linear(784, 512), nn.LeakyReLU(0.2), nn.Linear(512, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1), nn.Sigmoid()
    )  # fmt: skip
    return Spec(nn.ModuleDict({"make": make, "judge": judge}), alone(784), no_loss, _digit_adversaries)


def _penalized(shop: Workshop) -> Callable[[], Tensor]:
    """Two steps of the judge with a penalty on its gradient, then one of the maker (WGAN-GP)."""
    make, judge = shop.model["make"], shop.model["judge"]
    of_make, of_judge = shop.optimizer(make.parameters()), shop.optimizer(judge.parameters())

    def step() -> Tensor:
        for _ in range(2):
            (real,) = shop.batch()
            made = make(torch.randn(len(real), 128, 1, 1, device=real.device)).detach()
            share = torch.rand(len(real), 1, 1, 1, device=real.device)
            between = (share * real + (1 - share) * made).requires_grad_(True)
            told = judge(between)
            (slope,) = torch.autograd.grad(
                told, between, torch.ones_like(told), create_graph=True, retain_graph=True
            )
            penalty = ((slope.flatten(1).norm(2, dim=1) - 1) ** 2).mean()
            loss = judge(made).mean() - judge(real).mean() + 10 * penalty
            of_judge.zero_grad()
            loss.backward()
            of_judge.step()
        of_make.zero_grad()
        fooled = -judge(make(torch.randn(len(real), 128, 1, 1, device=real.device))).mean()
        fooled.backward()
        of_make.step()
        return loss.detach()

    return step


@case("adam", "fp32", 64)
def penalized_adversaries() -> Spec:
    up: list[nn.Module] = [nn.ConvTranspose2d(128, 256, 4), nn.BatchNorm2d(256), nn.ReLU()]
    for inputs, outputs in ((256, 128), (128, 64)):
        up += [nn.ConvTranspose2d(inputs, outputs, 4, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU()]
    make = nn.Sequential(*up, nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())
    down: list[nn.Module] = []
    for inputs, outputs in ((3, 64), (64, 128), (128, 256)):
        down += [
            nn.Conv2d(inputs, outputs, 4, 2, 1),
            nn.InstanceNorm2d(outputs, affine=True),
            nn.LeakyReLU(0.2),
        ]
    judge = nn.Sequential(*down, nn.Conv2d(256, 1, 4))
    return Spec(nn.ModuleDict({"make": make, "judge": judge}), alone(3, 32, 32), no_loss, _penalized)


class _Painter(nn.Module):
    """A fast style network, judged by what a frozen VGG-16 sees."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs, kernel, stride in ((3, 32, 9, 1), (32, 64, 3, 2), (64, 128, 3, 2)):
            layers += [nn.ReflectionPad2d(kernel // 2), nn.Conv2d(inputs, outputs, kernel, stride), nn.InstanceNorm2d(outputs, affine=True), nn.ReLU()]  # fmt: skip
        for inputs, outputs in ((128, 64), (64, 32)):
            layers += [nn.Upsample(scale_factor=2), nn.ReflectionPad2d(1), nn.Conv2d(inputs, outputs, 3), nn.InstanceNorm2d(outputs, affine=True), nn.ReLU()]  # fmt: skip
        self.paint = nn.Sequential(*layers, nn.ReflectionPad2d(4), nn.Conv2d(32, 3, 9))
        seen = torchvision().models.vgg16(weights=None).features[:16]
        self.first, self.second = seen[:9], seen[9:]
        for parameter in itertools.chain(self.first.parameters(), self.second.parameters()):
            parameter.requires_grad_(False)

    def see(self, x: Tensor) -> tuple[Tensor, Tensor]:
        low = self.first(x)
        return low, self.second(low)

    @staticmethod
    def likeness(seen: Tensor) -> Tensor:
        flat = seen.flatten(2)
        return flat.bmm(flat.transpose(1, 2)) / flat[0].numel()

    def forward(self, x: Tensor) -> Tensor:
        painted = self.paint(x)
        low, high = self.see(painted)
        _, wanted = self.see(x)
        style = self.likeness(low)
        return F.mse_loss(high, wanted) + 1e3 * F.mse_loss(style, torch.zeros_like(style))


@case("adam", "fp32", 4)
def style() -> Spec:
    return Spec(_Painter(), alone(3, 256, 256), lambda m, x: m(x))


class _TimedBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.Conv2d(outputs, outputs, 3, padding=1),
        )
        self.norm1, self.norm2 = nn.GroupNorm(8, outputs), nn.GroupNorm(8, outputs)
        self.time = nn.Linear(128, outputs)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = F.gelu(self.norm1(self.conv1(x))) + self.time(time)[:, :, None, None]
        return F.gelu(self.norm2(self.conv2(y)))


class _Denoising(nn.Module):
    """A diffusion network for digits, told which one to draw."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 128), nn.GELU(), nn.Linear(128, 128))
        self.kind = nn.Embedding(10, 128)
        self.down = nn.ModuleList([_TimedBlock(1, 64), _TimedBlock(64, 128), _TimedBlock(128, 256)])
        self.up = nn.ModuleList([_TimedBlock(256 + 128, 128), _TimedBlock(128 + 64, 64)])
        self.head = nn.Conv2d(64, 1, 1)

    def forward(self, x: Tensor, time: Tensor, kind: Tensor) -> Tensor:
        known = self.time(time[:, None]) + self.kind(kind)
        first = self.down[0](x, known)
        second = self.down[1](F.max_pool2d(first, 2), known)
        y = self.down[2](F.max_pool2d(second, 2), known)
        y = self.up[0](torch.cat([F.interpolate(y, scale_factor=2, mode="bilinear"), second], 1), known)
        y = self.up[1](torch.cat([F.interpolate(y, scale_factor=2, mode="bilinear"), first], 1), known)
        out: Tensor = self.head(y)
        return out


@case("adam", "fp32", 128, ema=True)
def drawn_digits() -> Spec:
    shares = torch.linspace(0.9999, 0.98, 400).cumprod(0)

    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.rand(count, 1, 28, 28).to(device), torch.randint(0, 10, (count,)).to(device)]

    def loss(model: nn.Module, x: Tensor, kind: Tensor) -> Tensor:
        time = torch.randint(0, 400, (len(x),), device=x.device)
        share = shares.to(x.device)[time][:, None, None, None]
        noise = torch.randn_like(x)
        return F.mse_loss(model(share.sqrt() * x + (1 - share).sqrt() * noise, time / 400, kind), noise)

    return Spec(_Denoising(), batch, loss)
