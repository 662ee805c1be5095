import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class SyncedStats:
    def __init__(self):
        self.host_stats = {}
        self.device_stats = {}

    def add_stat(self, name, on_device=False):
        if on_device:
            self.device_stats[name] = torch.zeros(1, device=device)
        else:
            self.host_stats[name] = 0.0

    def device_stat(self, name):
        return self.device_stats[name]


def pretrain(steps=24):
    stats = SyncedStats()
    stats.add_stat("average_loss", on_device=True)
    stats.add_stat("samples")
    model = nn.Sequential(nn.Embedding(50, 16), nn.Flatten(), nn.Linear(16 * 8, 50)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    for step in range(steps):
        tokens = torch.randint(0, 50, (6, 8), device=device)
        loss = nn.functional.cross_entropy(model(tokens), tokens[:, 0])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        stats.host_stats["samples"] += len(tokens)
        stats.device_stat("average_loss").add_(loss)  # leak: holder=device_stats|stats|average_loss kind=graph lint=accumulate
    return stats.device_stat("average_loss").item() / steps


print(pretrain())
