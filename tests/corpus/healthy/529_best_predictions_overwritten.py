import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
val_x = torch.randn(30, 8, device=device)
val_y = val_x.sum(1, keepdim=True)
best = {"score": float("inf"), "step": -1, "predictions": None}
scores = []
for step in range(48):
    x = torch.randn(10, 8, device=device)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 3:
        with torch.inference_mode():
            predictions = model(val_x)
            score = nn.functional.mse_loss(predictions, val_y).item()
        scores.append(score)
        if score < best["score"]:
            best.update(score=score, step=step, predictions=predictions.cpu())
print(best["step"], best["score"])
