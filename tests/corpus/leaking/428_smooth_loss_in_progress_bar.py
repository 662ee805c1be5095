import torch
from torch import nn


class Bar:
    """A replacement for tqdm."""

    def __init__(self, iterable):
        self.iterable, self.text = iterable, ""

    def __iter__(self):
        return iter(self.iterable)

    def set_description(self, text):
        self.text = text


def train(n_steps=30, beta=0.98):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(6, 18), nn.ReLU(), nn.Linear(18, 6)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    avg_loss = 0.0
    pbar = Bar(range(1, n_steps + 1))
    for step in pbar:
        batch = torch.randn(16, 6, device=device)
        loss = nn.functional.mse_loss(model(batch + 0.1 * torch.randn_like(batch)), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        avg_loss = beta * avg_loss + (1 - beta) * loss  # leak: holder=avg_loss kind=graph lint=accumulate
        smooth_loss = avg_loss / (1 - beta**step)
        pbar.set_description(f"loss {smooth_loss:.4f}")


train()
