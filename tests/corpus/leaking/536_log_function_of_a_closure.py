import time

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def make_log():
    rows, started = [], time.time()

    def log(**values):
        rows.append({"seconds": time.time() - started, **values})  # leak: holder=rows|log kind=graph

    def table():
        return [{k: float(v) for k, v in row.items()} for row in rows]

    return log, table


log, table = make_log()
model = nn.Sequential(nn.Conv1d(1, 4, 5), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 12, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(24):
    wave = torch.sin(torch.linspace(0, 6, 16, device=device) * (1 + torch.rand(8, 1, device=device)))
    prediction = model(wave[:, None])
    loss = (prediction.squeeze(1) - wave.amax(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log(step=step, loss=loss, lr=optimizer.param_groups[0]["lr"])  # also: lint=accumulate
print(table()[-1])
