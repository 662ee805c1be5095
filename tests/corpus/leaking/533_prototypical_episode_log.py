from typing import TypedDict

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class EpisodeLog(TypedDict):
    episode: int
    loss: torch.Tensor
    accuracy: float


def sample_episode(ways=3, shots=2, queries=4, dim=16):
    centres = 2 * torch.randn(ways, 1, dim, device=device)
    return (centres + torch.randn(ways, shots, dim, device=device), centres + torch.randn(ways, queries, dim, device=device))


def run(episodes: int) -> list[EpisodeLog]:
    encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).to(device)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
    logs: list[EpisodeLog] = []
    for episode in range(episodes):
        support, query = sample_episode()
        prototypes = encoder(support).mean(dim=1)
        z = encoder(query).flatten(0, 1)
        target = torch.arange(3, device=device).repeat_interleave(4)
        log_p = F.log_softmax(-torch.cdist(z, prototypes), dim=1)
        loss = F.nll_loss(log_p, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        accuracy = (log_p.argmax(1) == target).float().mean().item()
        logs.append(EpisodeLog(episode=episode, loss=loss, accuracy=accuracy))  # leak: holder=logs kind=graph lint=accumulate
    return logs


logs = run(24)
print(sum(row["accuracy"] for row in logs) / len(logs))
