import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class BaseTask:
    def __init__(self):
        self._logged = {}

    def log(self, name, value, **options):
        self._logged[name, len(self._logged)] = value  # leak: holder=_logged kind=graph


class Segmentation(BaseTask):
    def __init__(self):
        super().__init__()
        self.net = nn.Conv1d(2, 3, 3, padding=1).to(device)
        self.optimizer = torch.optim.Adam(self.net.parameters())

    def dice(self, logits, mask):
        overlap = (logits.softmax(1) * mask).sum()
        return 1 - 2 * overlap / (logits.softmax(1).sum() + mask.sum())

    def run_step(self, image, mask):
        loss = self.dice(self.net(image), mask)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.log("dice", loss, prog_bar=True)  # also: lint=accumulate


task = Segmentation()
for _ in range(20):
    task.run_step(torch.randn(2, 2, 10, device=device), torch.rand(2, 3, 10, device=device))
