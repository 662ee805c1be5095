from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def calibration_error(logits, labels):
    confidence, predicted = logits.softmax(-1).max(-1)
    return (confidence - (predicted == labels).float()).abs().mean()


model = nn.Sequential(nn.Linear(9, 18), nn.ReLU(), nn.Linear(18, 4)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
futures = []
with ThreadPoolExecutor(max_workers=1) as pool:
    for step in range(22):
        x, y = torch.randn(8, 9, device=device), torch.randint(0, 4, (8,), device=device)
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        futures.append(pool.submit(calibration_error, logits, y))  # leak: holder=futures kind=graph lint=accumulate
print(sum(f.result().item() for f in futures) / len(futures))
