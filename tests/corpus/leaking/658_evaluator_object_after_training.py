import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Evaluator:
    def __init__(self, model):
        self.model, self.outputs = model, []

    def run(self, batches):
        self.model.eval()
        with torch.no_grad():
            for x in batches:
                self.outputs.append(self.model(x))  # leak: holder=outputs kind=tensor


model = nn.Linear(10, 5).to(device)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(10):
    loss = model(torch.randn(4, 10, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
evaluator = Evaluator(model)
evaluator.run(torch.randn(40, 4, 10, device=device))
