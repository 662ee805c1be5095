import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class GradCAM:
    def __init__(self, model, layer):
        self.model, self.layer = model, layer
        self.handles = []

    def __enter__(self):
        self.handles.append(self.layer.register_forward_hook(self._keep))
        return self

    def __exit__(self, *exc):
        for handle in self.handles:
            handle.remove()
        self.handles = []
        self.activation = None

    def _keep(self, module, inputs, output):
        self.activation = output

    def __call__(self, image):
        score = self.model(image).max()
        (gradient,) = torch.autograd.grad(score, self.activation)
        return F.relu((gradient.mean((2, 3), keepdim=True) * self.activation).sum(1)).detach()


features = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU())
model = nn.Sequential(features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)).to(device).eval()
strongest = []
for i in range(24):
    with GradCAM(model, features) as cam:
        strongest.append(cam(torch.rand(1, 3, 10, 10, device=device)).max().item())
print(max(strongest))
