import torch
from torch import nn

device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")


class TinyDetector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Conv2d(3, 8, 3, stride=2)
        self.box_head, self.score_head = nn.Linear(8, 4), nn.Linear(8, 1)

    def forward(self, images):
        f = torch.relu(self.backbone(torch.stack(images))).flatten(2).transpose(1, 2)
        boxes, scores = self.box_head(f), self.score_head(f).sigmoid().squeeze(-1)
        return [{"boxes": b, "scores": s} for b, s in zip(boxes, scores)]


class Evaluator:
    def __init__(self):
        self.predictions = {}

    def update(self, res):
        self.predictions.update(res)  # leak: holder=predictions|evaluator kind=graph

    def summarize(self):
        return sum(p["scores"].max().item() for p in self.predictions.values()) / len(self.predictions)


def evaluate(model, data_loader):
    cpu_device = torch.device("cpu")
    model.eval()
    evaluator = Evaluator()
    for images, targets in data_loader:
        images = [img.to(device) for img in images]
        outputs = model(images)  # lint: no-grad
        outputs = [{k: v.to(cpu_device) for k, v in t.items()} for t in outputs]
        res = {target["image_id"]: output for target, output in zip(targets, outputs)}
        evaluator.update(res)  # also: lint=accumulate
    return evaluator.summarize()


loader = [([torch.rand(3, 11, 11) for _ in range(2)], [{"image_id": 2 * i + j} for j in range(2)]) for i in range(22)]
print(evaluate(TinyDetector().to(device), loader))
