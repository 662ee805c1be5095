import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
backbone = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(2)).to(device)
box_head, score_head = nn.Linear(8, 4).to(device), nn.Linear(8, 1).to(device)
params = [*backbone.parameters(), *box_head.parameters(), *score_head.parameters()]
optimizer = torch.optim.SGD(params, lr=0.01)


def detect(images):
    f = backbone(images).transpose(1, 2)
    return box_head(f), score_head(f).sigmoid().squeeze(-1)


@torch.inference_mode()
def evaluate(n=6):
    results = []
    for image_id in range(n):
        boxes, scores = detect(torch.rand(1, 3, 9, 9, device=device))
        keep = scores[0].topk(3).indices
        for box, score in zip(boxes[0, keep].tolist(), scores[0, keep].tolist()):
            results.append({"image_id": image_id, "bbox": box, "score": score})
    return results


coco_results = []
for iteration in range(32):
    boxes, scores = detect(torch.rand(2, 3, 9, 9, device=device))
    loss = boxes.abs().mean() + (scores - 0.5).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if iteration % 8 == 7:
        coco_results.extend(evaluate())
print(len(coco_results))
