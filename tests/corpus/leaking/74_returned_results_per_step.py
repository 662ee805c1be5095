import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Experiment:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)).to(device)
        self.optim = torch.optim.RMSprop(self.net.parameters(), lr=1e-3)

    def step(self, x, y):
        prediction = self.net(x)
        loss = nn.functional.cross_entropy(prediction, y)
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        return {"loss": loss, "accuracy": (prediction.argmax(1) == y).float().mean()}

    def run(self, steps):
        results = []
        for _ in range(steps):
            x, y = torch.randn(9, 8, device=device), torch.randint(0, 2, (9,), device=device)
            results.append(self.step(x, y))  # leak: holder=results kind=graph lint=accumulate
        return results


print(len(Experiment().run(20)))
