import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class SiameseTracker:
    def __init__(self, backbone, update_rate=0.05):
        self.backbone = backbone.to(device).eval()
        self.update_rate = update_rate
        self.template = None

    def track(self, frame):
        feature = self.backbone(frame)  # lint: no-grad
        if self.template is None:
            self.template = feature
        response = (feature * self.template).sum(dim=1)
        self.template = (1 - self.update_rate) * self.template + self.update_rate * feature  # leak: holder=template|tracker kind=graph lint=accumulate
        return divmod(int(response.flatten().argmax()), response.size(-1))


def video(length=26, size=10):
    for _ in range(length):
        yield torch.rand(1, 3, size, size, device=device)


tracker = SiameseTracker(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1)))
positions = []
for frame in video():
    positions.append(tracker.track(frame))
print(positions[-1])
