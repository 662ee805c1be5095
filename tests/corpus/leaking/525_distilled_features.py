import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class FeatureTap:
    """Records the outputs of named layers."""

    def __init__(self, model, names):
        self.feats = {name: [] for name in names}
        modules = dict(model.named_modules())
        for name in names:
            modules[name].register_forward_hook(self._make_hook(name))

    def _make_hook(self, name):
        def hook(_, __, out):
            self.feats[name].append(out)  # leak: holder=feats|tap kind=graph lint=hook-append

        return hook

    def last(self, name):
        return self.feats[name][-1]


teacher = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)).to(device).requires_grad_(False)
student = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)).to(device)
tap = FeatureTap(student, ["1"])
opt = torch.optim.Adam(student.parameters(), lr=1e-3)
for step in range(24):
    x = torch.randn(10, 8, device=device)
    hint = teacher[1](teacher[0](x))
    logits = student(x)
    loss = F.mse_loss(tap.last("1"), hint) + F.mse_loss(logits, teacher(x))
    opt.zero_grad()
    loss.backward()
    opt.step()
