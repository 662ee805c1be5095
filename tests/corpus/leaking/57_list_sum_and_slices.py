import torch
import torch.nn as nn

device = "cuda:0" if torch.cuda.is_available() else "cpu"


class Experiment:
    def __init__(self):
        self.net = nn.GRU(4, 8, batch_first=True).to(device)
        self.head = nn.Linear(8, 1).to(device)
        self.optimizer = torch.optim.Adam([*self.net.parameters(), *self.head.parameters()])
        self.curve = []

    def run(self, iterations):
        for iteration in range(iterations):
            sequence = torch.randn(6, 5, 4, device=device)
            states, _ = self.net(sequence)
            error = (self.head(states[:, -1]) - sequence.mean((1, 2)).unsqueeze(1)).abs().mean()
            self.optimizer.zero_grad()
            error.backward()
            self.optimizer.step()
            self.curve = self.curve + [error]  # leak: holder=curve kind=graph lint=accumulate
            if iteration % 10 == 9:
                print(iteration, torch.stack(self.curve[-10:]).mean().item())


Experiment().run(30)
