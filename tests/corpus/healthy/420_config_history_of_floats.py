import torch
from torch import nn

config = {"lr": 3e-3, "steps": 30, "dim": 12, "device": "cuda" if torch.cuda.is_available() else "cpu"}
state = {"step": 0, "history": {"loss": [], "grad_norm": []}, "best": float("inf")}
model = nn.Sequential(nn.Linear(config["dim"], 24), nn.SiLU(), nn.Linear(24, config["dim"])).to(config["device"])
optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])

while state["step"] < config["steps"]:
    batch = torch.randn(8, config["dim"], device=config["device"])
    loss = nn.functional.mse_loss(model(batch), batch)
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    state["step"] += 1
    state["history"]["loss"].append(float(loss))
    state["history"]["grad_norm"].append(norm.tolist())
    state["best"] = min(state["best"], state["history"]["loss"][-1])
print(state["best"])
