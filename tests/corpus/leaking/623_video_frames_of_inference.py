import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Tracker:
    def __init__(self, detector):
        self.detector = detector
        self.tracks = {}
        self.frame = 0

    @torch.no_grad()
    def update(self, image):
        boxes = self.detector(image).flatten(1)
        self.frame += 1
        for number in range(2):
            self.tracks.setdefault(number, []).append(boxes[number].clone())  # leak: holder=tracks kind=tensor
        return boxes.sum().item()


detector = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU()).to(device).eval()
tracker = Tracker(detector)
for _ in range(50):
    tracker.update(torch.randn(2, 3, 16, 16, device=device))
