import sys

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class SafeTrainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.crashes = []

    def forward_backward(self, x, y):
        logits = self.model(x)
        loss = nn.functional.cross_entropy(logits, y)
        assert loss.item() < 0, "loss should have become negative"
        loss.backward()

    def fit(self, steps):
        for _ in range(steps):
            x, y = torch.randn(8, 16, device=device), torch.randint(0, 2, (8,), device=device)
            try:
                self.forward_backward(x, y)
            except AssertionError:
                self.crashes.append(sys.exc_info())  # leak: holder=crashes kind=graph lint=stored-exception
            self.optimizer.step()


trainer = SafeTrainer()
trainer.fit(18)
print(len(trainer.crashes), "crashes")
