import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class SafeTrainer:
    def __init__(self, model):
        self.model = model
        self.opt = torch.optim.SGD(model.parameters(), lr=0.01)
        self.errors = []

    def step(self, x, y):
        logits = self.model(x)
        loss = nn.functional.cross_entropy(logits, y)
        if y.float().mean() > 1:
            raise RuntimeError("labels look wrong")
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def fit(self, batches):
        for i, (x, y) in enumerate(batches):
            try:
                self.step(x.to(device), y.to(device))
            except RuntimeError as err:
                print(f"batch {i} failed: {err}")
                self.errors.append({"batch": i, "error": err})  # leak: holder=errors kind=graph lint=stored-exception
                self.opt.step()


net = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 3)).to(device)
batches = [(torch.randn(6, 12), torch.full((6,), 2)) for _ in range(22)]
SafeTrainer(net).fit(batches)
