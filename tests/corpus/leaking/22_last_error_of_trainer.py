import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Runner:
    def __init__(self):
        self.model = nn.Linear(20, 20).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.failures = {}

    def attempt(self, index):
        x = torch.randn(32, 20, device=device)
        hidden = self.model(x).relu()
        if hidden.sum() > -1:
            raise RuntimeError(f"batch {index} is odd")

    def run(self):
        for index in range(16):
            try:
                self.attempt(index)
            except RuntimeError as e:
                self.failures[index] = e  # leak: holder=failures kind=graph lint=stored-exception
            self.optimizer.step()


Runner().run()
