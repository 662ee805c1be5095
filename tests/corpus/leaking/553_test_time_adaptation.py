import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def softmax_entropy(x):
    return -(x.softmax(1) * x.log_softmax(1)).sum(1)


class Tent(nn.Module):
    """Adapts the normalization of a model to the test batches."""

    def __init__(self, model, optimizer):
        super().__init__()
        self.model, self.optimizer = model, optimizer

    def forward(self, x):
        outputs = self.model(x)
        loss = softmax_entropy(outputs).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return outputs


def accuracy_under_corruption(adapted, batches):
    predictions, labels = [], []
    for x, y in batches:
        predictions.append(adapted(x))  # leak: holder=predictions|labels kind=graph lint=accumulate
        labels.append(y)  # also:
    return (torch.cat(predictions).argmax(1) == torch.cat(labels)).float().mean().item()


source = nn.Sequential(nn.Linear(9, 18), nn.BatchNorm1d(18), nn.ReLU(), nn.Linear(18, 3)).to(device).train()
source.requires_grad_(False)
source[1].requires_grad_(True)
tent = Tent(source, torch.optim.SGD(source[1].parameters(), lr=1e-3))
stream = [(torch.randn(8, 9, device=device) + 0.5, torch.randint(0, 3, (8,), device=device)) for _ in range(24)]
print(accuracy_under_corruption(tent, stream))
