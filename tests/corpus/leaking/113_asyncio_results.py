import asyncio

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
policy = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 2)).to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)


async def play(environment):
    await asyncio.sleep(0)
    observation = torch.randn(4, 6, device=device) + environment
    return policy(observation).log_softmax(-1).max(-1).values.mean()


async def main():
    games = []
    for update in range(20):
        scores = await asyncio.gather(*(play(e) for e in range(3)))
        loss = -torch.stack(scores).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        games.extend(scores)  # leak: holder=games kind=graph lint=accumulate
    print(len(games))


asyncio.run(main())
