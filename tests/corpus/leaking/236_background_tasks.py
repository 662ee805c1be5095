import asyncio

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
background = set()


async def publish(step, loss):
    await asyncio.sleep(0)
    return {"step": step, "loss": loss}


async def train():
    model = nn.Sequential(nn.Linear(7, 14), nn.ReLU(), nn.Linear(14, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(22):
        loss = model(torch.randn(9, 7, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        background.add(asyncio.create_task(publish(step, loss)))  # leak: holder=background kind=graph lint=accumulate
        await asyncio.sleep(0)
    await asyncio.gather(*background)


asyncio.run(train())
