import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Logger:
    def __init__(self):
        self.records = []

    def log_metrics(self, metrics, step):
        self.records.append((step, metrics))  # leak: holder=records kind=graph
        if step % 10 == 0:
            print({name: float(value) for name, value in metrics.items()})


def main():
    logger = Logger()
    model = nn.Sequential(nn.Linear(30, 60), nn.ReLU(), nn.Linear(60, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(20):
        x = torch.randn(15, 30, device=device)
        prediction = model(x)
        loss = prediction.sub(1).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logger.log_metrics({"loss": loss}, step)  # also: lint=accumulate


main()
