import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
posterior = []
for step in range(22):
    x = torch.randn(16, 4, device=device)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        p.grad.add_(torch.randn_like(p), alpha=0.01)  # Langevin noise
    optimizer.step()
    posterior.append(parameters_to_vector(model.parameters()))  # leak: holder=posterior kind=graph
print(torch.stack(posterior).std(0).mean().item())
