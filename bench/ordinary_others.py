"""Training that is neither plain pictures nor plain texts: tables, recommenders, graphs, games, likeness, physics,
a teacher, an epoch that ends with a smaller batch. Cases stand above the model they train.
"""

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.case import CaseSet
from bench.model_parts import Spec, Workshop, alone, classified, no_loss, perceptron, squared, torchvision

ORDINARY_OTHERS = CaseSet()
case = ORDINARY_OTHERS.case


# Tables and recommenders.


class _Table(nn.Module):
    """Categories become vectors; numbers are normed; layers get narrower."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (1116, 8, 4, 13, 32, 54, 26, 700)
        self.words = nn.ModuleList(nn.Embedding(size, min(50, (size + 1) // 2)) for size in sizes)
        wide = sum(word.embedding_dim for word in self.words)
        self.norm, self.drop = nn.BatchNorm1d(16), nn.Dropout(0.04)
        layers: list[nn.Module] = []
        for inputs, outputs in ((wide + 16, 1000), (1000, 500)):
            layers += [
                nn.Linear(inputs, outputs),
                nn.ReLU(inplace=True),
                nn.BatchNorm1d(outputs),
                nn.Dropout(0.1),
            ]
        self.body = nn.Sequential(*layers, nn.Linear(500, 1))

    def forward(self, kinds: Tensor, numbers: Tensor) -> Tensor:
        words = torch.cat([word(kinds[:, index]) for index, word in enumerate(self.words)], 1)
        out: Tensor = self.body(torch.cat([self.drop(words), self.norm(numbers)], 1))
        return out


@case("adam", "fp32", 2048)
def sales() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        kinds, numbers = torch.randint(0, 4, (count, 8)), torch.randn(count, 16)
        return [one.to(device) for one in (kinds, numbers, torch.rand(count, 1))]

    return Spec(_Table(), batch, lambda m, kinds, numbers, y: F.mse_loss(m(kinds, numbers), y))


class _Tastes(nn.Module):
    """Users and films as vectors whose gradients are sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.films = nn.Embedding(162541, 64, sparse=True), nn.Embedding(59047, 64, sparse=True)
        self.user_bias, self.film_bias = (
            nn.Embedding(162541, 1, sparse=True),
            nn.Embedding(59047, 1, sparse=True),
        )

    def forward(self, user: Tensor, film: Tensor) -> Tensor:
        near = (self.users(user) * self.films(film)).sum(1)
        out: Tensor = near + self.user_bias(user).squeeze(1) + self.film_bias(film).squeeze(1)
        return out


@case("sparse_adam", "fp32", 8192)
def tastes() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        user, film = torch.randint(0, 162541, (count,)), torch.randint(0, 59047, (count,))
        return [user.to(device), film.to(device), (torch.rand(count) * 5).to(device)]

    return Spec(_Tastes(), batch, lambda m, user, film, y: F.mse_loss(m(user, film), y))


class _NewsKinds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(95811, 64), nn.Linear(64, 4)

    def forward(self, text: Tensor, begins: Tensor) -> Tensor:
        out: Tensor = self.head(self.words(text, begins))
        return out


@case("sgd", "fp32", 64, clip=True)
def news_kinds() -> Spec:
    """Texts of different lengths end to end, and where each begins."""

    def batch(count: int, device: str) -> list[Tensor]:
        lengths = torch.randint(20, 80, (count,))
        begins = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)[:-1]])
        text = torch.randint(0, 95811, (int(lengths.sum()),))
        return [text.to(device), begins.to(device), torch.randint(0, 4, (count,)).to(device)]

    return Spec(_NewsKinds(), batch, lambda m, text, begins, y: F.cross_entropy(m(text, begins), y))


# Graphs.


class _Citations(nn.Module):
    """A graph network whose neighbours are a sparse matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(1433, 64), nn.Linear(64, 7)

    def forward(self, x: Tensor, edges: Tensor, weights: Tensor) -> Tensor:
        near = torch.sparse_coo_tensor(edges, weights, (len(x), len(x)), check_invariants=False)
        y = F.dropout(F.relu(torch.sparse.mm(near, self.one(x))), 0.5, self.training)
        return torch.sparse.mm(near, self.two(y))


@case("adam", "fp32", 10000)
def citations() -> Spec:
    """The batch counts the papers."""

    def batch(count: int, device: str) -> list[Tensor]:
        edges = torch.randint(0, count, (2, 4 * count))
        x, y = (torch.rand(count, 1433) < 0.01).float(), torch.randint(0, 7, (count,))
        return [one.to(device) for one in (x, edges, torch.rand(4 * count), y)]

    return Spec(_Citations(), batch, lambda m, x, edges, weights, y: F.cross_entropy(m(x, edges, weights), y))


class _Molecules(nn.Module):
    """Neighbours are added up, then molecules are."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.atoms, self.bonds = nn.Embedding(120, width), nn.Embedding(6, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(5)
        )  # fmt: skip
        self.head = nn.Linear(width, 1)

    def forward(self, atoms: Tensor, edges: Tensor, bonds: Tensor, molecule: Tensor, count: int) -> Tensor:
        x = self.atoms(atoms)
        for layer in self.layers:
            told = F.relu(x[edges[0]] + self.bonds(bonds))
            x = F.relu(layer(x + torch.zeros_like(x).index_add_(0, edges[1], told)))
        size = torch.bincount(molecule, minlength=count).clamp(min=1).unsqueeze(1)
        whole = torch.zeros(count, x.size(1), device=x.device).index_add_(0, molecule, x) / size
        out: Tensor = self.head(whole)
        return out


@case("adam", "fp32", 256)
def molecules() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        nodes = 24 * count
        molecule = torch.arange(count).repeat_interleave(24)
        begins = torch.randint(0, nodes, (50 * count,))
        edges = torch.stack([begins, begins // 24 * 24 + torch.randint(0, 24, (50 * count,))])
        made = (
            torch.randint(0, 120, (nodes,)),
            edges,
            torch.randint(0, 6, (50 * count,)),
            molecule,
            torch.rand(count, 1),
        )
        return [one.to(device) for one in made]

    def loss(
        model: nn.Module, atoms: Tensor, edges: Tensor, bonds: Tensor, molecule: Tensor, y: Tensor
    ) -> Tensor:
        return F.l1_loss(model(atoms, edges, bonds, molecule, len(y)), y)

    return Spec(_Molecules(), batch, loss)


# Games.


def _screen(outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, outputs),
    )  # fmt: skip


def _replayed(shop: Workshop) -> Callable[[], Tensor]:
    """One move of the game, then one batch from memory; the target is another network (DQN)."""
    now, goal = shop.model["now"], shop.model["goal"]
    goal.load_state_dict(now.state_dict())
    optimizer = shop.optimizer(now.parameters())

    def step() -> Tensor:
        before, move, reward, after, ended = shop.batch()
        with torch.no_grad():
            now(before[:1].float() / 255).argmax(1)
            best = goal(after.float() / 255).max(1).values
            wanted = reward + 0.99 * best * (1 - ended)
        told = now(before.float() / 255).gather(1, move.unsqueeze(1)).squeeze(1)
        loss = F.smooth_l1_loss(told, wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(now.parameters(), 100)
        optimizer.step()
        return loss.detach()

    return step


@case("adam", "fp32", 32)
def replayed_game() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        screens = [torch.randint(0, 256, (count, 4, 84, 84), dtype=torch.uint8) for _ in range(2)]
        made = (screens[0], torch.randint(0, 6, (count,)), torch.rand(count), screens[1], torch.zeros(count))
        return [one.to(device) for one in made]

    model = nn.ModuleDict({"now": _screen(6), "goal": _screen(6)})
    return Spec(model, batch, no_loss, _replayed)


def _proximal(shop: Workshop) -> Callable[[], Tensor]:
    """128 moves of eight games are kept on the device, then learnt from in four parts (PPO)."""
    body, act, judge = shop.model["body"], shop.model["act"], shop.model["judge"]
    optimizer = shop.optimizer(shop.model.parameters())

    def step() -> Tensor:
        (first,) = shop.batch()
        games = len(first)
        kept = torch.zeros(128, *first.shape, device=first.device)
        moves, odds, worth = (torch.zeros(128, games, device=first.device) for _ in range(3))
        for turn in range(128):
            (screen,) = shop.batch()
            kept[turn] = screen
            with torch.no_grad():
                seen = body(screen / 255)
                choice = torch.distributions.Categorical(logits=act(seen), validate_args=False)
                move = choice.sample()
                moves[turn], odds[turn], worth[turn] = (
                    move.float(),
                    choice.log_prob(move),
                    judge(seen).squeeze(1),
                )
        better = torch.randn_like(worth)
        flat = [one.flatten(0, 1) for one in (kept, moves, odds, worth, better)]
        for part in torch.randperm(128 * games).to(first.device).chunk(4):
            screen, move, old, value, gain = (one[part] for one in flat)
            seen = body(screen / 255)
            choice = torch.distributions.Categorical(logits=act(seen), validate_args=False)
            ratio = (choice.log_prob(move) - old).exp()
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            policy = torch.max(-gain * ratio, -gain * ratio.clamp(0.9, 1.1)).mean()
            loss = policy + 0.5 * F.mse_loss(judge(seen).squeeze(1), value) - 0.01 * choice.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(shop.model.parameters(), 0.5)
            optimizer.step()
        return loss.detach()

    return step


@case("adam", "fp32", 8)
def proximal_game() -> Spec:
    model = nn.ModuleDict({"body": _screen(512), "act": nn.Linear(512, 4), "judge": nn.Linear(512, 1)})
    return Spec(model, alone(4, 84, 84), no_loss, _proximal)


# Likeness, and physics.


class _Alphabets(nn.Module):
    """Two letters of unknown alphabets: the same or not?"""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 64, 10), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 128, 7), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(128, 128, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(128, 256, 4), nn.ReLU(), nn.Flatten(),
            nn.Linear(9216, 4096), nn.Sigmoid(),
        )  # fmt: skip
        self.head = nn.Linear(4096, 1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        out: Tensor = self.head((self.body(a) - self.body(b)).abs())
        return out


@case("adam", "fp32", 128)
def alphabets() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        made = (
            torch.rand(count, 1, 105, 105),
            torch.rand(count, 1, 105, 105),
            torch.randint(0, 2, (count, 1)).float(),
        )
        return [one.to(device) for one in made]

    return Spec(_Alphabets(), batch, lambda m, a, b, y: F.binary_cross_entropy_with_logits(m(a, b), y))


@case("adam", "amp_fp16", 32)
def nearer_pictures() -> Spec:
    """Anchor, like and unlike through one ResNet-34."""
    model = torchvision().models.resnet34(weights=None)
    model.fc = nn.Linear(512, 128)

    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, 3, 160, 160).to(device) for _ in range(3)]

    def loss(model: nn.Module, *pictures: Tensor) -> Tensor:
        a, b, c = (F.normalize(model(one), dim=1) for one in pictures)
        return F.triplet_margin_loss(a, b, c, margin=0.2)

    return Spec(model, batch, loss)


@case("adam", "fp32", 20000)
def burgers() -> Spec:
    """An equation's residual at points of space and time; gradients of gradients."""
    model = perceptron(2, *[40] * 8, 1, act=nn.Tanh)

    def loss(model: nn.Module, points: Tensor) -> Tensor:
        x, t = points[:, :1].clone().requires_grad_(True), points[:, 1:].clone().requires_grad_(True)
        u = model(torch.cat([x, t], 1))
        u_x, u_t = torch.autograd.grad(u, (x, t), torch.ones_like(u), create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x, x, torch.ones_like(u_x), create_graph=True)
        return (u_t + u * u_x - 0.0032 * u_xx).pow(2).mean() + model(points[:200]).pow(2).mean()

    return Spec(model, alone(2), loss)


class _Student(nn.Module):
    """A few convolutions that learn from a frozen ResNet-50."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = (
            torchvision().models.resnet50(weights=None, num_classes=100).eval().requires_grad_(False)
        )
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise((3, 32, 64, 128, 256)):
            layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.learn = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            wanted = self.teacher(x)
        return self.learn(x), wanted


@case("adamw", "amp_bf16", 64)
def taught() -> Spec:
    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, 3, 176, 176).to(device), torch.randint(0, 100, (count,)).to(device)]

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        told, wanted = model(x)
        soft = F.kl_div(F.log_softmax(told / 4, 1), F.softmax(wanted / 4, 1), reduction="batchmean") * 16
        return 0.9 * soft + 0.1 * F.cross_entropy(told, y)

    return Spec(_Student(), batch, loss)


@case("sgdm", "fp32", 128)
def last_batch_is_smaller() -> Spec:
    """An epoch of two batches and a rest, of a residual network with bottlenecks."""
    model = torchvision().models.ResNet(torchvision().models.resnet.Bottleneck, [2, 2, 2, 2], num_classes=10)
    sizes = itertools.cycle((1.0, 1.0, 0.6))

    def batch(count: int, device: str) -> list[Tensor]:
        count = max(2, int(count * next(sizes)))
        return [torch.randn(count, 3, 64, 64).to(device), torch.randint(0, 10, (count,)).to(device)]

    return Spec(model, batch, classified)


class _Ages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


@case("adam", "fp32", 100)
def ages() -> Spec:
    """As small as training gets."""

    def batch(count: int, device: str) -> list[Tensor]:
        return [torch.randn(count, 30).to(device), torch.rand(count, 1).to(device)]

    return Spec(_Ages(), batch, squared)
