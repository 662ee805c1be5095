import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
world = nn.GRUCell(4, 12).to(device)
actor = nn.Linear(12, 4).to(device)
world_optimizer = torch.optim.Adam(world.parameters())
actor_optimizer = torch.optim.Adam(actor.parameters())
for cycle in range(6):
    for _ in range(4):
        state = torch.zeros(3, 12, device=device)
        error = 0.0
        for t in range(3):
            x = torch.randn(3, 4, device=device)
            state = world(x, state)
            error = error + (state[:, :4] - x).square().mean()
        world_optimizer.zero_grad()
        error.backward()
        world_optimizer.step()
    for _ in range(3):
        state = torch.zeros(3, 12, device=device)
        imagined = []
        for t in range(5 + cycle):
            state = world(torch.tanh(actor(state)), state)
            imagined.append(state)
        loss = -torch.stack(imagined).mean()
        actor_optimizer.zero_grad()
        loss.backward()
        actor_optimizer.step()
