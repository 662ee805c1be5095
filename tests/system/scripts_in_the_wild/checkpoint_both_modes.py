"""torch.utils.checkpoint in both modes and checkpoint_sequential, with dropout and autocast inside. Gradients must
agree."""

import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

device = torch.device("cuda")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ff = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 32))

    def forward(self, x):
        mask = torch.ones(x.shape, device=x.device)
        return x + self.ff(x) * mask


class Net(nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.mode = mode

    def forward(self, x):
        for block in self.blocks:
            if self.mode == "plain":
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.mode == "reentrant")
        return x.mean()


for amp in (False, True):
    for mode in ("plain", "reentrant", "non-reentrant"):
        torch.manual_seed(0)
        model = Net(mode).to(device)
        x = torch.randn(64, 32, device=device, requires_grad=True)
        torch.cuda.reset_peak_memory_stats()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=amp):
            loss = model(x)
        loss.backward()
        print("memory:", mode, torch.cuda.max_memory_allocated())
        print(
            mode,
            amp,
            loss.item(),
            sum(p.grad.double().sum().item() for p in model.parameters()),
            x.grad.sum().item(),
        )

torch.manual_seed(0)
stack = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(6)]).to(device)
x = torch.randn(4, 16, device=device, requires_grad=True)
out = checkpoint_sequential(stack, 3, x, use_reentrant=False)
out.sum().backward()
print(out.sum().item(), x.grad.norm().item())
