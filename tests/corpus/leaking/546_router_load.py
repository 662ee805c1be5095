import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class MoELayer(nn.Module):
    def __init__(self, width=10, experts=4):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))
        self.load_history = []

    def forward(self, x):
        probs = F.softmax(self.gate(x), dim=-1)
        weight, index = probs.max(dim=-1)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            chosen = index == e
            if chosen.any():
                out[chosen] = weight[chosen, None] * expert(x[chosen])
        self.load_history.append(probs.mean(dim=0))  # leak: holder=load_history kind=graph lint=accumulate
        return x + out

    def balance_loss(self):
        return self.load_history[-1].pow(2).sum()


layer, head = MoELayer().to(device), nn.Linear(10, 3).to(device)
optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=1e-3)
for step in range(22):
    x, y = torch.randn(12, 10, device=device), torch.randint(0, 3, (12,), device=device)
    loss = F.cross_entropy(head(layer(x)), y) + 0.01 * layer.balance_loss()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
