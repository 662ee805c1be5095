import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def forward(x, w):
    return F.linear(torch.tanh(F.linear(x, w[0], w[1])), w[2], w[3])


weights = nn.ParameterList([torch.randn(16, 1), torch.zeros(16), torch.randn(1, 16) * 0.2, torch.zeros(1)]).to(device)
meta_opt = torch.optim.Adam(weights.parameters(), lr=1e-3)
log = []
for iteration in range(20):
    query_losses = []
    for _ in range(3):
        x = torch.rand(10, 1, device=device) * 6 - 3
        y = torch.sin(x + torch.rand(1, device=device))
        inner = F.mse_loss(forward(x[:5], list(weights)), y[:5])
        grads = torch.autograd.grad(inner, list(weights), create_graph=True)
        adapted = [w - 0.01 * g for w, g in zip(weights, grads)]
        query_losses.append(F.mse_loss(forward(x[5:], adapted), y[5:]))
    meta_loss = torch.stack(query_losses).mean()
    meta_opt.zero_grad()
    meta_loss.backward()
    meta_opt.step()
    log.append(meta_loss.item())
