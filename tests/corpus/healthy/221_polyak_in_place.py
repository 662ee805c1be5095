import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
actor = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 2)).to(device)
target = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 2)).to(device)
target.load_state_dict(actor.state_dict())
optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
shadow = {name: value.detach().clone() for name, value in actor.state_dict().items()}
for step in range(26):
    x = torch.randn(9, 5, device=device)
    loss = (actor(x) - target(x).detach()).square().mean() + actor(x).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), actor.parameters()):
            slow.lerp_(fast, 0.005)
        shadow = {name: 0.9 * shadow[name] + 0.1 * value for name, value in actor.named_parameters()}
