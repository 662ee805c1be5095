import torch
from torch import nn

config = {"lr": 3e-3, "steps": 26, "batch_size": 8, "dim": 12, "device": "cuda" if torch.cuda.is_available() else "cpu"}


def setup(config):
    model = nn.Sequential(nn.Linear(config["dim"], 24), nn.SiLU(), nn.Linear(24, config["dim"])).to(config["device"])
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=config["lr"]),
        "step": 0,
        "history": {"loss": [], "lr": []},
    }


def train_step(state, batch):
    state["optimizer"].zero_grad()
    recon = state["model"](batch)
    loss = nn.functional.mse_loss(recon, batch)
    loss.backward()
    state["optimizer"].step()
    state["step"] += 1
    state["history"]["loss"].append(loss)  # leak: holder=state|history|loss kind=graph lint=accumulate
    state["history"]["lr"].append(state["optimizer"].param_groups[0]["lr"])
    return state


state = setup(config)
for _ in range(config["steps"]):
    state = train_step(state, torch.randn(config["batch_size"], config["dim"], device=config["device"]))
print("done after", state["step"])
