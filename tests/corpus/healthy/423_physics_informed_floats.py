import torch
import torch.nn as nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
history = {"ode": [], "initial": []}
for epoch in range(24):
    t = torch.rand(12, 1, device=device, requires_grad=True)
    u = model(t)
    u_t = torch.autograd.grad(u, t, torch.ones_like(u), create_graph=True)[0]
    losses = {"ode": (u_t + u).pow(2).mean(), "initial": (model(torch.zeros(1, 1, device=device)) - 1).pow(2).mean()}
    loss = sum(losses.values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for name, value in losses.items():
        history[name].append(value.item())
