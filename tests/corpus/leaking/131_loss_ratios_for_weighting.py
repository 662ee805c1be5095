import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class DynamicWeights:
    def __init__(self, names, temperature=2.0):
        self.history = {name: [] for name in names}
        self.temperature = temperature

    def __call__(self, losses):
        for name, loss in losses.items():
            self.history[name].append(loss)  # leak: holder=history kind=graph lint=accumulate
        if len(next(iter(self.history.values()))) < 3:
            return sum(losses.values())
        ratios = torch.tensor([(h[-2] / h[-3]).item() for h in self.history.values()])
        weights = torch.softmax(ratios / self.temperature, dim=0).tolist()
        return sum(w * loss for w, loss in zip(weights, losses.values()))


trunk = nn.Linear(10, 16).to(device)
heads = nn.ModuleDict({"depth": nn.Linear(16, 1), "normal": nn.Linear(16, 3)}).to(device)
optimizer = torch.optim.Adam([*trunk.parameters(), *heads.parameters()])
weigh = DynamicWeights(heads.keys())
for step in range(20):
    hidden = torch.relu(trunk(torch.randn(8, 10, device=device)))
    loss = weigh({name: head(hidden).square().mean() for name, head in heads.items()})
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
