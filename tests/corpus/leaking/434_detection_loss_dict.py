import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.cls, self.box = nn.Linear(24, 5), nn.Linear(24, 4)

    def forward(self, images, targets):
        h = self.body(torch.stack(images))
        return {
            "loss_classifier": nn.functional.cross_entropy(self.cls(h), targets["labels"]),
            "loss_box_reg": nn.functional.smooth_l1_loss(self.box(h), targets["boxes"]),
        }


model = Detector().to(device)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.005, momentum=0.9)
history = {"loss_classifier": [], "loss_box_reg": [], "total": []}
for iteration in range(20):
    images = [torch.rand(3, 8, 8, device=device) for _ in range(3)]
    targets = {"labels": torch.randint(0, 5, (3,), device=device), "boxes": torch.rand(3, 4, device=device)}
    loss_dict = model(images, targets)
    losses = sum(loss for loss in loss_dict.values())
    optimizer.zero_grad()
    losses.backward()
    optimizer.step()
    history["total"].append(losses.item())
    for k, v in loss_dict.items():
        history[k].append(v)  # leak: holder=history kind=graph lint=accumulate
