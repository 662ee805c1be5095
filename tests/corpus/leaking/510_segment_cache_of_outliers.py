import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Context:
    """Caches predictions that several checks share."""

    def __init__(self, model, dataset, device):
        self.model, self.device = model, device
        self.loader = DataLoader(dataset, batch_size=4)
        self._predictions = {}

    def cache_batch(self, batch_no, images):
        self._predictions[batch_no] = self.model(images.to(self.device))  # leak: holder=_predictions kind=graph lint=accumulate,no-grad
        return self._predictions[batch_no]


class WeakSegments:
    def run(self, context):
        context.model.eval()
        confident = []
        for batch_no, (images, labels) in enumerate(context.loader):
            probabilities = context.cache_batch(batch_no, images).softmax(dim=1)
            confident.extend(probabilities.max(dim=1).values.tolist())
        return sorted(confident)[:5]


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
data = TensorDataset(torch.rand(112, 1, 6, 6), torch.randint(0, 4, (112,)))
net = nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.ReLU(), nn.Linear(24, 4)).to(device)
print(WeakSegments().run(Context(net, data, device)))
